"""A job of the sink: the driver plans it, tasks write with a pickled copy of it, and the driver commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.spark.sink.columns import InputColumns
from kafkafmt.spark.sink.commit import Commit, abort, recover
from kafkafmt.spark.sink.manifest import StreamBatch
from kafkafmt.spark.sink.staging import (
    Owner,
    StagedSegment,
    ensure_shared,
    new_attempt,
    new_name,
    remove_unused,
)
from kafkafmt.spark.sink.store import StoreCommit, abort_store, stage
from kafkafmt.spark.sink.writing import write_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkafmt.spark.sink.options import WriteOptions

# The property with the query's id in tasks of a stream. The checkpoint contains the id, so a restart keeps it.
_QUERY = "sql.streaming.queryId"


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """The segments that a successful task staged, and the id of its streaming query or its `txnAppId`."""

    task: int
    staging: str
    query: str | None
    segments: tuple[StagedSegment, ...]


@dataclass(frozen=True)
class SinkJob:
    """A write of a DataFrame, or of a micro-batch of a stream, to a log directory.

    is_left_out: whether the write was already committed, so that its tasks write nothing.
    """

    options: WriteOptions
    columns: InputColumns
    overwrite: bool
    staging: str
    owner: Owner | None
    is_left_out: bool = False

    @classmethod
    def plan(cls, options: WriteOptions, schema: StructType, *, overwrite: bool) -> SinkJob:
        """Plan a write. Creates the log directory if it is missing, and finishes commits of a killed driver in it.

        Raises ValueError for columns that cannot be written, and if the folder is a partition folder;
        DirectoryLockedError, before anything is changed, if a broker runs on the folder; OSError.
        """
        columns = InputColumns.of(options, schema)
        if options.folder.is_dir() and PartitionLog(options.folder).segments():
            raise ValueError(
                f"{options.folder}: expected a log directory, found segments: a partition's folder"
            )
        recover(options.folder)
        batch = options.transaction
        is_left_out = batch is not None and batch.is_committed(options.folder)
        return cls(options, columns, overwrite, new_name(), Owner.here(), is_left_out)

    def write(self, rows: Iterable[pa.RecordBatch]) -> TaskResult:
        """Write the rows of a task to the staging folder. Raises the errors of `write_task`."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        query = None if context is None else context.getLocalProperty(_QUERY)
        if self.options.transaction is not None:
            query = self.options.transaction.query
        filled = (part for part in rows if len(part))
        first = next(filled, None)
        segments: Sequence[StagedSegment] = ()
        if self.is_left_out:
            deque(filled, maxlen=0)  # Spark expects its tasks to read all rows
            first = None
        if first is not None:
            segments = self._staged(chain([first], filled), query)
        return TaskResult(task, self.staging, query, tuple(segments))

    def _staged(self, rows: Iterable[pa.RecordBatch], query: str | None) -> Sequence[StagedSegment]:
        owner = None if self.owner is None else replace(self.owner, query=query)
        folder = self.options.folder
        if not isinstance(folder, Path):
            return stage(
                folder,
                self.staging,
                owner,
                lambda attempt: write_task(rows, attempt, self.columns, self.options),
            )
        ensure_shared(folder)
        with lock_log_directory(folder):
            attempt = new_attempt(folder, self.staging, owner)
            try:
                return write_task(rows, attempt, self.columns, self.options)
            except BaseException:
                remove_unused(folder / self.staging)
                raise

    def commit(self, results: Sequence[TaskResult], batch_number: int | None = None) -> None:
        """Commit what the tasks staged. Does nothing for a batch that was committed before.

        batch_number: the number of a stream's micro-batch. Raises the errors of `Commit.run`.
        """
        staged = sorted((result for result in results if result.segments), key=lambda result: result.task)
        batch = self.options.transaction
        if not staged and batch is None:
            return
        if batch_number is not None:
            query = staged[0].query
            if query is None:
                raise ValueError(
                    "expected Spark to pass the id of the query to its tasks, found none: it identifies a batch"
                )
            batch = StreamBatch(query, batch_number)
        segments = [segment for result in staged for segment in result.segments]
        folder, keeps_offsets = self.options.folder, self.columns.keeps_offsets
        staging = staged[0].staging if staged else self.staging
        if isinstance(folder, Path):
            Commit(folder, keeps_offsets, self.overwrite).run(staging, segments, batch)
            return
        query = None if batch is None else batch.query
        owner = None if self.owner is None else replace(self.owner, query=query)
        commit = StoreCommit(folder, keeps_offsets=keeps_offsets, overwrite=self.overwrite)
        commit.run(staging, segments, batch, owner)

    def abort(self, results: Sequence[TaskResult]) -> None:
        """Remove what the tasks staged, or finish the commit if it has begun."""
        names = {result.staging for result in results}
        folder = self.options.folder
        if isinstance(folder, Path):
            abort(folder, {self.staging, *names})
        else:
            abort_store(folder, {self.staging, *names})
