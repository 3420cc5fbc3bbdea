"""`format("kafkafmt.kafka")`: read the records of brokers as Spark's Kafka source does, or stored batches as they are.

    frame = spark.read.format("kafkafmt.kafka").option("kafka.bootstrap.servers", "a:9092")
    orders = frame.option("subscribe", "orders").load()

With `unit=batches` rows are the stored batches (KIP-712):

    frame = spark.readStream.format("kafkafmt.kafka").option("unit", "batches")
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
from kafkafmt.spark.tables import is_table, options_of, table_options, with_options
from kafkafmt.spark.writers import StreamWriter, Writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyarrow import DataType
    from pyspark.sql.types import StructType

    from kafkafmt._util.options import Option
    from kafkafmt.spark.stream_reader import StreamReader
    from kafkafmt.spark.writers import WriteJob

# Columns that have a value in every row, of records and of batches.
_NEVER_NULL = ("offset", "partition", "topic", "timestamp", "timestampType", "baseOffset", "lastOffset")


class KafkaDataSource(DataSource):
    """Reads and writes records and batches of brokers. The page "Spark" of the documentation has the options."""

    @classmethod
    def name(cls) -> str:
        return "kafkafmt.kafka"

    def schema(self) -> str | StructType:
        from kafkafmt.spark.source.schema import ddl, struct_type

        with OneLineErrors():
            known, names = _columns(table_options(self.options))
            if not is_table(self.options):
                return ddl(known, names)
            return with_options(struct_type(known, names), self.options, _NEVER_NULL)

    def reader(self, schema: StructType) -> Reader:
        from kafkafmt.spark.kafka.options import unit_of

        with OneLineErrors():
            given = options_of(self.options, schema)
            read = _record_reader if unit_of(given) == "records" else _batch_reader
            return read(given, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from kafkafmt.spark.kafka.options import unit_of
        from kafkafmt.spark.kafka.records.streaming import RecordSource
        from kafkafmt.spark.kafka.streaming import KafkaSource
        from kafkafmt.spark.streaming import stream_reader

        with OneLineErrors():
            given = options_of(self.options, schema)
            source = RecordSource if unit_of(given) == "records" else KafkaSource
            return stream_reader(source(given, schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        with OneLineErrors():
            if overwrite:
                raise ValueError("mode overwrite: a topic cannot be replaced; expected append")
            return Writer(_send_job(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        with OneLineErrors():
            if overwrite and _are_batches(schema):
                raise ValueError("outputMode complete: a topic cannot be replaced; expected append")
            # Of records Spark's Kafka sink sends all rows of a complete result, too.
            return StreamWriter(_send_job(self.options, schema, more=OF_STREAMS))


def _columns(options: Mapping[str, str]) -> tuple[Mapping[str, DataType], Iterable[str]]:
    """Return the types of all columns of a read, and the names of those that it has."""
    from kafkafmt.spark.kafka.options import KafkaReadOptions, unit_of
    from kafkafmt.spark.kafka.reading import COLUMN_TYPES as BATCH_TYPES
    from kafkafmt.spark.kafka.records.options import RecordReadOptions
    from kafkafmt.spark.kafka.records.reading import COLUMN_TYPES as RECORD_TYPES

    if unit_of(options) == "batches":
        return BATCH_TYPES, KafkaReadOptions.parse_any(options).columns or BATCH_TYPES
    parsed = RecordReadOptions.parse_any(options)
    every = [name for name in RECORD_TYPES if name != "headers" or parsed.include_headers]
    return RECORD_TYPES, parsed.columns or every


def _record_reader(given: Mapping[str, str], schema: StructType) -> Reader:
    from kafkafmt.spark.kafka.records.options import RecordReadOptions
    from kafkafmt.spark.kafka.records.planning import plan
    from kafkafmt.spark.kafka.records.reading import COLUMN_TYPES, read_range
    from kafkafmt.spark.source.schema import OutputColumns

    options = RecordReadOptions.parse(given)
    options.warn_of_ignored(given, is_stream=False)
    output = OutputColumns.among(COLUMN_TYPES, options.columns, schema)
    return Reader(partial(plan, options), partial(read_range, options=options, output=output))


def _batch_reader(given: Mapping[str, str], schema: StructType) -> Reader:
    from kafkafmt.spark.kafka.offset_stream import plan
    from kafkafmt.spark.kafka.options import KafkaReadOptions
    from kafkafmt.spark.kafka.reading import COLUMN_TYPES, read_range
    from kafkafmt.spark.source.schema import OutputColumns

    options = KafkaReadOptions.parse(given)
    output = OutputColumns.among(COLUMN_TYPES, options.columns, schema)
    return Reader(partial(plan, options), partial(read_range, options=options, output=output))


def _are_batches(schema: StructType) -> bool:
    """Return whether rows to write are batches: they have a column batch, and none named value."""
    return "batch" in schema.names and "value" not in schema.names


def _send_job(options: Mapping[str, str], schema: StructType, *, more: Sequence[Option] = ()) -> WriteJob:
    from kafkafmt.spark.kafka.records.writing import RecordSendJob
    from kafkafmt.spark.kafka.writing import SendJob

    if _are_batches(schema):
        return SendJob.parse(options, schema, more=more)
    return RecordSendJob.parse(options, schema, more=more)
