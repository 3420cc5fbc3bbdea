"""The partitioning of a table: by columns, and by the year, month, day or hour of a timestamp.

The transforms and their values are those of Iceberg: `day(timestamp)` is the number of days since 1970-01-01 in UTC.
Folders and columns of other formats have these values as text: `timestamp_day=2026-11-26`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from kafkafmt.export.errors import ExportArgumentError, ExportError

if TYPE_CHECKING:
    import pyarrow as pa

PartitionValue: TypeAlias = "int | str | None"
Transform: TypeAlias = Literal["identity", "year", "month", "day", "hour"]

_TRANSFORMS = get_args(Transform)
_FIELD = re.compile(r"\s*(?:(?P<transform>[a-z]+)\s*\(\s*(?P<of>[^()]+?)\s*\)|(?P<column>[^()]+?))\s*")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class PartitionField:
    """A column, or a transform of a column.

    own_name: that of the field in an Iceberg table, which another writer may have chosen.

    >>> [field.name for field in parse_partitioning("topic, day(timestamp)")]
    ['topic', 'timestamp_day']
    """

    column: str
    transform: Transform = "identity"
    own_name: str | None = dataclass_field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        if self.own_name is not None:
            return self.own_name
        return self.column if self.transform == "identity" else f"{self.column}_{self.transform}"

    def __str__(self) -> str:
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"

    def text(self, value: PartitionValue) -> str | None:
        """Return a value as text for folders and columns; None for null. Raises ExportError for times without a text.

        >>> PartitionField("timestamp", "hour").text(491184)
        '2026-01-13-00'
        """
        if value is None or self.transform == "identity":
            return None if value is None else str(value)
        assert isinstance(value, int)
        try:
            return self._time_text(value)
        except (OverflowError, ValueError):
            raise ExportError(
                f"partition by {self}: expected a time in the years 1 to 9999, found one {value} {self.transform}s "
                "from 1970"
            ) from None

    def _time_text(self, value: int) -> str:
        if self.transform == "year":
            return datetime(1970 + value, 1, 1).date().isoformat()[:4]
        if self.transform == "month":
            return datetime(1970 + value // 12, value % 12 + 1, 1).date().isoformat()[:7]
        if self.transform == "day":
            return (_EPOCH + timedelta(days=value)).date().isoformat()
        return (_EPOCH + timedelta(hours=value)).isoformat("-", "hours")[:13]


def parse_partitioning(text: str) -> tuple[PartitionField, ...]:
    """Parse columns and transforms, separated by commas. Raises ExportArgumentError.

    >>> parse_partitioning("topic,day(timestamp)")[1]
    PartitionField(column='timestamp', transform='day')
    """
    fields: list[PartitionField] = []
    for part in text.split(","):
        match = _FIELD.fullmatch(part)
        transform = match["transform"] if match else None
        if match is None or (transform is not None and transform not in _TRANSFORMS[1:]):
            expected = (
                f"a column, or {', '.join(_TRANSFORMS[1:-1])} or {_TRANSFORMS[-1]} of one, as day(timestamp)"
            )
            raise ExportArgumentError(f"partition by {text!r}: expected {expected}, found {part.strip()!r}")
        named: Any = transform or "identity"
        field = PartitionField(match["of"] or match["column"], named)
        if field in fields:
            raise ExportArgumentError(f"partition by {text!r}: {field} is named twice")
        fields.append(field)
    return tuple(fields)


def ensure_partitioned(schema: pa.Schema, fields: Sequence[PartitionField], table: str) -> None:
    """Raise ExportError if a table with these columns cannot be partitioned so."""
    names = {name.lower(): name for name in schema.names}
    for field in fields:
        if schema.get_field_index(field.column) < 0:
            raise ExportError(
                f"{table}: partition by {field}: no column {field.column!r}, found {', '.join(schema.names)}"
            )
        # Engines do not distinguish the case of names.
        other = names.get(field.name.lower())
        if field.transform != "identity" and other is not None:
            raise ExportError(
                f"{table}: partition by {field}: expected no other column {field.name!r}, found {other!r}: give a "
                "schema without it (--schemas FILE, or reader_schema in Python)"
            )


def ensure_partition_types(schema: pa.Schema, fields: Sequence[PartitionField], table: str) -> None:
    """Raise ExportError if a new table cannot be partitioned by columns of these types.

    Tables of other writers may be partitioned by columns of other types.
    """
    import pyarrow as pa

    for field in fields:
        kind = schema.field(field.column).type
        is_time = pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and field.transform != "hour")
        is_value = any(
            check(kind) for check in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
        )
        if not (is_value if field.transform == "identity" else is_time):
            expected = (
                "text, an integer or a boolean" if field.transform == "identity" else "a timestamp or a date"
            )
            raise ExportError(f"{table}: partition by {field}: expected {expected}, found {kind}")
