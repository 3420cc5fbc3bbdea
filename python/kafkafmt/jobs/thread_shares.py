"""Which thread reads a partition."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from kafkafmt.types import TopicPartition


def shares_of(partitions: Iterable[TopicPartition], threads: int) -> list[list[TopicPartition]]:
    """Return the partitions of each thread. Neighbours have different threads; new partitions do not move others.

    >>> partitions = [TopicPartition("orders", number) for number in range(3)]
    >>> [[one.partition for one in share] for share in shares_of(partitions, 2)]
    [[0, 2], [1]]
    """
    shares: list[list[TopicPartition]] = [[] for _ in range(threads)]
    for one in partitions:
        shares[(zlib.crc32(one.topic.encode()) + one.partition) % threads].append(one)
    return shares
