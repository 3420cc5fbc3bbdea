"""Units that are a state: what the records of internal topics describe at a time. One task reads all of it.

A state has far fewer rows than its topic has records. So its rows are made as dictionaries, by the functions that the
command line uses, too. Their fields get names in Spark's style: `commit_timestamp_ms` is the column `commitTimestamp`,
of the type timestamp.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkafmt.columns.fields import Field, arrow_row, arrow_schema
from kafkafmt.log.internal_topics.latest import DamageHandler, raise_damage
from kafkafmt.log.internal_topics.offsets import OFFSET_FIELDS, consumer_offsets
from kafkafmt.log.internal_topics.sources import LogSources
from kafkafmt.log.internal_topics.transactions import TRANSACTION_FIELDS, transactions
from kafkafmt.spark.source.reading import bounded
from kafkafmt.storage.locations import absolute_paths

if TYPE_CHECKING:
    from kafkafmt.log.gaps import SourceDamage
    from kafkafmt.spark.source.options import ReadOptions
    from kafkafmt.spark.source.schema import OutputColumns
    from kafkafmt.storage import StoragePath

_LOG = logging.getLogger(__name__)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIMESTAMP_SUFFIX = "_timestamp_ms"
_MICROSECONDS = 1000
_MOST_MICROSECONDS = 2**63 - 1
_ROWS = 10_000  # of a table that is made at once

Rows: TypeAlias = "Iterable[Mapping[str, Any]]"


@dataclass(frozen=True)
class StateUnit:
    """A unit. fields: of its rows.

    rows: reads the rows of log directories. Its other arguments are the time of the state, in milliseconds or None, and
    the handler of damage.
    """

    fields: tuple[Field, ...]
    rows: Callable[[Sequence[StoragePath], int | None, DamageHandler], Rows]


class StateTask(InputPartition):
    """The only task of a read. paths: log directories."""

    def __init__(self, paths: Sequence[StoragePath]) -> None:
        super().__init__(None)
        self.paths = tuple(paths)


def state_types(unit: str) -> dict[str, pa.DataType]:
    """Return the columns of a unit, with their types."""
    fields = _UNITS[unit].fields
    return {
        _column(field.name): _TIMESTAMP if field.name.endswith(_TIMESTAMP_SUFFIX) else arrow_field.type
        for field, arrow_field in zip(fields, arrow_schema(fields), strict=True)
    }


def plan_state(options: ReadOptions) -> list[StateTask]:
    """Return the task of a read. Raises ValueError for an unknown scheme and options that a file system lacks."""
    return [StateTask(absolute_paths(options.paths, options.file_system))]


def read_state(task: StateTask, options: ReadOptions, output: OutputColumns) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a state.

    Raises CorruptRecordError for damage, unless onCorrupt is skip; FileNotFoundError if a path is not a folder or lacks
    the topic.
    """
    unit = _UNITS[options.unit]
    on_damage = raise_damage if options.on_corrupt == "fail" else _warn
    rows = iter(unit.rows(task.paths, options.ending.timestamp, on_damage))
    names = {_column(field.name): field for field in unit.fields}
    fields = [names[name] for name in output.columns]
    while part := list(islice(rows, _ROWS)):
        arrays = [_array(field, part) for field in fields]
        yield from bounded(pa.RecordBatch.from_arrays(arrays, schema=output.schema), options.max_batch_bytes)


def _warn(damage: SourceDamage) -> None:
    _LOG.warning("passed over damage in %s at offset %d: %s", *damage[:2], damage.message)


def _column(name: str) -> str:
    """Return the name of a column.

    >>> _column("commit_timestamp_ms"), _column("open_ms")
    ('commitTimestamp', 'openMs')
    """
    shown = name.removesuffix("_ms") if name.endswith(_TIMESTAMP_SUFFIX) else name
    return re.sub("_([a-z])", lambda match: match[1].upper(), shown)


def _array(field: Field, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    if field.name.endswith(_TIMESTAMP_SUFFIX):
        return pa.array([_microseconds(row[field.name]) for row in rows], _TIMESTAMP)
    (kind,) = arrow_schema([field]).types
    return pa.array([arrow_row([field], row)[field.name] for row in rows], kind)


def _microseconds(milliseconds: int | None) -> int | None:
    """Return a timestamp for Spark; None beyond the range of microseconds."""
    if milliseconds is None or abs(milliseconds) > _MOST_MICROSECONDS // _MICROSECONDS:
        return None
    return milliseconds * _MICROSECONDS


def _offset_rows(paths: Sequence[StoragePath], timestamp: int | None, on_damage: DamageHandler) -> Rows:
    sources = LogSources(paths, on_damage=on_damage)
    found = consumer_offsets(sources, timestamp=timestamp, on_damage=on_damage)
    return found.offset_rows(sources.end_offsets(found.topic_partitions()))


def _transaction_rows(paths: Sequence[StoragePath], timestamp: int | None, on_damage: DamageHandler) -> Rows:
    return transactions(paths, now=timestamp, on_damage=on_damage).rows()


_UNITS = {
    "offsets": StateUnit(OFFSET_FIELDS, _offset_rows),
    "transactions": StateUnit(TRANSACTION_FIELDS, _transaction_rows),
}
