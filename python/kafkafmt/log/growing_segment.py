"""The active segment of a log that is appended to in place, and what a crash left of it put in order.

Batches go to the file first and index entries behind them, so that no entry leads past the end. What an append
that failed has left is cut off before anybody goes on; an index entry that could not be written waits for the next
append, as an index only makes searches quick.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kafkafmt._util.files import open_regular
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.log.appending import SegmentAppender, write_all
from kafkafmt.log.indexes import (
    NO_TIMESTAMP,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from kafkafmt.log.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    Segment,
    SegmentRecords,
    begins_batch,
)
from kafkafmt.records import Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


class GrowingSegment:
    """An existing segment, which may be empty, open for appends. Not safe for threads, `flush` excepted.

    The last batch is found from where its index leads, if batches go on from there to the end of the file, else
    from its beginning. What is no whole valid batch at the end is cut off: `truncated_bytes` tells how much.

    Raises CorruptRecordError where a valid batch stands behind one that is none: that is no append that was cut
    short, and nothing is cut off; InvalidRecordError for offsets that do not ascend, and OSError.
    """

    def __init__(self, path: Path, index_interval_bytes: int) -> None:
        self.path = path
        self.truncated_bytes = 0
        segment = Segment(path, is_active=True)
        self.base_offset = segment.base_offset
        self._index_interval_bytes = index_interval_bytes
        self._indexes = {
            suffix: _GrowingIndex(path.with_suffix(suffix))
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        }
        self._flushing = threading.Lock()
        self._descriptor = open_regular(path, os.O_RDWR)
        self._is_closed = False
        try:
            with segment.open() as records:
                self._recover(segment, records)
        except BaseException:
            self.close()
            raise

    @property
    def size_in_bytes(self) -> int:
        return self._appender.size_in_bytes

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset before there is one."""
        return self._appender.next_offset

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """As `SegmentAppender.fitting`."""
        return self._appender.fitting(rows, segment_bytes)

    def append_run(self, run: BatchRun, first: int, stop: int) -> None:
        """Append batches `first` to `stop` of a run; raises as `SegmentWriter.append`, the file being as it was."""
        try:
            self._appender.append_run(self._descriptor, run, first, stop)
        except BaseException as error:
            os.ftruncate(self._descriptor, self.size_in_bytes)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            raise
        for suffix, entries in self._appender.new_index_entries().items():
            self._indexes[suffix].append(entries)

    def flush(self) -> None:
        """Make durable what was appended before this was called, in any thread. Does nothing once it is closed."""
        with self._flushing:
            if not self._is_closed:
                os.fsync(self._descriptor)

    def finish(self) -> None:
        """Make it durable with its indexes. It may grow nevertheless."""
        self.flush()
        for suffix, entries in self._appender.index_entries().items():
            self._indexes[suffix].finish(entries)

    def close(self) -> None:
        with self._flushing:
            self._is_closed = True
            os.close(self._descriptor)

    def _recover(self, segment: Segment, records: SegmentRecords) -> None:
        """Find the end, cut off what is behind it, and have the indexes tell of what is there."""
        offset_index, time_index, start = _held_against(segment, records)
        self._pass_over(records, time_index, start)
        if start and self.size_in_bytes < records.end_position:
            # What the index leads to may be a batch by its looks alone: one inside the value of a record.
            offset_index, time_index = _first(offset_index, 0), _first(time_index, 0)
            self._pass_over(records, time_index, 0)
        self._cut_off_tail(records)
        for suffix, known in ((OFFSET_INDEX_SUFFIX, offset_index), (TIME_INDEX_SUFFIX, time_index)):
            self._indexes[suffix].begin(known.entries.nbytes)
        for suffix, entries in self._appender.new_index_entries().items():
            self._indexes[suffix].append(entries)

    def _pass_over(self, records: SegmentRecords, time_index: TimeIndex, start: int) -> None:
        """Take note of all batches from `start` on, up to one that is not whole or not valid."""
        self._appender = SegmentAppender(self.path, self.base_offset, self._index_interval_bytes)
        if start:
            self._appender.resume(start, _last_entry(time_index))
        # Not the runs of a segment, which raise for a tail that is cut off here.
        runs = Records.runs(records, start, reuse_memory=True)
        while True:
            try:
                run = next(runs, None)
            except KafkaFormatError:
                return
            if run is None:
                return
            valid = run.valid()
            stop = len(run) if valid.all() else int(valid.argmin())
            self._appender.pass_over(run.index[:stop])
            if stop < len(run):
                return

    def _cut_off_tail(self, records: SegmentRecords) -> None:
        end = self.size_in_bytes
        left = records.end_position - end
        if not left:
            return
        message = f"expected whole batches up to the end of the log, found {left} bytes that begin with none"
        error = CorruptRecordError(message, position=end)
        behind = records.position_after(error)
        if behind < records.end_position:
            raise records.described(
                CorruptRecordError(f"{message}; a valid batch begins at {behind}", position=end)
            )
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)
        self.truncated_bytes = left


class _GrowingIndex:
    """The file of an index, at whose end entries are put."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._waiting = b""

    def begin(self, size: int) -> None:
        """Keep the first `size` bytes of the file, and none that it may have behind them."""
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        self._size = size

    def append(self, entries: NDArray[np.void]) -> None:
        """Put entries behind the others; those that cannot be written wait."""
        self._waiting += entries.tobytes()
        if not self._waiting:
            return
        with contextlib.suppress(OSError):
            self._write()

    def finish(self, entries: NDArray[np.void]) -> None:
        """Put entries behind the others and make them all durable."""
        self._waiting += entries.tobytes()
        self._write(durably=True)

    def _write(self, *, durably: bool = False) -> None:
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            write_all(descriptor, memoryview(self._waiting), self._size)
            if durably:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._size += len(self._waiting)
        self._waiting = b""


def _held_against(segment: Segment, records: SegmentRecords) -> tuple[OffsetIndex, TimeIndex, int]:
    """The entries of the indexes that may be kept, and where the batch of the last one begins; 0: none may be.

    A time entry that is written at the end of a segment has no offset entry beside it: it is chosen anew.
    """
    offset_index, time_index = segment.offset_index, segment.time_index
    if len(offset_index):
        offset, position = (
            int(offset_index.entries["relative_offset"][-1]),
            int(offset_index.entries["position"][-1]),
        )
        if begins_batch(records, position, segment.base_offset, segment.base_offset + offset):
            kept = int(time_index.entries["relative_offset"].searchsorted(offset, side="right"))
            return offset_index, _first(time_index, kept), position
    return _first(offset_index, 0), _first(time_index, 0), 0


def _first(index: _Index, count: int) -> _Index:
    return type(index)(index.base_offset, index.entries[:count])


def _last_entry(index: TimeIndex) -> TimestampOffset:
    found = index.last_below(2**63 - 1)
    return TimestampOffset(NO_TIMESTAMP, index.base_offset) if found is None else found
