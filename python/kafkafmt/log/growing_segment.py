"""The active segment of a log that is appended to in place, with its recovery after a crash.

Batches are written before their index entries, so no entry points past the end. The bytes of a failed append are cut
off at once. An index entry that could not be written is written with the next append, as indexes only speed up
searches.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kafkafmt._util.files import naming_errors, open_regular
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.log.batch_writer import BatchWriter, write_all
from kafkafmt.log.indexes import (
    NO_TIMESTAMP,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, Segment, SegmentRecords
from kafkafmt.log.segment_search import begins_batch
from kafkafmt.records.runs import sound_part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_Index = TypeVar("_Index", OffsetIndex, TimeIndex)


class GrowingSegment:
    """Open an existing segment, which may be empty, for appends. Not safe to use from several threads, except `flush`.

    The last batch is found from the last index entry, if valid batches follow it up to the end of the file. Otherwise
    all batches are read. Bytes after the last valid batch are cut off; `truncated_bytes` is their number.

    Raises CorruptRecordError, and cuts off nothing, if a valid batch follows an invalid one: no unfinished append looks
    so. Raises InvalidRecordError for offsets that do not ascend, and OSError.
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
        """The size of the file, in bytes."""
        return self._batch_writer.size_in_bytes

    @property
    def is_in_place(self) -> bool:
        """Whether `path` is still the file that was opened: it was not deleted, moved or replaced."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset if there is no batch."""
        return self._batch_writer.next_offset

    @property
    def last_leader_epoch(self) -> int:
        """The leader epoch of the last batch; -1 if there is no batch, or it has none."""
        return self._batch_writer.last_leader_epoch

    def fitting(self, rows: NDArray[np.void], segment_bytes: int) -> int:
        """Return how many batches fit, as `BatchWriter.fitting`."""
        return self._batch_writer.fitting(rows, segment_bytes)

    def append_run(self, run: BatchRun, first: int, stop: int) -> None:
        """Append batches `first` to before `stop` of a run. Raises as `SegmentWriter.append`, then without effect."""
        try:
            self._batch_writer.append_run(self._descriptor, run, first, stop)
        except BaseException:
            os.ftruncate(self._descriptor, self.size_in_bytes)
            raise
        for suffix, entries in self._batch_writer.new_index_entries().items():
            self._indexes[suffix].append(entries)

    def flush(self) -> None:
        """Flush all batches that were appended before this call to disk. Any thread may call it. Nothing if closed."""
        with self._flushing:
            if not self._is_closed:
                os.fsync(self._descriptor)

    def finish(self) -> None:
        """Flush the segment and its indexes to disk. More batches may be appended after this."""
        self.flush()
        for suffix, entries in self._batch_writer.index_entries().items():
            self._indexes[suffix].append(entries)
        for index in self._indexes.values():
            index.finish()

    def close(self) -> None:
        """Close the file. A flush that is under way ends first."""
        with self._flushing:
            self._is_closed = True
            os.close(self._descriptor)

    def _recover(self, segment: Segment, records: SegmentRecords) -> None:
        """Find the last valid batch, cut off the bytes after it, and complete the indexes."""
        offset_index, time_index, start = _held_against(segment, records)
        self._pass_over(records, time_index, start)
        if start and self.size_in_bytes < records.end_position:
            # The bytes at the index entry may only look like a batch: the value of a record may contain one.
            offset_index, time_index = _first(offset_index, 0), _first(time_index, 0)
            self._pass_over(records, time_index, 0)
        self._cut_off_tail(records)
        for suffix, known in ((OFFSET_INDEX_SUFFIX, offset_index), (TIME_INDEX_SUFFIX, time_index)):
            self._indexes[suffix].begin(known.entries.nbytes)
        for suffix, entries in self._batch_writer.new_index_entries().items():
            self._indexes[suffix].append(entries)

    def _pass_over(self, records: SegmentRecords, time_index: TimeIndex, start: int) -> None:
        """Add all batches from `start` on to the writer, up to the first incomplete or invalid one."""
        self._batch_writer = BatchWriter(self.path, self.base_offset, self._index_interval_bytes)
        if start:
            self._batch_writer.resume(start, _last_entry(time_index))
        # `runs` would raise for a tail that is cut off here.
        runs = records.whole_runs(start, reuse_memory=True)
        while True:
            try:
                run = next(runs, None)
            except KafkaFormatError:
                return
            if run is None:
                return
            sound, damage = sound_part(run)
            self._batch_writer.pass_over(sound.index)
            if damage is not None:
                return

    def _cut_off_tail(self, records: SegmentRecords) -> None:
        end = self.size_in_bytes
        left = records.end_position - end
        if not left:
            return
        message = f"expected whole batches up to the end of the log, found {left} bytes that are no batch"
        error = CorruptRecordError(message, position=end)
        following = records.position_after(error)
        if following < records.end_position:
            raise records.with_source(
                CorruptRecordError(f"{message}; a valid batch begins at {following}", position=end)
            )
        os.ftruncate(self._descriptor, end)
        os.fsync(self._descriptor)
        self.truncated_bytes = left


class _GrowingIndex:
    """The file of an index, to which entries are appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = 0
        self._waiting = b""

    def begin(self, size: int) -> None:
        """Truncate the file to `size` bytes. Creates it if it is missing."""
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)
        self._size = size

    def append(self, entries: NDArray[np.void]) -> None:
        """Append entries. If writing fails, they are kept for the next call."""
        self._waiting += entries.tobytes()
        if not self._waiting:
            return
        with contextlib.suppress(OSError):
            self._write()

    def finish(self) -> None:
        """Flush all entries to disk. Raises OSError; entries that are not written are kept for the next call."""
        self._write(durably=True)

    def _write(self, *, durably: bool = False) -> None:
        descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            with naming_errors(self._path):
                write_all(descriptor, memoryview(self._waiting), self._size)
                if durably:
                    os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._size += len(self._waiting)
        self._waiting = b""


def _held_against(segment: Segment, records: SegmentRecords) -> tuple[OffsetIndex, TimeIndex, int]:
    """Return the entries of the indexes to keep, and the position of the batch of the last one; 0 if none is kept.

    The time entry at the end of a closed segment has no offset entry, so it is chosen again.
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
