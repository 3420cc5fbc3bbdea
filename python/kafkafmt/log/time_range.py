"""A range of time, which bounds the records that are read of each partition.

Timestamps need not ascend in a partition. So a range of time is a range of offsets: from the first record whose
timestamp is at or after the start, to before the first one whose timestamp is at or after the end. Spark's
`startingTimestamp` and `endingTimestamp` mean the same.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from kafkafmt.types import milliseconds


class TimeRange(NamedTuple):
    """The milliseconds since 1970 from `start_ms` to before `end_ms`; None: without a bound."""

    start_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> TimeRange:
        """Return the range between two times. Timestamps are in milliseconds, so a part of one is rounded up.

        No record has a timestamp before 1970, so a time before it counts as 1970.
        """
        return cls(*(None if time is None else _rounded_up(time) for time in (start, end)))

    @property
    def is_everything(self) -> bool:
        """Whether there is no bound."""
        return self.start_ms is None and self.end_ms is None


EVERYTHING = TimeRange()


def _rounded_up(time: datetime) -> int:
    return max(milliseconds(time, "a time") + (time.microsecond % 1000 > 0), 0)
