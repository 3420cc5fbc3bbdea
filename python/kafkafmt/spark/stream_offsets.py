"""The offsets of a stream as Spark keeps them in a query's checkpoint, and the error for records that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from kafkafmt.types import TopicPartition

# The next offset to read of each partition.
Offsets: TypeAlias = Mapping[TopicPartition, int]


class DataLossError(OSError):
    """Records that a stream was to read next are not there any more."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source writes them, {"topic": {"0": 23}}; equal offsets make equal text."""
    found: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        partitions = found.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = offsets[topic_partition]
    return found


def from_json(offsets: Any) -> dict[TopicPartition, int]:
    """Raises ValueError for what `to_json` does not make: the checkpoint is that of another source."""
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in offsets.items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f'checkpoint: expected offsets as {{"topic": {{"0": 23}}}}, found {offsets!r}'
        ) from None
