"""Cut ranges of offsets into tasks, as Spark's Kafka source does for `minPartitions` and `maxRecordsPerPartition`.

Ranges are cut at any offset, also within a batch. Then two tasks read the batch, and each returns its own records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class RecordRange:
    """The offsets of a partition from `start` to before `end`."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. Compaction and markers may leave fewer records."""
        return self.end - self.start


def cut_ranges(
    ranges: Iterable[RecordRange], least: int | None = None, most_records: int | None = None
) -> list[RecordRange]:
    """Return the ranges that are not empty, cut into tasks.

    least: about how many ranges to return, if there are fewer. Large ranges are cut into more parts than small ones.
    most_records: the most offsets of a range.
    """
    filled = [one for one in ranges if one.size > 0]
    if most_records is not None:
        filled = [part for one in filled for part in _parts(one, math.ceil(one.size / most_records))]
    if least is None or len(filled) >= least:
        return filled
    total = sum(one.size for one in filled)
    # Small ranges stay whole. The remaining parts are divided among the large ranges alone.
    is_small = [_part_count(one.size, total, least) == 1 for one in filled]
    total -= sum(one.size for one, small in zip(filled, is_small, strict=True) if small)
    left = max(least - sum(is_small), 1)
    return [
        part
        for one, small in zip(filled, is_small, strict=True)
        for part in _parts(one, 1 if small else _part_count(one.size, total, left))
    ]


def _part_count(size: int, total: int, parts: int) -> int:
    """Return the number of parts in proportion to a size, at least one. Halves are rounded up, as in Java."""
    return max(math.floor(size / total * parts + 0.5), 1)


def _parts(one: RecordRange, count: int) -> Iterator[RecordRange]:
    """Yield `count` parts of about equal size, without empty ones."""
    start = one.start
    for part in range(count):
        end = start + (one.end - start) // (count - part)
        if end > start:
            yield RecordRange(one.topic_partition, start, end)
        start = end
