"""The offsets of a stream as Spark keeps them in a query's checkpoint, and what becomes of records that are gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

# The next offset to read of each partition.
Offsets: TypeAlias = Mapping[TopicPartition, int]


class DataLossError(OSError):
    """Records that a stream was to read next are not there any more."""


class Losses:
    """Records that a stream was to read next and that are gone: DataLossError, or each a warning, once, to go on."""

    def __init__(self, *, is_error: bool) -> None:
        self._is_error = is_error
        self._told: set[str] = set()

    def look_for_partitions(self, start: Offsets, there: AbstractSet[TopicPartition]) -> None:
        """Partitions that are to be read on, and are not there."""
        for one in sorted(start.keys() - there):
            self._tell(f"partition {one}: expected offset {start[one]}, found no such partition")

    def first_offset(
        self, one: TopicPartition, wanted: int | None, first: int, end: int, where: str = ""
    ) -> int:
        """Where reading goes on that is to do so at offset `wanted`, in a log from `first` to `end`; None: at `first`.

        where: behind what is told, which log that is.
        """
        if wanted is None:
            return first
        expected = f"partition {one}: expected offset {wanted}, found the log to"
        if wanted < first:
            self._tell(f"{expected} begin at {first}{where}")
            return first
        if wanted > end:
            self._tell(f"{expected} end at {end}{where}")
            return end
        return wanted

    def _tell(self, what: str) -> None:
        if self._is_error:
            raise DataLossError(f"{what}; failOnDataLoss=false goes on with what is there")
        if what not in self._told:
            self._told.add(what)
            _LOG.warning("%s: going on with what is there", what)


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
