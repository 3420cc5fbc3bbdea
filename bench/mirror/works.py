"""What is mirrored: topics by codec, and by the size of their batches; every partition holds the same segment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
MOST_OF_DEEP = 0.1
SMALL_SEGMENT_BYTES = 2 * MIB  # of small batches, of which one a partition goes out in a request


@dataclass(frozen=True)
class Work:
    """A topic to be mirrored. most_of_deep: what raw may take of the processors beside deep, where that is a target."""

    segment: Segment
    partitions: int = PARTITIONS
    most_of_deep: float | None = None

    @property
    def label(self) -> str:
        size, codec = self.segment.batch_bytes, self.segment.codec
        if size == ONE_RECORD:
            return f"{codec.name.lower()}, one record a batch"
        return f"{codec.name.lower()}, batches of {size // KIB} KiB"

    @property
    def topic(self) -> str:
        return f"bench-{self.segment.name}"

    @property
    def stored(self) -> StoredSegment:
        return stored(self.segment)

    @property
    def records(self) -> int:
        return self.stored.records * self.partitions

    @property
    def batches(self) -> int:
        return self.stored.batches * self.partitions

    @property
    def gigabytes(self) -> float:
        """Of batches before compression."""
        return self.stored.raw_bytes * self.partitions / 1e9

    @property
    def wire_gigabytes(self) -> float:
        """Of batches as they are stored and sent."""
        return self.stored.size_in_bytes * self.partitions / 1e9


def all_works(segment_bytes: int) -> Iterator[Work]:
    """By codec, of batches as producers make them by default and of large ones; then of small ones."""
    for codec, batch_bytes in BATCH_BYTES.items():
        most = None if codec == Codec.NONE else MOST_OF_DEEP
        for size in (batch_bytes, LARGE_BATCH_BYTES):
            yield Work(Segment(codec, VALUE_SIZE, size, size=segment_bytes), most_of_deep=most)
    for codec in (Codec.GZIP, Codec.LZ4):
        yield Work(Segment(codec, VALUE_SIZE, ONE_RECORD, size=min(segment_bytes, SMALL_SEGMENT_BYTES)))
