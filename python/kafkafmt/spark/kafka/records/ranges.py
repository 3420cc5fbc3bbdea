"""Cut ranges of offsets into tasks, as Spark's Kafka source does for `minPartitions` and `maxRecordsPerPartition`.

Ranges are cut at any offset, also within a batch. Then two tasks read the batch, and each returns its own records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kafkafmt.scanning.brokers.runs import PartitionRange


def cut_ranges(
    ranges: Iterable[PartitionRange], least: int | None = None, most_records: int | None = None
) -> list[PartitionRange]:
    """Return the ranges that are not empty, cut into tasks.

    least: about how many ranges to return, if there are fewer. Large ranges are cut into more parts than small ones.
    most_records: the most offsets of a range.
    """
    filled = [one for one in ranges if _size(one) > 0]
    if most_records is not None:
        filled = [part for one in filled for part in _parts(one, math.ceil(_size(one) / most_records))]
    if least is None or len(filled) >= least:
        return filled
    total = sum(_size(one) for one in filled)
    # Small ranges stay whole. The remaining parts are divided among the large ranges alone.
    is_small = [_part_count(_size(one), total, least) == 1 for one in filled]
    total -= sum(_size(one) for one, small in zip(filled, is_small, strict=True) if small)
    left = max(least - sum(is_small), 1)
    return [
        part
        for one, small in zip(filled, is_small, strict=True)
        for part in _parts(one, 1 if small else _part_count(_size(one), total, left))
    ]


def _size(one: PartitionRange) -> int:
    return one.end - one.start


def _part_count(size: int, total: int, parts: int) -> int:
    """Return the number of parts in proportion to a size, at least one. Halves are rounded up, as in Java."""
    return max(math.floor(size / total * parts + 0.5), 1)


def _parts(one: PartitionRange, count: int) -> Iterator[PartitionRange]:
    """Yield `count` parts of about equal size, without empty ones."""
    start = one.start
    for part in range(count):
        end = start + (one.end - start) // (count - part)
        if end > start:
            yield PartitionRange(one.topic_partition, start, end)
        start = end
