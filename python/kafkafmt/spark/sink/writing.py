"""Write the rows of a task on an executor, partition by partition, to segments in the staging folder.

A task may have rows of any number of partitions, in any order. Encoded records are buffered until a batch is full, and
batches until 512 KiB of a partition can be written. `max_buffer_bytes` bounds these buffers. Beyond it, the partitions
with the largest buffers are written. At most 64 files are open. A partition also takes some kilobytes, and index
entries of 0.5 % of its open segment.

Offsets are those of the rows, or count from 0 in each partition. Then the commit adds the end offset of the log.

All records of a batch have one log append time (KIP-32). A batch ends before a row of another timestampType, and before
a row whose timestampType is LOG_APPEND_TIME and whose timestamp differs.
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

from kafkafmt.build.builder import BatchesBuilder
from kafkafmt.columns.write import column_rows
from kafkafmt.log.batch_writer import BatchWriter, write_all
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import whole_batches
from kafkafmt.spark.sink.batches import naming, run_of
from kafkafmt.spark.sink.offsets import positions_of, renumbered
from kafkafmt.spark.sink.staging import POSITIONS_SUFFIX, SEGMENT_SUFFIXES, StagedSegment, sync
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.columns.column_rows import ColumnRows
    from kafkafmt.spark.sink.columns import InputColumns
    from kafkafmt.spark.sink.options import WriteOptions
    from kafkafmt.types import TopicPartition

# The size of the finished batches of a partition at which they are written.
_WRITE_BYTES = 512 * 1024
# The memory of an open batch beyond its records.
_BUILDER_BYTES = 5 * 1024
_OPEN_FILES = 64
_NO_TIMESTAMP = -1
# In place of a log append time, for batches whose records have their own timestamps.
_CREATE_TIME = np.iinfo(np.int64).min


def write_task(
    rows: Iterable[pa.RecordBatch], attempt: Path, columns: InputColumns, options: WriteOptions
) -> list[StagedSegment]:
    """Write all rows durably to the folder of an attempt, and return the segments, by partition and offset.

    Raises ValueError for rows that cannot be written, KafkaFormatError for invalid batches, and OSError. Then the
    folder is removed.
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
    """The partitions that a task writes. Bounds the sum of their buffers."""

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
            with naming(where):
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
        """Return for each record the log append time of its batch or _CREATE_TIME; None if all are _CREATE_TIME."""
        types = columns.get("timestampType")
        if types is None or self.options.magic == 0:  # v0 has no timestamps
            return None
        timestamps = columns.get("timestamp")
        times = np.full(len(types), self.now) if timestamps is None else timestamps.to_numpy()
        is_append_time = (types.to_numpy() == TimestampType.LOG_APPEND_TIME) & (times != _NO_TIMESTAMP)
        if not is_append_time.any():
            return None
        return np.where(is_append_time, times, _CREATE_TIME)

    def _make_room(self) -> None:
        """Flush the largest buffers until half of `max_buffer_bytes` is free."""
        for share in sorted(self.shares.values(), key=lambda share: share.waiting, reverse=True):
            if 2 * self.waiting <= self.options.max_buffer_bytes or not share.waiting:
                return
            self.waiting -= share.waiting
            share.flush()


@dataclass(frozen=True)
class _Records:
    """Records of several partitions. `offsets` is None if the commit assigns the offsets.

    append_times: for each record the log append time of its batch or _CREATE_TIME; None if all are _CREATE_TIME.
    """

    rows: ColumnRows
    offsets: NDArray[np.int64] | None
    append_times: NDArray[np.int64] | None = None

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Split the records from `start` to before `stop` where a batch must end. Yield start, stop and append time."""
        if self.append_times is None:
            yield start, stop, _CREATE_TIME
            return
        times = self.append_times[start:stop]
        cuts = [start, *(np.flatnonzero(np.diff(times)) + start + 1).tolist(), stop]
        for first, end in pairwise(cuts):
            yield first, end, int(self.append_times[first])


class _Share:
    """The rows of one partition in a task."""

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
        self._batch_writer: BatchWriter | None = None
        self._positions_size = 0

    @property
    def waiting(self) -> int:
        """The bytes in memory that are not written yet."""
        of_builder = 0 if self._builder is None else self._builder.size_in_bytes + _BUILDER_BYTES
        return self._batches_bytes + of_builder

    def add(self, records: _Records, start: int, stop: int) -> None:
        """Add the records from `start` to before `stop`. Raises ValueError if offsets do not ascend."""
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
        """Add batches unchanged, except for their offsets if the commit assigns those. CRCs must be correct."""
        run = run_of(batches)
        if not self.task.columns.keeps_offsets:
            run, self.next_offset = renumbered(run, self.next_offset)
        self._append(run)

    def flush(self) -> None:
        """Write the buffered records and batches. Ends the open batch."""
        self._end_batch()
        self._write()

    def end_segment(self) -> None:
        """Write the indexes of the open segment. Later batches start another segment."""
        writer, self._batch_writer = self._batch_writer, None
        if writer is None:
            return
        staging = self.task.attempt.parent
        stem = str(writer.path.relative_to(staging)).removesuffix(LOG_SUFFIX)
        for suffix, entries in writer.index_entries().items():
            (staging / f"{stem}{suffix}").write_bytes(entries.tobytes())
        self.segments.append(
            StagedSegment(self.where, stem, writer.base_offset, writer.next_offset, writer.size_in_bytes)
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
            self._append(whole_batches(b"".join(batches)))

    def _append(self, run: BatchRun) -> None:
        first = 0
        while first < len(run):
            if self._batch_writer is None:
                name = f"{self.number}.{len(self.segments)}{LOG_SUFFIX}"
                base_offset = RecordBatch(run, first).base_offset
                self._batch_writer = BatchWriter(self.task.attempt / name, base_offset)
                self._positions_size = 0
            writer = self._batch_writer
            stop = first + writer.fitting(run.index[first:], self.task.options.segment_bytes)
            if stop > first:
                if not self.task.columns.keeps_offsets:
                    self._write_positions(writer, run, first, stop)
                writer.append_run(self.task.files.descriptor(writer.path), run, first, stop)
            if stop < len(run):
                self.end_segment()
            first = stop

    def _write_positions(self, writer: BatchWriter, run: BatchRun, first: int, stop: int) -> None:
        positions = positions_of(run, first, stop, writer.size_in_bytes)
        descriptor = self.task.files.descriptor(writer.path.with_suffix(POSITIONS_SUFFIX))
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
    """Files to write to, at most 64 of them open at a time. A context manager that closes them."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, int] = OrderedDict()

    def descriptor(self, path: Path) -> int:
        """Return the descriptor of a file, which is created if it is missing. Valid until the next call."""
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
