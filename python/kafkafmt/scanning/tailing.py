"""Follow a source that grows: the records that are added to it, as they come.

The source is looked at again and again. What is new is read by tasks, as a scan reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

from kafkafmt._util.closing import Closing
from kafkafmt.scanning.data_loss import OffsetLosses
from kafkafmt.scanning.tasks import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

    from kafkafmt.scanning.source import RecordSource
    from kafkafmt.scanning.tasks import ScanTask
    from kafkafmt.types import TopicPartition

_LOST = "a new scan reads the remaining records"


@dataclass(frozen=True)
class TailStart:
    """Where a tail begins.

    offsets: the next one of each partition. follows_new: also read partitions that appear later, from their beginnings.
    tasks: makes the tasks of ranges of a source.
    """

    source: RecordSource
    offsets: Mapping[TopicPartition, int]
    follows_new: bool
    tasks: Callable[[RecordSource, Mapping[TopicPartition, OffsetRange]], Sequence[ScanTask]]


@dataclass(frozen=True)
class TailOptions:
    """When a tail ends, and how often it looks for new records.

    rows: the most that it yields. seconds: how long it waits; the records that are there at that time are read. None
    for no limit. poll_seconds: the pause between two looks that find nothing.
    """

    rows: int | None = None
    seconds: float | None = None
    poll_seconds: float = 1.0


class RecordTail(Closing):
    """An iterator of the record batches that are added to a source. `Scan.tail` makes it.

    It ends at its limits, or when `close` is called, which any thread may do. That closes its files and connections.

    Raises DataLossError if records were deleted before they were read, and what the scan raises.
    """

    def __init__(self, start: TailStart, options: TailOptions) -> None:
        self._start, self._options = start, options
        self._closed = Event()
        self._rows = self._read()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._rows)

    def close(self) -> None:
        """End the iteration. A thread that waits for records then gets no more."""
        self._closed.set()
        with suppress(ValueError):  # another thread is in `next`, and sees the event
            self._rows.close()

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        options, left = self._options, self._options.rows
        ends_at = None if options.seconds is None else time.monotonic() + options.seconds
        source, offsets = self._start.source, dict(self._start.offsets)
        losses = OffsetLosses(is_error=True, remedy=_LOST)
        while left != 0 and not self._closed.is_set():
            is_last = ends_at is not None and time.monotonic() >= ends_at
            source = source.refreshed(offsets, has_new=self._start.follows_new)
            ranges = self._unread(source, offsets, losses)
            for rows in self._read_ranges(source, ranges):
                part = rows if left is None else rows.slice(0, left)
                yield part
                left = None if left is None else left - part.num_rows
                if left == 0 or self._closed.is_set():
                    return
            offsets.update((one, wanted.end) for one, wanted in ranges.items())
            if is_last:
                return
            if not any(wanted.end > wanted.start for wanted in ranges.values()):
                pause = options.poll_seconds
                self._closed.wait(
                    pause if ends_at is None else max(0.0, min(pause, ends_at - time.monotonic()))
                )

    def _unread(
        self, source: RecordSource, offsets: Mapping[TopicPartition, int], losses: OffsetLosses
    ) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges that were not read. Raises DataLossError if the source no longer has an offset."""
        found = source.ranges()
        losses.report_missing(offsets, found.keys())
        return {
            one: OffsetRange(losses.first_offset(one, offsets.get(one), start, end), end)
            for one, (start, end) in found.items()
            if one in offsets or self._start.follows_new
        }

    def _read_ranges(
        self, source: RecordSource, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> Generator[pa.RecordBatch, None, None]:
        filled = {one: wanted for one, wanted in ranges.items() if wanted.end > wanted.start}
        for task in self._start.tasks(source, filled) if filled else ():
            yield from task.read()
