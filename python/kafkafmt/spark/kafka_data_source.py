"""`format("kafkafmt.kafka")`: read and write the batches of Kafka's partitions as stored, a row each (KIP-712).

    frame = spark.readStream.format("kafkafmt.kafka").option("kafka.bootstrap.servers", "a:9092")
    stream = frame.option("subscribe", "orders").load().writeStream.format("kafkafmt.kafka")
    stream.option("kafka.bootstrap.servers", "b:9092").option("checkpointLocation", "/checkpoint").start()

Modules that need kafka-python are imported when they are used. So the source can be registered without it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from kafkafmt.spark.one_line_errors import OneLineErrors
from kafkafmt.spark.reader import Reader
from kafkafmt.spark.sink.options import OF_STREAMS
from kafkafmt.spark.tables import is_table
from kafkafmt.spark.writers import StreamWriter, Writer

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafkafmt.spark.stream_reader import StreamReader


class KafkaBatchesDataSource(DataSource):
    """Reads and writes the batches of Kafka's partitions. The page "Spark" of the documentation has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt.kafka"

    def schema(self) -> str:
        from kafkafmt.spark.kafka.options import KafkaReadOptions
        from kafkafmt.spark.kafka.reading import COLUMN_TYPES
        from kafkafmt.spark.source.schema import ddl

        with OneLineErrors():
            if is_table(self.options):
                raise ValueError(
                    "a table of the catalog: Spark tells none of its options to its readers, and passwords may be "
                    "among them; expected CREATE TEMPORARY VIEW ... USING kafkafmt.kafka OPTIONS (...)"
                )
            return ddl(COLUMN_TYPES, KafkaReadOptions.parse_any(self.options).columns or COLUMN_TYPES)

    def reader(self, schema: StructType) -> Reader:
        from kafkafmt.spark.kafka.offset_stream import plan
        from kafkafmt.spark.kafka.options import KafkaReadOptions
        from kafkafmt.spark.kafka.reading import COLUMN_TYPES, read_range
        from kafkafmt.spark.source.schema import OutputColumns

        with OneLineErrors():
            options = KafkaReadOptions.parse(self.options)
            output = OutputColumns.among(COLUMN_TYPES, options.columns, schema)
            return Reader(partial(plan, options), partial(read_range, options=options, output=output))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from kafkafmt.spark.kafka.streaming import KafkaSource
        from kafkafmt.spark.streaming import stream_reader

        return stream_reader(KafkaSource(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        from kafkafmt.spark.kafka.writing import SendJob

        with OneLineErrors():
            if overwrite:
                raise ValueError("mode overwrite: a topic cannot be replaced; expected append")
            return Writer(SendJob.parse(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from kafkafmt.spark.kafka.writing import SendJob

        with OneLineErrors():
            if overwrite:
                raise ValueError("outputMode complete: a topic cannot be replaced; expected append")
            return StreamWriter(SendJob.parse(self.options, schema, more=OF_STREAMS))
