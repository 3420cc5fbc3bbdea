"""`spark.read.format("kafkafmt")`: log directories and segment files as a DataFrame, a row a record or a batch.

    spark.dataSource.register(KafkafmtDataSource)
    spark.read.format("kafkafmt").load("/var/lib/kafka")
    spark.readStream.format("kafkafmt").load("/var/lib/kafka")

Options are checked when the DataFrame is made, paths and offsets when it is planned, both on the driver; the rows
are built where the tasks run. An error ends in one line: `kafkafmt.spark.first_line` takes it out of Spark's traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.spark.source.planning import ReadTask, plan
from kafkafmt.spark.source.reading import read_split
from kafkafmt.spark.source.schema import OutputColumns, spark_schema
from kafkafmt.spark.source.streaming import StreamReader, stream_reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class KafkafmtDataSource(DataSource):
    """Kafka's logs, read without a broker; the README has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt"

    def schema(self) -> str:
        with PlainErrors():
            return spark_schema(ReadOptions.parse_any(self.options))

    def reader(self, schema: StructType) -> KafkafmtReader:
        with PlainErrors():
            options = ReadOptions.parse(self.options)
            return KafkafmtReader(options, OutputColumns.of(options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return stream_reader(self.options, schema)


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
