"""What is measured: who consumes or produces what, through the gateway and against which server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bench.gateway.servers import DIRECT, KAFKA_PROXY, OLD_BROKER
from bench.segments import Segment
from bench.serve.client import LIBRDKAFKA, RAW
from kafkafmt import Codec

PARTITIONS = 4
# A batch of a producer that fills its batches: four of these are a request of 1 MB.
PRODUCED_BATCH_BYTES = 256 * 1024
# Of Fetch and Produce, that all servers take and a raw client can encode.
CURRENT = {"consume": 11, "produce": 8}
_LIBRDKAFKA_LEAST, _PROXY_LEAST, _OLD_LEAST = 0.85, 1.0, 1.0


@dataclass(frozen=True)
class Row:
    """A client, what it does, and against which server the gateway is measured."""

    client: str
    action: Literal["consume", "produce"]
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


def _segments(batch_bytes: int | None = None) -> Iterator[Segment]:
    for codec in (Codec.NONE, Codec.LZ4):
        for size in (1024, 100):
            yield Segment(codec, size) if batch_bytes is None else Segment(codec, size, batch_bytes)


def all_rows() -> list[Row]:
    """The rows, in the order of the table."""
    made: list[Row] = []
    for client, against, least in ((LIBRDKAFKA, DIRECT, _LIBRDKAFKA_LEAST), (RAW, KAFKA_PROXY, _PROXY_LEAST)):
        made += (
            Row(client, "consume", CURRENT["consume"], segment, against, least) for segment in _segments()
        )
        made += (
            Row(client, "produce", CURRENT["produce"], segment, against, least)
            for segment in _segments(PRODUCED_BATCH_BYTES)
        )
    for version in (3, 2):
        made += (Row(RAW, "consume", version, segment, OLD_BROKER, _OLD_LEAST) for segment in _segments())
    for version in (2, 1):
        made += (
            Row(RAW, "produce", version, segment, OLD_BROKER, _OLD_LEAST)
            for segment in _segments(PRODUCED_BATCH_BYTES)
        )
    return made
