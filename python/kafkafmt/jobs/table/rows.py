"""What a table has of one key."""

from __future__ import annotations

from typing import NamedTuple

from kafkafmt.types import TopicPartition


class TableRow(NamedTuple):
    """The latest value of a key. timestamp: in milliseconds, -1 for none, as is timestamp_type."""

    topic_partition: TopicPartition
    key: bytes
    value: bytes
    timestamp: int
    offset: int
    timestamp_type: int
