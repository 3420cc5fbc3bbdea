"""The programs that mirror a topic once, from its start to what is its end then: ours in four ways, and others'.

The floor mirrors nothing: it receives and sends as many bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.mirror.ends import ends
from bench.mirror.works import Work
from bench.peers.names import CONFLUENT, FLOOR
from kafkafmt.mirror.memory import MirrorMemory
from kafkafmt.mirror.options import MirrorOptions

ADAPTIVE, RAW, DEEP, HANDLER = "adaptive", "raw", "deep", "deep, handler"
EXACTLY_ONCE = "adaptive, exactly once"
# Whose memory is limited by `--memory`.
OWN = (ADAPTIVE, EXACTLY_ONCE, RAW, DEEP, HANDLER)
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
        addresses = f"kafka://{route.source}/{route.topic}", f"kafka://{route.target}"
        fresh = "--group", route.group, "--offset-map", f"topic:{route.group}-offsets"
        return [KAFKAFMT, "mirror", *addresses, "--once", *fresh, "--json", *options]

    return command


def _librdkafka(route: Route, work: Work) -> list[str]:
    arguments = route.source, route.target, route.topic, str(route.partitions), route.group
    return [sys.executable, "-m", "bench.mirror.librdkafka", *arguments, work.segment.codec.name.lower()]


COMMANDS: dict[str, Callable[[Route, Work], list[str]]] = {
    ADAPTIVE: _ours(),
    EXACTLY_ONCE: _ours("--exactly-once"),
    RAW: _ours("--use-raw-bytes"),
    DEEP: _ours("--deep"),
    HANDLER: _ours("--deep", "--handler", "bench.mirror.handlers:unchanged"),
    CONFLUENT: _librdkafka,
}
NAMES = (FLOOR, *COMMANDS)


def present() -> tuple[str, ...]:
    """The names of the contenders that this version has: the mirror is adaptive once it makes batches of a size."""
    needed = {ADAPTIVE: "batch_size", EXACTLY_ONCE: "is_exactly_once"}
    return tuple(name for name in NAMES if name not in needed or hasattr(MirrorOptions, needed[name]))


def floor_command(work: Work, stack: ExitStack, *, is_empty: bool) -> list[str]:
    """The floor, between ends that run until the stack is closed.

    Its responses are as large as those that the mirror asks for. A request has one batch of each partition, as raw
    sends them, within the mirror's limit.
    """
    memory = MirrorMemory(MirrorOptions.memory_bytes)
    request = min(work.batch_wire_bytes * work.partitions, memory.max_request_bytes)
    source, target = stack.enter_context(ends(work.stored.path))
    total = 0 if is_empty else work.wire_bytes
    sizes = (str(size) for size in (total, memory.fetch_bytes, request))
    return [sys.executable, "-m", "bench.mirror.floor", source, target, *sizes]
