"""Units that are a state: what the records of internal topics describe at a time. One task reads all of it.

A state has far fewer rows than its topic has records. So its rows are made as dictionaries, by the functions that the
command line uses, too. Their fields get names in Spark's style: `commit_timestamp_ms` is the column `commitTimestamp`,
of the type timestamp.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from kafkafmt.columns.fields import Field, arrow_schema
from kafkafmt.log.internal_topics.latest import DamageHandler
from kafkafmt.log.internal_topics.metadata.reader import cluster_metadata
from kafkafmt.log.internal_topics.metadata.rows import KINDS, fields_of
from kafkafmt.log.internal_topics.offsets import OFFSET_FIELDS, consumer_offsets
from kafkafmt.log.internal_topics.sources import LogSources
from kafkafmt.log.internal_topics.transactions import TRANSACTION_FIELDS, transactions

if TYPE_CHECKING:
    from kafkafmt.storage import StoragePath

_LOG = logging.getLogger(__name__)
TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIMESTAMP_SUFFIX = "_timestamp_ms"

Rows: TypeAlias = "Iterable[Mapping[str, Any]]"


@dataclass(frozen=True)
class StateUnit:
    """A unit. fields: of its rows.

    rows: reads the rows of log directories. Its other arguments are the time of the state, in milliseconds or None, and
    the handler of damage.
    """

    fields: tuple[Field, ...]
    rows: Callable[[Sequence[StoragePath], int | None, DamageHandler], Rows]


def state_types(unit: str) -> dict[str, pa.DataType]:
    """Return the columns of a unit, with their types."""
    fields = UNITS_OF_STATE[unit].fields
    return {
        column_name(field.name): TIMESTAMP if is_timestamp(field) else arrow_field.type
        for field, arrow_field in zip(fields, arrow_schema(fields), strict=True)
    }


def is_timestamp(field: Field) -> bool:
    """Whether a field is a time in milliseconds, which is a timestamp on Spark."""
    return field.name.endswith(_TIMESTAMP_SUFFIX)


def column_name(name: str) -> str:
    """Return the name of a column.

    >>> column_name("commit_timestamp_ms"), column_name("open_ms")
    ('commitTimestamp', 'openMs')
    """
    shown = name.removesuffix("_ms") if name.endswith(_TIMESTAMP_SUFFIX) else name
    return re.sub("_([a-z])", lambda match: match[1].upper(), shown)


def _offset_rows(paths: Sequence[StoragePath], timestamp: int | None, on_damage: DamageHandler) -> Rows:
    sources = LogSources(paths, on_damage=on_damage)
    found = consumer_offsets(sources, timestamp=timestamp, on_damage=on_damage)
    # The present ends say nothing about the lag at another time.
    return found.offset_rows({} if timestamp is not None else sources.end_offsets(found.topic_partitions()))


def _transaction_rows(paths: Sequence[StoragePath], timestamp: int | None, on_damage: DamageHandler) -> Rows:
    return transactions(paths, now=timestamp, on_damage=on_damage).rows()


def _metadata_rows(paths: Sequence[StoragePath], timestamp: int | None, on_damage: DamageHandler) -> Rows:
    """Return the rows of the only path. Damage is always raised: a state without some of its records is wrong."""
    found = cluster_metadata(*paths, timestamp=timestamp)
    for warning in found.warnings:
        _LOG.warning(warning)
    return found.rows()


UNITS_OF_STATE = {
    "metadata": StateUnit(fields_of(tuple(KINDS)), _metadata_rows),
    "offsets": StateUnit(OFFSET_FIELDS, _offset_rows),
    "transactions": StateUnit(TRANSACTION_FIELDS, _transaction_rows),
}
