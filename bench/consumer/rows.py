"""What is measured of consumers: each row one way of ours to read all records of a topic, beside other clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.clients import RATE, Target
from bench.peers.consuming import POLL, POLL_ARROW, POLL_NUMPY, RAW_RUNS
from bench.peers.names import CONFLUENT
from bench.segments import Segment
from kafkafmt import Codec

# By way of ours. RawConsumer has no records: numpy columns are made of its batches.
TARGETS: dict[str, tuple[Target, ...]] = {
    POLL_ARROW: (Target(RATE, 10, CONFLUENT),),
    POLL_NUMPY: (),
    POLL: (Target(RATE, 1.5, CONFLUENT),),
    RAW_RUNS: (),
}
VALUE_SIZES = {"100 B": 100, "1 KiB": 1024}


@dataclass(frozen=True)
class Row:
    """A topic whose partitions hold the same segment, and the way in which ours consumes it."""

    name: str
    way: str
    segment: Segment
    targets: tuple[Target, ...]


def all_rows(segment_bytes: int) -> Iterator[Row]:
    for label, value_size in VALUE_SIZES.items():
        for codec in (Codec.LZ4, Codec.NONE):
            segment = Segment(codec, value_size, size=segment_bytes)
            for way, targets in TARGETS.items():
                yield Row(f"consumer: {way}, {codec.name.lower()}, {label}", way, segment, targets)
