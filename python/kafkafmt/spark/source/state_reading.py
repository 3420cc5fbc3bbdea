"""Read a state on an executor: one task reads all of it. `state_units` has the units and their rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkafmt.columns.fields import Field, arrow_row, arrow_schema
from kafkafmt.log.internal_topics.latest import raise_damage
from kafkafmt.scanning.splits import bounded
from kafkafmt.spark.source.state_units import TIMESTAMP, UNITS_OF_STATE, column_name, is_timestamp
from kafkafmt.storage.locations import absolute_paths

if TYPE_CHECKING:
    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.spark.source.options import ReadOptions
    from kafkafmt.spark.source.schema import OutputColumns
    from kafkafmt.storage import StoragePath

_LOG = logging.getLogger(__name__)
_MICROSECONDS = 1000
_MOST_MICROSECONDS = 2**63 - 1
_ROWS = 10_000  # of a table that is made at once


class StateTask(InputPartition):
    """The only task of a read. paths: log directories."""

    def __init__(self, paths: Sequence[StoragePath]) -> None:
        super().__init__(None)
        self.paths = tuple(paths)


def plan_state(options: ReadOptions) -> list[StateTask]:
    """Return the task of a read. Raises ValueError for an unknown scheme and options that a file system lacks."""
    return [StateTask(absolute_paths(options.paths, options.file_system))]


def read_state(task: StateTask, options: ReadOptions, output: OutputColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a state.

    Raises CorruptRecordError for damage, unless onCorrupt is skip; FileNotFoundError if a path is not a folder or lacks
    the topic.
    """
    unit = UNITS_OF_STATE[options.unit]
    on_damage = raise_damage if options.on_corrupt == "fail" else _warn
    rows = iter(unit.rows(task.paths, options.ending.timestamp, on_damage))
    names = {column_name(field.name): field for field in unit.fields}
    fields = [names[name] for name in output.columns]
    while part := list(islice(rows, _ROWS)):
        arrays = [_array(field, part) for field in fields]
        yield from bounded(pa.RecordBatch.from_arrays(arrays, schema=output.schema), options.max_batch_bytes)


def _warn(damage: SourceDamage) -> None:
    _LOG.warning("passed over damage in %s at offset %d: %s", *damage[:2], damage.message)


def _array(field: Field, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    if is_timestamp(field):
        return pa.array([_microseconds(row[field.name]) for row in rows], TIMESTAMP)
    (kind,) = arrow_schema([field]).types
    return pa.array([arrow_row([field], row)[field.name] for row in rows], kind)


def _microseconds(milliseconds: int | None) -> int | None:
    """Return a timestamp for Spark; None beyond the range of microseconds."""
    if milliseconds is None or abs(milliseconds) > _MOST_MICROSECONDS // _MICROSECONDS:
        return None
    return milliseconds * _MICROSECONDS
