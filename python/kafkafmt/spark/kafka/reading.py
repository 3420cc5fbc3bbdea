"""Read the batches of a partition in a range of offsets, as Arrow rows, in a task.

A range ends between batches, unless the user's endingOffsets are within a batch. Then that batch is returned whole. If
the user's startingOffsets are within a batch, it is returned without the records below them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkafmt.scanning.batch_rows import BATCH_TYPES, DAMAGE_COLUMN, BatchSource, batch_rows
from kafkafmt.scanning.brokers.runs import PartitionRange, read_runs
from kafkafmt.scanning.splits import bounded
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.spark.kafka.options import KafkaReadOptions
    from kafkafmt.spark.source.schema import OutputColumns

_OF_FILES = ("file", "position", DAMAGE_COLUMN)
_EMPTY = PartitionRange(TopicPartition("", 0), 0, 0)
COLUMN_TYPES = {name: kind for name, kind in BATCH_TYPES.items() if name not in _OF_FILES}


class RangeTask(InputPartition):
    """A task that reads one range, of batches or of records. Without a range it reads nothing."""

    def __init__(self, wanted: PartitionRange = _EMPTY) -> None:
        super().__init__(None)
        self.range = wanted


def read_range(task: RangeTask, options: KafkaReadOptions, output: OutputColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, a row for each batch. Raises the errors of `read_runs`."""
    source = BatchSource("", task.range.topic_partition)
    for run in read_runs(task.range, options.brokers):
        rows = batch_rows(run, source, output.columns)
        yield from bounded(pa.RecordBatch.from_arrays(rows, schema=output.schema), options.max_batch_bytes)
