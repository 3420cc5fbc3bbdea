"""What an executor writes: the rows of a task, partition by partition, into segments in the staging folder.

A task may have rows of any number of partitions, in any order. Records wait, encoded, until a batch is full, and
batches until there are enough of them to be worth a write; what waits is bounded by `max_buffer_bytes`, beyond which
the partitions with the most to write are written. Few files are open at a time. What a partition takes besides is
some kilobytes, and index entries, 0.5 % of a segment that is not complete.

Offsets are those of the rows, or count from 0 in each partition: the commit adds what comes before them.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkafmt.batch import RecordBatch
from kafkafmt.builder import BatchesBuilder
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.appending import SegmentAppender, whole_batches, write_all, write_index
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.spark.sink.offsets import positions_of, renumbered
from kafkafmt.spark.sink.staging import POSITIONS_SUFFIX, SEGMENT_SUFFIXES, StagedSegment, sync

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.spark.sink.columns import InputColumns
    from kafkafmt.spark.sink.options import WriteOptions
    from kafkafmt.types import TopicPartition

# Batches of a partition that are worth a write.
_WRITE_BYTES = 512 * 1024
# What an open batch takes beside its records.
_BUILDER_BYTES = 5 * 1024
_OPEN_FILES = 64


def write_task(
    rows: Iterable[pa.RecordBatch], attempt: Path, columns: InputColumns, options: WriteOptions
) -> list[StagedSegment]:
    """Write all rows into the folder of an attempt, durably; what is there, by partition and offset.

    Nothing is left where it raises: ValueError for rows that cannot be written, KafkaFormatError for batches that
    are none, OSError.
    """
    try:
        task = _Task(attempt, columns, options)
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
        for where, part in self.columns.parts(rows):
            share = self.shares.get(where)
            if share is None:
                share = self.shares[where] = _Share(self, where, len(self.shares))
            before = share.waiting
            try:
                share.add(part)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"partition {where}: {error}") from None
            except KafkaFormatError as error:
                error.path = f"partition {where}"
                raise
            self.waiting += share.waiting - before
            if self.waiting > self.options.max_buffer_bytes:
                self._make_room()

    def finish(self) -> list[StagedSegment]:
        with self.files:
            for share in self.shares.values():
                share.flush()
                share.end_segment()
        staged = [segment for share in self.shares.values() for segment in share.segments]
        suffixes = SEGMENT_SUFFIXES if self.columns.keeps_offsets else (*SEGMENT_SUFFIXES, POSITIONS_SUFFIX)
        staging = self.attempt.parent
        sync([staging / f"{segment.stem}{suffix}" for segment in staged for suffix in suffixes])
        sync([self.attempt])
        return staged

    def _make_room(self) -> None:
        """Write what most waits for, until half as much waits as may."""
        for share in sorted(self.shares.values(), key=lambda share: share.waiting, reverse=True):
            if 2 * self.waiting <= self.options.max_buffer_bytes or not share.waiting:
                return
            self.waiting -= share.waiting
            share.flush()


class _Share:
    """The rows of one partition that a task has."""

    def __init__(self, task: _Task, where: TopicPartition, number: int) -> None:
        self.task = task
        self.where = where
        self.number = number
        self.segments: list[StagedSegment] = []
        self.next_offset = 0
        self._builder: BatchesBuilder | None = None
        self._batches: list[bytes] = []
        self._batches_bytes = 0
        self._appender: SegmentAppender | None = None
        self._positions_size = 0

    @property
    def waiting(self) -> int:
        """Bytes in memory that are to be written."""
        of_builder = 0 if self._builder is None else self._builder.size_in_bytes + _BUILDER_BYTES
        return self._batches_bytes + of_builder

    def add(self, rows: pa.RecordBatch) -> None:
        if "batch" in rows.schema.names:
            self._append(self._checked(rows.column("batch")))
            return
        columns = {name: rows.column(name) for name in rows.schema.names}
        if "offset" in columns:
            self._ensure_ascending(columns["offset"].to_numpy())
        timestamps = columns.get("timestamp")
        if self._builder is None:
            self._builder = self._new_builder()
        for batch in self._builder.add(
            np.full(len(rows), self.task.now) if timestamps is None else timestamps,
            columns.get("key"),
            columns["value"],
            columns.get("headers"),
            columns.get("offset"),
        ):
            self._take(batch)
        self.next_offset = (
            int(columns["offset"][-1].as_py()) + 1 if "offset" in columns else self.next_offset + len(rows)
        )

    def flush(self) -> None:
        """Write what waits; a batch that is not full ends here."""
        if self._builder is not None:
            self._take(self._builder.finish())
            self._builder = None
        self._write()

    def end_segment(self) -> None:
        """Write the indexes of the segment that grows; what follows goes into another."""
        appender, self._appender = self._appender, None
        if appender is None:
            return
        staging = self.task.attempt.parent
        stem = str(appender.path.relative_to(staging)).removesuffix(LOG_SUFFIX)
        for suffix, entries in appender.index_entries().items():
            write_index(staging / f"{stem}{suffix}", entries)
        self.segments.append(
            StagedSegment(
                self.where, stem, appender.base_offset, appender.next_offset, appender.size_in_bytes
            )
        )

    def _new_builder(self) -> BatchesBuilder:
        options = self.task.options
        return BatchesBuilder(
            batch_size=options.batch_size,
            base_offset=self.next_offset,
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
        before = np.concatenate(([self.next_offset - 1], offsets[:-1]))
        wrong = offsets <= before
        if wrong.any():
            row = int(wrong.argmax())
            raise ValueError(
                f"column offset: expected {before[row] + 1} or more, found {offsets[row]}: offsets have to ascend "
                'in each task, as after repartition("topic", "partition").sortWithinPartitions("offset")'
            )

    def _checked(self, batches: pa.Array) -> BatchRun:
        """Whole batches whose CRC holds, and their offsets, counted on where these are not kept."""
        data, ends = _joined(batches)
        run = whole_batches(data, 0)
        run.ensure_valid()
        starts = np.append(run.index["position"], len(data))
        inside = ~np.isin(ends, starts)
        if inside.any():
            raise ValueError("column batch: expected whole batches in each row, found a part of one")
        if not self.task.columns.keeps_offsets:
            run, self.next_offset = renumbered(run, self.next_offset)
        return run


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


def _joined(batches: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """The byte strings of an array without nulls, end to end as they stand there, and where each ends."""
    wide = np.int64 if pa.types.is_large_binary(batches.type) else np.int32
    _, offsets, data = batches.buffers()
    bounds = np.frombuffer(offsets, wide)[batches.offset : batches.offset + len(batches) + 1]
    view = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return view, (bounds[1:] - bounds[0]).astype(np.int64)
