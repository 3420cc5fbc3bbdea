"""For streams: offsets as in the checkpoint of a query, and what happens if records were deleted unread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from kafkafmt.scanning.data_loss import DataLossError
from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

# The next offset to read of each partition.
Offsets: TypeAlias = Mapping[TopicPartition, int]


class Losses:
    """Handles records that were deleted before the stream read them: raises DataLossError, or logs a warning once."""

    def __init__(self, *, is_error: bool) -> None:
        self._is_error = is_error
        self._reported: set[str] = set()

    def report_missing(self, start: Offsets, there: AbstractSet[TopicPartition]) -> None:
        """Report the partitions of `start` that no longer exist. Raises DataLossError, unless losses are warnings."""
        for one in sorted(start.keys() - there):
            self._report(f"partition {one}: expected offset {start[one]}, found no such partition")

    def first_offset(
        self, one: TopicPartition, wanted: int | None, first: int, end: int, where: str = ""
    ) -> int:
        """Return the offset at which to continue: `wanted`, or the nearest one in a log from `first` to `end`.

        wanted: None for a new partition, which begins at `first`. where: text that identifies the log at the end of a
        message. Raises DataLossError if `wanted` is outside the log, unless losses are warnings.
        """
        if wanted is None:
            return first
        expected = f"partition {one}: expected offset {wanted}, found the log to"
        if wanted < first:
            self._report(f"{expected} begin at {first}{where}")
            return first
        if wanted > end:
            self._report(f"{expected} end at {end}{where}")
            return end
        return wanted

    def _report(self, what: str) -> None:
        if self._is_error:
            raise DataLossError(f"{what}; failOnDataLoss=false continues with the remaining records")
        if what not in self._reported:
            self._reported.add(what)
            _LOG.warning("%s: continuing with the remaining records", what)


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
