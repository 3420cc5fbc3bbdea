"""What an executor writes: the rows of a task, partition by partition, into segments in the staging folder.

A task may have rows of any number of partitions, in any order. Records wait, encoded, until a batch is full, and
batches until there are enough of them to be worth a write; what waits is bounded by `max_buffer_bytes`, beyond which
the partitions with the most to write are written. Few files are open at a time. What a partition takes besides is
some kilobytes, and index entries, 0.5 % of a segment that is not complete.

Offsets are those of the rows, or count from 0 in each partition: the commit adds what comes before them.

All records of a batch have one log append time (KIP-32). A batch ends before a row of another timestampType, and before
a row whose timestampType is LOG_APPEND_TIME and whose timestamp is another.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt.batch import RecordBatch
from kafkafmt.builder import BatchesBuilder
from kafkafmt.column_rows import column_rows
from kafkafmt.log.appending import SegmentAppender, whole_batches, write_all
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.spark.sink.batches import run_of, telling
from kafkafmt.spark.sink.offsets import positions_of, renumbered
from kafkafmt.spark.sink.staging import POSITIONS_SUFFIX, SEGMENT_SUFFIXES, StagedSegment, sync
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.column_rows import ColumnRows
    from _kafkafmt.scan import BatchRun
    from kafkafmt.spark.sink.columns import InputColumns
    from kafkafmt.spark.sink.options import WriteOptions
    from kafkafmt.types import TopicPartition

# Batches of a partition that are worth a write.
_WRITE_BYTES = 512 * 1024
# What an open batch takes beside its records.
_BUILDER_BYTES = 5 * 1024
_OPEN_FILES = 64
_NO_TIMESTAMP = -1
# What stands for a batch whose records have timestamps of their own.
_CREATE_TIME = np.iinfo(np.int64).min


def write_task(
    rows: Iterable[pa.RecordBatch], attempt: Path, columns: InputColumns, options: WriteOptions
) -> list[StagedSegment]:
    """Write all rows into the folder of an attempt, durably; what is there, by partition and offset.

    Nothing is left where it raises: ValueError for rows that cannot be written, KafkaFormatError for batches that
    are none, OSError.
    """
    try:
        task = _Task(attempt, columns, options)
        with task.files:
            for part in rows:
                task.add(part)
            return task.finish()
    except BaseException:
        shutil.rmtree(attempt, ignore_errors=True)
        raise


class _Task:
    """The shares that a task has of partitions, and what bounds them as a whole."""

    def __init__(self, attempt: Path, columns: InputColumns, options: WriteOptions) -> None:
        self.attempt = attempt
        self.columns = columns
        self.options = options
        self.now = int(time.time() * 1000)
        self.files = _Files()
        self.shares: dict[TopicPartition, _Share] = {}
        self.waiting = 0

    def add(self, rows: pa.RecordBatch) -> None:
        found = self.columns.sorted(rows)
        is_batches = "batch" in found.content.schema.names
        part = found.content.column("batch") if is_batches else self._records(found.content)
        for where, start, stop in found.ranges:
            share = self.shares.get(where)
            if share is None:
                share = self.shares[where] = _Share(self, where, len(self.shares))
            before = share.waiting
            with telling(where):
                if isinstance(part, _Records):
                    share.add(part, start, stop)
                else:
                    share.add_batches(part.slice(start, stop - start))
            self.waiting += share.waiting - before
            if self.waiting > self.options.max_buffer_bytes:
                self._make_room()

    def finish(self) -> list[StagedSegment]:
        for share in self.shares.values():
            share.flush()
            share.end_segment()
        staged = [segment for share in self.shares.values() for segment in share.segments]
        suffixes = SEGMENT_SUFFIXES if self.columns.keeps_offsets else (*SEGMENT_SUFFIXES, POSITIONS_SUFFIX)
        staging = self.attempt.parent
        sync([staging / f"{segment.stem}{suffix}" for segment in staged for suffix in suffixes])
        sync([self.attempt])
        return staged

    def _records(self, content: pa.RecordBatch) -> _Records:
        columns = {name: content.column(name) for name in content.schema.names}
        timestamps = columns.get("timestamp")
        if timestamps is None:
            timestamps = np.full(len(content), self.now)
        offsets = columns.get("offset")
        (rows,) = column_rows(
            timestamps, columns.get("key"), columns["value"], columns.get("headers"), offsets
        )
        return _Records(rows, None if offsets is None else offsets.to_numpy(), self._append_times(columns))

    def _append_times(self, columns: Mapping[str, pa.Array]) -> NDArray[np.int64] | None:
        """For each record the log append time of its batch, or _CREATE_TIME; None if that is so for all."""
        types = columns.get("timestampType")
        if types is None or self.options.magic == 0:  # which has no timestamps
            return None
        timestamps = columns.get("timestamp")
        times = np.full(len(types), self.now) if timestamps is None else timestamps.to_numpy()
        is_append_time = (types.to_numpy() == TimestampType.LOG_APPEND_TIME) & (times != _NO_TIMESTAMP)
        if not is_append_time.any():
            return None
        return np.where(is_append_time, times, _CREATE_TIME)

    def _make_room(self) -> None:
        """Write what most waits for, until half as much waits as may."""
        for share in sorted(self.shares.values(), key=lambda share: share.waiting, reverse=True):
            if 2 * self.waiting <= self.options.max_buffer_bytes or not share.waiting:
                return
            self.waiting -= share.waiting
            share.flush()


@dataclass(frozen=True)
class _Records:
    """Records of several partitions; `offsets` where these are kept.

    append_times: for each record the log append time of its batch, or _CREATE_TIME; None if that is so for all.
    """

    rows: ColumnRows
    offsets: NDArray[np.int64] | None
    append_times: NDArray[np.int64] | None = None

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The records from `start` to `stop`, cut where a batch must end: start, stop and log append time of each."""
        if self.append_times is None:
            yield start, stop, _CREATE_TIME
            return
        times = self.append_times[start:stop]
        cuts = [start, *(np.flatnonzero(np.diff(times)) + start + 1).tolist(), stop]
        for first, end in pairwise(cuts):
            yield first, end, int(self.append_times[first])


class _Share:
    """The rows of one partition that a task has."""

    def __init__(self, task: _Task, where: TopicPartition, number: int) -> None:
        self.task = task
        self.where = where
        self.number = number
        self.segments: list[StagedSegment] = []
        self.next_offset = 0
        self._builder: BatchesBuilder | None = None
        self._append_time = _CREATE_TIME
        self._batches: list[bytes] = []
        self._batches_bytes = 0
        self._appender: SegmentAppender | None = None
        self._positions_size = 0

    @property
    def waiting(self) -> int:
        """Bytes in memory that are to be written."""
        of_builder = 0 if self._builder is None else self._builder.size_in_bytes + _BUILDER_BYTES
        return self._batches_bytes + of_builder

    def add(self, records: _Records, start: int, stop: int) -> None:
        """Add the records from `start` to `stop`."""
        if records.offsets is not None:
            self._ensure_ascending(records.offsets[start:stop])
        for first, end, append_time in records.runs(start, stop):
            if self._builder is not None and append_time != self._append_time:
                self._end_batch()
            if self._builder is None:
                self._builder = self._new_builder(append_time)
            for batch in self._builder.add_rows(records.rows, first, end):
                self._take(batch)
            if records.offsets is not None:
                self.next_offset = int(records.offsets[end - 1]) + 1
            else:
                self.next_offset += end - first

    def add_batches(self, batches: pa.Array) -> None:
        """Add batches, whose CRC has to hold, as they are, but for their offsets where these are not kept."""
        run = run_of(batches)
        if not self.task.columns.keeps_offsets:
            run, self.next_offset = renumbered(run, self.next_offset)
        self._append(run)

    def flush(self) -> None:
        """Write what waits; a batch that is not full ends here."""
        self._end_batch()
        self._write()

    def end_segment(self) -> None:
        """Write the indexes of the segment that grows; what follows goes into another."""
        appender, self._appender = self._appender, None
        if appender is None:
            return
        staging = self.task.attempt.parent
        stem = str(appender.path.relative_to(staging)).removesuffix(LOG_SUFFIX)
        for suffix, entries in appender.index_entries().items():
            (staging / f"{stem}{suffix}").write_bytes(entries.tobytes())
        self.segments.append(
            StagedSegment(
                self.where, stem, appender.base_offset, appender.next_offset, appender.size_in_bytes
            )
        )

    def _end_batch(self) -> None:
        if self._builder is not None:
            self._take(self._builder.finish())
            self._builder = None

    def _new_builder(self, append_time: int) -> BatchesBuilder:
        options = self.task.options
        self._append_time = append_time
        is_create_time = append_time == _CREATE_TIME
        return BatchesBuilder(
            batch_size=options.batch_size,
            base_offset=self.next_offset,
            timestamp_type=TimestampType.CREATE_TIME if is_create_time else TimestampType.LOG_APPEND_TIME,
            log_append_time=None if is_create_time else append_time,
            magic=options.magic,
            codec=options.codec,
            level=options.level,
        )

    def _take(self, batch: bytes) -> None:
        self._batches.append(batch)
        self._batches_bytes += len(batch)
        if self._batches_bytes >= _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        batches, self._batches, self._batches_bytes = self._batches, [], 0
        if batches:
            self._append(whole_batches(b"".join(batches), 0))

    def _append(self, run: BatchRun) -> None:
        first = 0
        while first < len(run):
            if self._appender is None:
                name = f"{self.number}.{len(self.segments)}{LOG_SUFFIX}"
                base_offset = RecordBatch(run, first).base_offset
                self._appender = SegmentAppender(self.task.attempt / name, base_offset)
                self._positions_size = 0
            appender = self._appender
            stop = first + appender.fitting(run.index[first:], self.task.options.segment_bytes)
            if stop > first:
                if not self.task.columns.keeps_offsets:
                    self._write_positions(appender, run, first, stop)
                appender.append_run(self.task.files.descriptor(appender.path), run, first, stop)
            if stop < len(run):
                self.end_segment()
            first = stop

    def _write_positions(self, appender: SegmentAppender, run: BatchRun, first: int, stop: int) -> None:
        positions = positions_of(run, first, stop, appender.size_in_bytes)
        descriptor = self.task.files.descriptor(appender.path.with_suffix(POSITIONS_SUFFIX))
        write_all(descriptor, memoryview(positions.tobytes()), self._positions_size)
        self._positions_size += positions.nbytes

    def _ensure_ascending(self, offsets: NDArray[np.int64]) -> None:
        wrong = np.flatnonzero(offsets[1:] <= offsets[:-1]) + 1
        row = 0 if offsets[0] < self.next_offset else int(wrong[0]) if len(wrong) else None
        if row is not None:
            lowest = offsets[row - 1] + 1 if row else self.next_offset
            raise ValueError(
                f"column offset: expected {lowest} or more, found {offsets[row]}: offsets have to ascend "
                'in each task, as after repartition("topic", "partition").sortWithinPartitions("offset")'
            )


class _Files:
    """Files that are written to, of which few are open at a time. A context manager that closes them."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        """Of a file, made where it is not there; valid until the next call."""
        found = self._open.pop(path, None)
        if found is None:
            if len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            found = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._open[path] = found
        return found

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
