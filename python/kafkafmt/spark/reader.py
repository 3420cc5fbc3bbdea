"""Spark's batch reader. It calls one function that plans the tasks, and one that reads a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkafmt.spark.one_line_errors import OneLineErrors

if TYPE_CHECKING:
    import pyarrow as pa


class Reader(DataSourceReader):
    """Reads the rows of tasks. Both functions are pickled to the executors.

    It does not push down filters. PySpark (up to 4.3) reuses a plan with filters for all queries of the DataFrame. So
    rows would be missing from another query, and from a join of the DataFrame with itself.
    """

    def __init__(
        self, plan: Callable[[], Sequence[InputPartition]], read: Callable[[Any], Iterator[pa.RecordBatch]]
    ) -> None:
        self._plan = plan
        self._read = read

    def partitions(self) -> Sequence[InputPartition]:
        with OneLineErrors():
            return self._plan()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with OneLineErrors():
            yield from self._read(partition)
