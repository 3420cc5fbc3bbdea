"""For streams only. `spark.readStream.format("kafkafmt.kafka")` reads new batches of brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from kafkafmt.spark.kafka.offset_stream import KafkaStream
from kafkafmt.spark.kafka.options import KafkaReadOptions
from kafkafmt.spark.kafka.reading import COLUMN_TYPES, RangeTask, read_range
from kafkafmt.spark.source.schema import OutputColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from kafkafmt.spark.source.options import Amount


class KafkaSource:
    """A StreamSource of the partitions that the options select, with the columns of the DataFrame."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema

    @cached_property
    def _options(self) -> KafkaReadOptions:
        return KafkaReadOptions.parse_stream(self._given)

    @cached_property
    def _output(self) -> OutputColumns:
        return OutputColumns.among(COLUMN_TYPES, self._options.columns, self._schema)

    def check(self) -> None:
        assert self._output

    @property
    def limit(self) -> Amount:
        return self._options.limit

    def open(self) -> KafkaStream:
        return KafkaStream(self._options)

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(task, RangeTask)
        return read_range(task, self._options, self._output)
