"""What a broker has of the records that were sent to it: read from its log directory, where nothing is left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from tests.broker.broker import Broker

from bench.peers.sending import PARTITIONS
from bench.segments import Segment, stored
from kafkafmt import FileRecords


@dataclass(frozen=True)
class Values:
    """Values in any order: how many, their bytes, and the sum of these bytes."""

    count: int = 0
    size: int = 0
    checksum: int = 0

    def plus(self, other: Values, copies: int = 1) -> Values:
        return Values(
            self.count + copies * other.count,
            self.size + copies * other.size,
            self.checksum + copies * other.checksum,
        )


def expected(segment: Segment, count: int) -> Values:
    """Values of a segment, sent again and again until they are so many."""
    once = _of_segment(segment)
    copies, rest = divmod(count, once.count)
    if rest:
        raise AssertionError(f"{segment.name}: {count} records are no multiple of {once.count}")
    return Values().plus(once, copies)


@cache
def _of_segment(segment: Segment) -> Values:
    return _of_file(str(stored(segment).path))


def arrived(broker: Broker, topic: str) -> Values:
    """The values of all partitions of a topic."""
    found = Values()
    for partition in range(PARTITIONS):
        for path in (broker.log_dir / f"{topic}-{partition}").glob("*.log"):
            found = found.plus(_of_file(str(path)))
    return found


def _of_file(path: str) -> Values:
    found = Values()
    with FileRecords(path) as records:
        for columns in records.numpy_batches(["value"]):
            values = columns["value"]
            data = values.data[values.offsets[0] : values.offsets[-1]]
            found = found.plus(Values(len(values), len(data), int(np.sum(data, dtype=np.uint64))))
    return found
