"""`format("kafkafmt")`: log directories and segment files as a DataFrame, a row a record or a batch, and back.

    spark.dataSource.register(KafkafmtDataSource)
    frame = spark.read.format("kafkafmt").load("/var/lib/kafka")
    stream = spark.readStream.format("kafkafmt").load("/var/lib/kafka")
    frame.write.format("kafkafmt").mode("append").save("/backup")

Options are checked when the DataFrame is made, paths and offsets when it is planned, both on the driver; the rows
are built, or written, where the tasks run, and what they wrote is there once the driver says so. An error ends in
one line: `kafkafmt.spark.first_line` takes it out of Spark's traces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

from kafkafmt.spark.kafka_data_source import KafkaBatchesDataSource
from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.sink.job import SinkJob, TaskResult
from kafkafmt.spark.sink.options import WriteOptions
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.spark.source.planning import ReadTask, plan
from kafkafmt.spark.source.reading import read_split
from kafkafmt.spark.source.schema import OutputColumns, spark_schema, table_schema
from kafkafmt.spark.source.streaming import LogSource
from kafkafmt.spark.streaming import StreamReader, stream_reader
from kafkafmt.spark.tables import is_table, options_of, table_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KafkafmtDataSource(DataSource):
    """Kafka's logs, read and written without a broker; the README has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt"

    def schema(self) -> str | StructType:
        with PlainErrors():
            options = ReadOptions.parse_any(table_options(self.options))
            return table_schema(options, self.options) if is_table(self.options) else spark_schema(options)

    def reader(self, schema: StructType) -> KafkafmtReader:
        with PlainErrors():
            options = ReadOptions.parse(options_of(self.options, schema))
            return KafkafmtReader(options, OutputColumns.of(options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return stream_reader(LogSource(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> KafkafmtWriter:
        with PlainErrors():
            options = WriteOptions.parse(self.options)
            return KafkafmtWriter(SinkJob.plan(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkafmtStreamWriter:  # noqa: N802
        with PlainErrors():
            options = WriteOptions.parse(self.options, streaming=True)
            if overwrite:
                raise ValueError(
                    "outputMode complete: a log cannot be replaced batch by batch; expected append"
                )
            return KafkafmtStreamWriter(SinkJob.plan(options, schema, overwrite=False))


class KafkafmtReader(DataSourceReader):
    """Reads what the options name, with the columns of the DataFrame.

    It takes no filters: up to 4.3 PySpark keeps what was planned with some for all that is read of the DataFrame, so
    that rows would be missing from another query of it, and from a join with itself.
    """

    def __init__(self, options: ReadOptions, output: OutputColumns) -> None:
        self._options = options
        self._output = output

    def partitions(self) -> list[ReadTask]:
        with PlainErrors():
            return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        with PlainErrors():
            for split in partition.splits:
                yield from read_split(split, self._options, self._output)


class KafkafmtWriter(DataSourceArrowWriter):
    """Writes a DataFrame: all of it is there once it is committed, or nothing."""

    def __init__(self, job: SinkJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        with PlainErrors():
            return self._job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with PlainErrors():
            self._job.commit(_results(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with PlainErrors():
            self._job.abort(_results(messages))


class KafkafmtStreamWriter(DataSourceStreamArrowWriter):
    """Writes a micro-batch. Spark makes one for the tasks, and another to commit what they wrote."""

    def __init__(self, job: SinkJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        with PlainErrors():
            return self._job.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with PlainErrors():
            self._job.commit(_results(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with PlainErrors():
            self._job.abort(_results(messages))


# What `register` makes known to a session.
SOURCES = (KafkafmtDataSource, KafkaBatchesDataSource)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Those of tasks that succeeded."""
    return [message for message in messages if isinstance(message, TaskResult)]
