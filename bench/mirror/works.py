"""What is mirrored: topics by codec, and by the size of their batches; every partition holds the same segment."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.segments import MIB, ONE_RECORD, Segment, StoredSegment, stored
from kafkafmt import Codec

PARTITIONS = 16
VALUE_SIZE = 1024
KIB = 1024
# Before compression: about 16 KiB are left of them, as producers of Kafka's own batch.size fill their batches.
BATCH_BYTES = {
    Codec.NONE: 16 * KIB,
    Codec.GZIP: 112 * KIB,
    Codec.SNAPPY: 80 * KIB,
    Codec.LZ4: 80 * KIB,
    Codec.ZSTD: 144 * KIB,
}
LARGE_BATCH_BYTES = 1000 * KIB  # below what brokers take of a batch without compression
SMALL_SEGMENT_BYTES = 2 * MIB  # of batches of one record, of which raw sends one a partition in a request


@dataclass(frozen=True)
class Work:
    """A topic to be mirrored. copies: how often each partition has the records of the segment."""

    segment: Segment
    partitions: int = PARTITIONS
    copies: int = 1

    @property
    def label(self) -> str:
        codec = self.segment.codec.name.lower()
        if self.is_of_single_records:
            return f"{codec}, one record a batch"
        return f"{codec}, batches of {self.segment.batch_bytes // KIB} KiB"

    @property
    def is_of_single_records(self) -> bool:
        return self.segment.batch_bytes == ONE_RECORD

    @property
    def is_of_large_batches(self) -> bool:
        return self.segment.batch_bytes == LARGE_BATCH_BYTES

    @property
    def topic(self) -> str:
        return f"bench-{self.segment.name}" + ("" if self.copies == 1 else f"-{self.copies}")

    @property
    def stored(self) -> StoredSegment:
        return stored(self.segment)

    @property
    def records(self) -> int:
        return self.stored.records * self.partitions * self.copies

    @property
    def wire_bytes(self) -> int:
        """Of batches as they are stored and sent."""
        return self.stored.size_in_bytes * self.partitions * self.copies

    @property
    def batch_wire_bytes(self) -> int:
        """The mean of a batch."""
        return self.stored.size_in_bytes // self.stored.batches

    @property
    def gigabytes(self) -> float:
        """Of batches before compression."""
        return self.stored.raw_bytes * self.partitions * self.copies / 1e9

    @property
    def wire_gigabytes(self) -> float:
        return self.wire_bytes / 1e9

    def of_wire_bytes(self, least: int) -> Work:
        """The same with so many copies that about `least` bytes are sent."""
        return replace(self, copies=max(1, math.ceil(least / (self.wire_bytes // self.copies))))


def all_works(segment_bytes: int) -> Iterator[Work]:
    """By codec, of batches as producers make them by default and of large ones; then of small ones."""
    for codec, batch_bytes in BATCH_BYTES.items():
        for size in (batch_bytes, LARGE_BATCH_BYTES):
            yield Work(Segment(codec, VALUE_SIZE, size, size=segment_bytes))
    for codec in (Codec.GZIP, Codec.LZ4):
        yield Work(Segment(codec, VALUE_SIZE, ONE_RECORD, size=min(segment_bytes, SMALL_SEGMENT_BYTES)))
