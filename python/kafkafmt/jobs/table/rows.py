"""A row of a table."""

from __future__ import annotations

from typing import NamedTuple

from kafkafmt.types import TopicPartition


class TableRow(NamedTuple):
    """The latest value of a key. timestamp: in milliseconds. timestamp and timestamp_type are -1 if there is none."""

    topic_partition: TopicPartition
    key: bytes
    value: bytes
    timestamp: int
    offset: int
    timestamp_type: int
