"""What the data source is compared with: a source that only hands out, and a decoder in a UDF.

Spark imports this module where tasks run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kafka.record.memory_records import MemoryRecords
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.functions import explode, udf

from kafkafmt.log.splitting import Split
from kafkafmt.spark.data_source import KafkafmtDataSource
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.spark.source.reading import ReadTask, plan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class CeilingSource(KafkafmtDataSource):
    """As many tasks, batches and rows as ours, but each task decodes one batch only and hands it out again and again.

    The option `rows` has the rows of each task, as JSON.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({name: value for name, value in options.items() if name != "rows"})
        self._rows: list[int] = json.loads(options["rows"])

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def reader(self, schema: StructType) -> CeilingReader:
        return CeilingReader(super().reader(schema), self._rows)


class CeilingTask(InputPartition):
    def __init__(self, task: ReadTask, rows: int) -> None:
        super().__init__(None)
        self.task, self.rows = task, rows


class CeilingReader(DataSourceReader):
    def __init__(self, ours: DataSourceReader, rows: list[int]) -> None:
        self._ours, self._rows = ours, rows

    def partitions(self) -> list[CeilingTask]:
        return [CeilingTask(*pair) for pair in zip(self._ours.partitions(), self._rows, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, CeilingTask)
        prepared, left = next(self._ours.read(partition.task)), partition.rows
        while left > 0:
            yield prepared if prepared.num_rows <= left else prepared.slice(0, left)
            left -= prepared.num_rows


def rows_of_tasks(paths: list[str]) -> list[int]:
    """How many rows each task of ours has, by the headers of its batches."""
    tasks = plan(ReadOptions.parse({"paths": json.dumps(paths)}))
    return [sum(map(_rows_of_split, task.splits)) for task in tasks]


def _rows_of_split(split: Split) -> int:
    with split.segment.open(split.start, split.end) as records:
        return int(records.index()["count"].sum())


def decoded_by_udf(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Segment files read whole, and kafka-python's decoder in a UDF: what is at hand without a data source."""

    @udf("array<struct<key:binary,value:binary,offset:bigint,timestamp:bigint>>")
    def decode(content: Any) -> list[tuple[Any, ...]]:
        records, found = MemoryRecords(bytes(content)), []
        while records.has_next():
            batch = records.next_batch()
            found += [(record.key, record.value, record.offset, record.timestamp) for record in batch]
        return found

    files = spark.read.format("binaryFile").option("pathGlobFilter", "*.log").load(paths)
    return files.select(explode(decode("content")).alias("record")).select("record.*")
