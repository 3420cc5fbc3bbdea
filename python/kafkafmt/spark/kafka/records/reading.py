"""Read the records of a range of offsets as Arrow rows, in a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.columns.arrow import boolean_array, int64_values
from kafkafmt.columns.read import COLUMNS, arrow_batches, arrow_schema
from kafkafmt.scanning.brokers.runs import PartitionRange, read_runs
from kafkafmt.scanning.splits import bounded
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.errors import KafkaFormatError
    from kafkafmt.spark.kafka.records.options import RecordReadOptions
    from kafkafmt.spark.source.schema import OutputColumns

COLUMN_TYPES: dict[str, pa.DataType] = {field.name: field.type for field in arrow_schema(COLUMNS)}


class RecordTask(InputPartition):
    """A task that reads one range; None if there is nothing to read."""

    def __init__(self, wanted: PartitionRange | None) -> None:
        super().__init__(None)
        self.range = wanted


@dataclass
class _FetchedRuns:
    """The batches of a range as a source of columns."""

    topic_partition: TopicPartition | None
    fetched: Iterator[BatchRun]
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    size_in_bytes: int = 0

    def runs(self, *, run_bytes: int, reuse_memory: bool) -> Iterator[BatchRun]:
        return self.fetched

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        return error


def read_records(
    task: RecordTask, options: RecordReadOptions, output: OutputColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task.

    Raises CorruptFetchedBatchError, with partition and offsets, for damage, unless onCorrupt is skip; DataLossError for
    deleted offsets, unless failOnDataLoss is false; BrokerError.
    """
    wanted = task.range
    if wanted is None:
        return
    columns = list(output.columns)
    built = columns if "offset" in columns else [*columns, "offset"]
    runs = read_runs(wanted, options.brokers)
    source = _FetchedRuns(wanted.topic_partition, runs)
    for rows in arrow_batches(source, built, verify=False, chunk_bytes=options.max_batch_bytes):
        offsets = int64_values(rows.column("offset"))
        # Only the first and the last batch may have records outside the range.
        if len(offsets) and (offsets[0] < wanted.start or offsets[-1] >= wanted.end):
            inside = np.logical_and(offsets >= wanted.start, offsets < wanted.end)
            rows = rows.filter(boolean_array(inside))
        if rows.num_rows:
            dressed = pa.RecordBatch.from_arrays(rows.columns[: len(columns)], schema=output.schema)
            yield from bounded(dressed, options.max_batch_bytes)
