"""Cut ranges of offsets into ranges for tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.runs import PartitionRange


def cut_ranges(
    ranges: Iterable[PartitionRange], least: int, cluster: SourceBrokers
) -> Iterator[PartitionRange]:
    """Yield the ranges that are not empty, cut between batches into about `least` ranges."""
    filled = [one for one in ranges if one.end > one.start]
    total = sum(one.end - one.start for one in filled)
    counts = [round(least * (one.end - one.start) / total) if least > len(filled) else 1 for one in filled]
    cuts: list[set[int]] = [{one.start, one.end} for one in filled]
    for part in range(1, max(counts, default=1)):
        at = {
            one.topic_partition: one.start + (one.end - one.start) * part // count
            for one, count in zip(filled, counts, strict=True)
            if part < count
        }
        found = cluster.batch_edges(at)
        for one, offsets in zip(filled, cuts, strict=True):
            if one.topic_partition in found:
                offsets.add(min(found[one.topic_partition][1], one.end))
    for one, offsets in zip(filled, cuts, strict=True):
        for start, end in pairwise(sorted(offsets)):
            yield PartitionRange(one.topic_partition, start, end)
