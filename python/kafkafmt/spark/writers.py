"""Spark's writers. They call a `WriteJob`, which writes the rows of tasks, and commits or aborts the write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kafkafmt.spark.one_line_errors import OneLineErrors

if TYPE_CHECKING:
    import pyarrow as pa


class WriteJob(Protocol):
    """A write, or a micro-batch of a stream. The driver plans it and pickles it to the tasks."""

    def write(self, rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, and return a message for `commit`."""

    def commit(self, results: list[Any], batch_number: int | None = None) -> None:
        """Commit what the tasks wrote.

        results: the messages of the tasks that succeeded. batch_number: the number of a stream's micro-batch.
        """

    def abort(self, results: list[Any]) -> None:
        """Undo what the tasks wrote, as far as possible. results: as for `commit`."""


class Writer(DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with OneLineErrors():
            return self._job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with OneLineErrors():
            self._job.commit(_results(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with OneLineErrors():
            self._job.abort(_results(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch. Spark creates one for the tasks, and another for the commit."""

    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with OneLineErrors():
            return self._job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with OneLineErrors():
            self._job.commit(_results(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with OneLineErrors():
            self._job.abort(_results(messages))


def _results(messages: list[WriterCommitMessage | None]) -> list[WriterCommitMessage]:
    """Return the messages of the tasks that succeeded."""
    return [message for message in messages if message is not None]
