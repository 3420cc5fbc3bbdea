"""What happens if records were deleted before they were read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)

# The next offset to read of each partition.
Offsets: TypeAlias = Mapping[TopicPartition, int]


class DataLossError(OSError):
    """Records were deleted before they were read."""


class OffsetLosses:
    """Handles records that were deleted before they were read: raises DataLossError, or logs a warning once.

    remedy: the end of the message of an error: what reads the remaining records.
    """

    def __init__(self, *, is_error: bool, remedy: str) -> None:
        self._is_error, self._remedy = is_error, remedy
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
            raise DataLossError(f"{what}; {self._remedy}")
        if what not in self._reported:
            self._reported.add(what)
            _LOG.warning("%s: continuing with the remaining records", what)
