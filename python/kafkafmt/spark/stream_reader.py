"""For streams only. Spark's stream readers call a `StreamSource`, which knows the offsets and reads the rows.

Spark stores the offsets of an `OffsetStream` in the query's checkpoint. PySpark 4.2 and later passes the start and the
limit of a micro-batch (`limited_streaming`). Earlier versions only request the latest offsets. With them, limits are
refused, and data loss is detected one step later, when tasks are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kafkafmt.spark.one_line_errors import OneLineErrors
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.stream_offsets import Offsets, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa


class OffsetStream(Protocol):
    """The driver's side of a stream, for use by one thread. It opens nothing before the first call."""

    def initial_offsets(self) -> Offsets:
        """Return the offsets at which a new stream begins, by the options."""

    def latest_offsets(self, start: Offsets | None = None, limit: Amount = UNLIMITED) -> Offsets:
        """Return the end offsets of a micro-batch from `start`: the ends of the logs, or earlier ones within `limit`.

        Raises DataLossError if records at `start` were deleted, unless failOnDataLoss is false.
        """

    def end_offsets(self) -> Offsets:
        """Return the end offsets of the logs when they were last listed."""

    def fix_end(self) -> None:
        """Make the stream end at the current ends of the logs."""

    def tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return tasks that read the records from `start` to before `end`. Raises the errors of `latest_offsets`."""

    def forget(self, offsets: Offsets) -> None:
        """Release the state of records before `offsets`, which have been read."""


class StreamSource(Protocol):
    """The source of a stream. The driver and each executor parse its options and schema at the first use."""

    def check(self) -> None:
        """Raise ValueError, in one line, for invalid options and columns."""

    @property
    def limit(self) -> Amount:
        """The limit of a micro-batch."""

    def open(self) -> OffsetStream:
        """Return the driver's side of the stream. It is not pickled to the tasks."""

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""


class StreamReader(DataSourceStreamReader):
    """Reads new records of a source.

    Options are checked at Spark's first call. If creating a reader fails, PySpark shows an error of its own instead.
    """

    can_limit = False

    def __init__(self, source: StreamSource) -> None:
        self._source = source

    @cached_property
    def _stream(self) -> OffsetStream:
        self._source.check()
        if self._source.limit != UNLIMITED and not self.can_limit:
            raise ValueError("limits of a trigger: expected PySpark 4.2 or later, which supports them")
        return self._source.open()

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with OneLineErrors():
            return to_json(self._stream.initial_offsets())

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        with OneLineErrors():
            return to_json(self._stream.latest_offsets())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with OneLineErrors():
            return self._stream.tasks(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with OneLineErrors():
            yield from self._source.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.forget(from_json(end))
