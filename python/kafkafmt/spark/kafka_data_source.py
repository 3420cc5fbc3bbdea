"""`format("kafkafmt.kafka")`: Kafka's partitions as a DataFrame, a row a batch as it is stored, and back (KIP-712).

    frame = spark.readStream.format("kafkafmt.kafka").option("kafka.bootstrap.servers", "a:9092")
    stream = frame.option("subscribe", "orders").load().writeStream.format("kafkafmt.kafka")
    stream.option("kafka.bootstrap.servers", "b:9092").option("checkpointLocation", "/checkpoint").start()

What needs kafka-python is imported when it is used, so that the source can be registered without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.tables import is_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from kafkafmt.spark.kafka.options import KafkaReadOptions
    from kafkafmt.spark.kafka.writing import KafkaStreamWriter, KafkaWriter
    from kafkafmt.spark.source.schema import OutputColumns
    from kafkafmt.spark.streaming import StreamReader


class KafkaBatchesDataSource(DataSource):
    """The batches of Kafka's partitions; the README has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt.kafka"

    def schema(self) -> str:
        from kafkafmt.spark.kafka.options import KafkaReadOptions
        from kafkafmt.spark.kafka.reading import COLUMN_TYPES
        from kafkafmt.spark.source.schema import ddl

        with PlainErrors():
            if is_table(self.options):
                raise ValueError(
                    "a table of the catalog: Spark tells none of its options to its readers, and passwords may be "
                    "among them; expected CREATE TEMPORARY VIEW ... USING kafkafmt.kafka OPTIONS (...)"
                )
            return ddl(COLUMN_TYPES, KafkaReadOptions.parse_any(self.options).columns or COLUMN_TYPES)

    def reader(self, schema: StructType) -> KafkaReader:
        from kafkafmt.spark.kafka.options import KafkaReadOptions
        from kafkafmt.spark.kafka.reading import COLUMN_TYPES
        from kafkafmt.spark.source.schema import OutputColumns

        with PlainErrors():
            options = KafkaReadOptions.parse(self.options)
            return KafkaReader(options, OutputColumns.among(COLUMN_TYPES, options.columns, schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from kafkafmt.spark.kafka.streaming import KafkaSource
        from kafkafmt.spark.streaming import stream_reader

        return stream_reader(KafkaSource(self.options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> KafkaWriter:
        from kafkafmt.spark.kafka.writing import KafkaWriter

        with PlainErrors():
            return KafkaWriter.plan(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KafkaStreamWriter:  # noqa: N802
        from kafkafmt.spark.kafka.writing import KafkaStreamWriter

        with PlainErrors():
            return KafkaStreamWriter.plan(self.options, schema, overwrite=overwrite)


class KafkaReader(DataSourceReader):
    """Reads what is there of the partitions that the options select."""

    def __init__(self, options: KafkaReadOptions, output: OutputColumns) -> None:
        self._options = options
        self._output = output

    def partitions(self) -> Sequence[InputPartition]:
        from kafkafmt.spark.kafka.offset_stream import plan

        with PlainErrors():
            return plan(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from kafkafmt.spark.kafka.reading import OffsetRange, read_range

        assert isinstance(partition, OffsetRange)
        with PlainErrors():
            yield from read_range(partition, self._options, self._output)
