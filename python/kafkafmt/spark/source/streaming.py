"""`spark.readStream.format("kafkafmt")`: logs that grow while they are read, micro-batch after micro-batch.

Spark keeps what `LogStream` hands out as offsets in the query's checkpoint. From PySpark 4.2 on it tells where a
micro-batch begins and what its limit is (`limited_streaming`); before, it asks for the end of what is there. So limits
are refused there, and lost data is noticed a step later, when tasks are planned.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.source.log_stream import DataLossError, LogStream, from_json, to_json
from kafkafmt.spark.source.options import UNLIMITED, StreamOptions
from kafkafmt.spark.source.planning import ReadTask
from kafkafmt.spark.source.reading import read_split
from kafkafmt.spark.source.schema import OutputColumns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LOG = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader):
    """Reads what is new in the logs that the options name, with the columns of the DataFrame.

    Options are checked when Spark first asks for something: of an error in making a reader PySpark shows another one,
    of its own.
    """

    can_limit = False

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema

    @cached_property
    def _options(self) -> StreamOptions:
        options = StreamOptions.parse(self._given)
        if options.limit != UNLIMITED and not self.can_limit:
            raise ValueError("limits of a trigger: expected PySpark 4.2 or later, as before it has none")
        return options

    @cached_property
    def _output(self) -> OutputColumns:
        return OutputColumns.of(self._options.read, self._schema)

    @cached_property
    def _stream(self) -> LogStream:
        return LogStream(self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with PlainErrors():
            assert self._output  # checks the schema
            return to_json(self._stream.initial_offsets())

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        with PlainErrors():
            return to_json(self._stream.latest_offsets())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReadTask]:
        with PlainErrors():
            return self._stream.tasks(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        with PlainErrors():
            for split in partition.splits:
                try:
                    yield from read_split(split, self._options.read, self._output)
                except FileNotFoundError as error:
                    what = f"{error.filename}: the segment was deleted before it was read"
                    if self._options.fails_on_data_loss:
                        raise DataLossError(f"{what}; failOnDataLoss=false goes on without it") from None
                    _LOG.warning("%s: going on without it", what)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.forget(from_json(end))


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """The reader that makes the most of the PySpark that runs here."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return StreamReader(options, schema)
    from kafkafmt.spark.source.limited_streaming import LimitedStreamReader

    return LimitedStreamReader(options, schema)
