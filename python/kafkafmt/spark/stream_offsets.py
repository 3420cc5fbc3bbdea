"""For streams: offsets as in the checkpoint of a query, and what happens if records were deleted unread."""

from __future__ import annotations

from typing import Any

from kafkafmt.scanning.data_loss import OffsetLosses, Offsets
from kafkafmt.types import TopicPartition

__all__ = ["Losses", "Offsets", "from_json", "to_json"]


class Losses(OffsetLosses):
    """What a stream does about records that were deleted before it read them: by failOnDataLoss."""

    def __init__(self, *, is_error: bool) -> None:
        super().__init__(
            is_error=is_error, remedy="failOnDataLoss=false continues with the remaining records"
        )


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets in the JSON form of Spark's Kafka source, {"topic": {"0": 23}}. Equal offsets give equal text."""
    found: dict[str, dict[str, int]] = {}
    for topic_partition in sorted(offsets):
        partitions = found.setdefault(topic_partition.topic, {})
        partitions[str(topic_partition.partition)] = offsets[topic_partition]
    return found


def from_json(offsets: Any) -> dict[TopicPartition, int]:
    """Return the offsets of the JSON form. Raises ValueError for another form: the checkpoint is of another source."""
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
