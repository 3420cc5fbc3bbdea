"""Spark's stream readers, over what knows the offsets and reads the rows: a `StreamSource`.

Spark keeps what an `OffsetStream` hands out as offsets in the query's checkpoint. From PySpark 4.2 on it tells where a
micro-batch begins and what its limit is (`limited_streaming`); before, it asks for the end of what is there. So limits
are refused there, and lost data is noticed a step later, when tasks are planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kafkafmt.spark.plain_errors import PlainErrors
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.stream_offsets import Offsets, from_json, to_json

if TYPE_CHECKING:
    import pyarrow as pa


class OffsetStream(Protocol):
    """The driver's side of a stream. To be asked by one thread; it opens nothing before."""

    def initial_offsets(self) -> Offsets:
        """Where a new stream begins, by the options."""

    def latest_offsets(self, start: Offsets | None = None, limit: Amount = UNLIMITED) -> Offsets:
        """How far a micro-batch goes that begins at `start`: to the end of what is there, or what `limit` leaves.

        Raises DataLossError where records at `start` are gone, unless the options have the stream go on.
        """

    def end_offsets(self) -> Offsets:
        """The end of what was there when it was looked for last."""

    def fix_end(self) -> None:
        """Let the stream end where what is there ends now."""

    def tasks(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """What reads the records from `start` to in front of `end`. Raises as `latest_offsets` does."""

    def forget(self, offsets: Offsets) -> None:
        """Forget what concerns records in front of `offsets` alone, which have been read."""


class StreamSource(Protocol):
    """What is read, made of options and a schema when it is first asked, on the driver and again where tasks run."""

    def check(self) -> None:
        """Raise ValueError, in one line, for options and columns that cannot be."""

    @property
    def limit(self) -> Amount:
        """The most that a micro-batch is to have."""

    def open(self) -> OffsetStream:
        """The driver's side; no part of what is pickled for the tasks."""

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""


class StreamReader(DataSourceStreamReader):
    """Reads what is new in a source.

    Options are checked when Spark first asks for something: of an error in making a reader PySpark shows another one,
    of its own.
    """

    can_limit = False

    def __init__(self, source: StreamSource) -> None:
        self._source = source

    @cached_property
    def _stream(self) -> OffsetStream:
        self._source.check()
        if self._source.limit != UNLIMITED and not self.can_limit:
            raise ValueError("limits of a trigger: expected PySpark 4.2 or later, as before it has none")
        return self._source.open()

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with PlainErrors():
            return to_json(self._stream.initial_offsets())

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        with PlainErrors():
            return to_json(self._stream.latest_offsets())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with PlainErrors():
            return self._stream.tasks(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with PlainErrors():
            yield from self._source.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.forget(from_json(end))


def stream_reader(source: StreamSource) -> StreamReader:
    """The reader that makes the most of the PySpark that runs here."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        return StreamReader(source)
    from kafkafmt.spark.limited_streaming import LimitedStreamReader

    return LimitedStreamReader(source)
