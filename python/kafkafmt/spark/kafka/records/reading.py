"""Read the records of a range of offsets as Arrow rows, in a task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafmt.columns.read import COLUMNS, arrow_schema
from kafkafmt.scanning.brokers.records import read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.spark.kafka.reading import RangeTask
    from kafkafmt.spark.kafka.records.options import RecordReadOptions
    from kafkafmt.spark.source.schema import OutputColumns

COLUMN_TYPES: dict[str, pa.DataType] = {field.name: field.type for field in arrow_schema(COLUMNS)}


def read_range(
    task: RangeTask, options: RecordReadOptions, output: OutputColumns
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range. Raises the errors of `kafkafmt.scanning.brokers.records.read_ranges`."""
    return read_ranges([task.range], options.brokers, output, options.max_batch_bytes)
