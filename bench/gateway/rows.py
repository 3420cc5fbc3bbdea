"""What is measured: who consumes or produces what, through the gateway and against which server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.gateway.servers import DIRECT, KAFKA_PROXY, OLD_BROKER
from bench.segments import Segment
from bench.serve.client import LIBRDKAFKA, RAW
from kafkafmt import Codec

Action = Literal["consume", "produce"]
PARTITIONS = 4
# A batch of a producer that fills its batches: four of these are a request of 1 MB.
PRODUCED_BATCH_BYTES = 256 * 1024
# Of Fetch and Produce, that all servers take and a raw client can encode.
ACTIONS: tuple[Action, ...] = ("consume", "produce")
CURRENT: dict[Action, int] = {"consume": 11, "produce": 8}
_LIBRDKAFKA_LEAST, _PROXY_LEAST, _OLD_LEAST = 0.85, 1.0, 1.0


@dataclass(frozen=True)
class Row:
    """A client, what it does, and against which server the gateway is measured."""

    client: str
    action: Action
    version: int
    segment: Segment
    against: str
    least: float

    @property
    def name(self) -> str:
        api = "Fetch" if self.action == "consume" else "Produce"
        is_current = self.version == CURRENT[self.action]
        version = "current" if is_current and self.client == LIBRDKAFKA else f"v{self.version}"
        size = self.segment.value_size
        value = f"{size // 1024} KiB" if size >= 1024 else f"{size} B"
        return f"{self.client}, {api} {version}, {self.segment.codec.name.lower()}, {value}"


NONE, LZ4 = Codec.NONE, Codec.LZ4
_ALL = ((NONE, 1024), (NONE, 100), (LZ4, 1024), (LZ4, 100))
# By client: what passes, the server to compare with, and the target.
_PASSES = (
    (LIBRDKAFKA, ((NONE, 1024), (NONE, 100), (LZ4, 1024)), DIRECT, _LIBRDKAFKA_LEAST),
    (RAW, ((NONE, 1024), (LZ4, 1024)), KAFKA_PROXY, _PROXY_LEAST),
)
# By action and version: what is converted.
_CONVERTED: tuple[tuple[Action, int, Sequence[tuple[Codec, int]]], ...] = (
    ("consume", 3, _ALL),
    ("consume", 2, ((NONE, 1024), (LZ4, 100))),
    ("produce", 2, _ALL),
    ("produce", 1, ((NONE, 1024), (NONE, 100))),
)


def all_rows() -> list[Row]:
    """The rows, in the order of the table."""
    made = [
        Row(client, action, CURRENT[action], _segment(action, codec, size), against, least)
        for client, contents, against, least in _PASSES
        for action in ACTIONS
        for codec, size in contents
    ]
    made += (
        Row(RAW, action, version, _segment(action, codec, size), OLD_BROKER, _OLD_LEAST)
        for action, version, contents in _CONVERTED
        for codec, size in contents
    )
    return made


def _segment(action: str, codec: Codec, value_size: int) -> Segment:
    if action == "consume":
        return Segment(codec, value_size)
    return Segment(codec, value_size, PRODUCED_BATCH_BYTES)
