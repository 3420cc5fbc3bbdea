"""The programs that mirror a topic once, from its start to what is its end then: ours, raw and deep, and others'."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.mirror.works import Work

RAW, DEEP, HANDLER, LIBRDKAFKA = "raw", "deep", "deep, handler", "confluent-kafka"
KAFKAFMT = str(Path(sys.executable).with_name("kafkafmt"))


@dataclass(frozen=True)
class Route:
    """From where a topic goes to where; group: one that has mirrored nothing yet."""

    source: str
    target: str
    topic: str
    partitions: int
    group: str


def _ours(*options: str) -> Callable[[Route, Work], list[str]]:
    def command(route: Route, _: Work) -> list[str]:
        ends = f"kafka://{route.source}/{route.topic}", f"kafka://{route.target}"
        fresh = "--group", route.group, "--offset-map", f"topic:{route.group}-offsets"
        return [KAFKAFMT, "mirror", *ends, "--once", *fresh, "--json", *options]

    return command


def _librdkafka(route: Route, work: Work) -> list[str]:
    arguments = route.source, route.target, route.topic, str(route.partitions), route.group
    return [sys.executable, "-m", "bench.mirror.librdkafka", *arguments, work.segment.codec.name.lower()]


COMMANDS: dict[str, Callable[[Route, Work], list[str]]] = {
    RAW: _ours(),
    DEEP: _ours("--deep"),
    HANDLER: _ours("--deep", "--handler", "bench.mirror.handlers:unchanged"),
    LIBRDKAFKA: _librdkafka,
}
