"""The tasks of the source: what `kafkafmt.scanning` plans and reads, as Spark takes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from kafkafmt.scanning.planning import plan_logs
from kafkafmt.scanning.splits import read_split

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.log.splitting import Split
    from kafkafmt.spark.source.options import ReadOptions
    from kafkafmt.spark.source.schema import OutputColumns


class ReadTask(InputPartition):
    """The splits that one task reads, in order."""

    def __init__(self, splits: Iterable[Split]) -> None:
        super().__init__(None)
        self.splits = tuple(splits)


def plan(options: ReadOptions) -> list[ReadTask]:
    """Return the tasks of a read as `plan_logs`, or one empty task: Spark reads a null partition if there is none."""
    return [ReadTask(splits) for splits in plan_logs(options)] or [ReadTask([])]


def read_task(task: ReadTask, options: ReadOptions, output: OutputColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task. Raises the errors of `read_split`."""
    for split in task.splits:
        yield from read_split(split, options, output)
