"""`format("kafkafmt")`: read and write log directories and segment files as DataFrames.

A row is a record, a batch, or an entity of a state: an offset of a group, a transaction.

    spark.dataSource.register(KafkafmtDataSource)
    frame = spark.read.format("kafkafmt").load("/var/lib/kafka")
    stream = spark.readStream.format("kafkafmt").load("/var/lib/kafka")
    frame.write.format("kafkafmt").mode("append").save("/backup")

The driver checks options when the DataFrame is created, and paths and offsets when it is planned. Executors read and
write the rows. Written rows become visible when the driver commits them. Errors are one line, which
`kafkafmt.spark.first_line` extracts from Spark's traces.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from kafkafmt.spark.kafka_data_source import KafkaDataSource
from kafkafmt.spark.one_line_errors import OneLineErrors
from kafkafmt.spark.reader import Reader
from kafkafmt.spark.sink.job import SinkJob
from kafkafmt.spark.sink.options import WriteOptions
from kafkafmt.spark.source.options import STATE_UNITS, ReadOptions
from kafkafmt.spark.source.reading import plan, read_task
from kafkafmt.spark.source.schema import OutputColumns, spark_schema, table_schema
from kafkafmt.spark.source.state_reading import plan_state, read_state
from kafkafmt.spark.source.streaming import LogSource
from kafkafmt.spark.stream_reader import StreamReader
from kafkafmt.spark.streaming import stream_reader
from kafkafmt.spark.tables import is_table, options_of, table_options
from kafkafmt.spark.writers import StreamWriter, Writer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class KafkafmtDataSource(DataSource):
    """Reads and writes Kafka's logs without a broker. The page "Spark" of the documentation has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt"

    def schema(self) -> str | StructType:
        with OneLineErrors():
            options = ReadOptions.parse_any(table_options(self.options))
            return table_schema(options, self.options) if is_table(self.options) else spark_schema(options)

    def reader(self, schema: StructType) -> Reader:
        with OneLineErrors():
            options = ReadOptions.parse(options_of(self.options, schema))
            output = OutputColumns.of(options, schema)
            if options.unit in STATE_UNITS:
                return Reader(
                    partial(plan_state, options), partial(read_state, options=options, output=output)
                )
            return Reader(partial(plan, options), partial(read_task, options=options, output=output))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        return stream_reader(LogSource(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        with OneLineErrors():
            options = WriteOptions.parse(self.options)
            return Writer(SinkJob.plan(options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        with OneLineErrors():
            options = WriteOptions.parse(self.options, streaming=True)
            if overwrite:
                raise ValueError(
                    "outputMode complete: a log cannot be replaced batch by batch; expected append"
                )
            return StreamWriter(SinkJob.plan(options, schema, overwrite=False))


# The data sources that `register` registers.
SOURCES = (KafkafmtDataSource, KafkaDataSource)
