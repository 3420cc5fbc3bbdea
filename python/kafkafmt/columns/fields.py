"""Names and types of the fields of rows, from which JSON, Arrow tables and Spark's columns are made.

A row is a dictionary with a value for each field. `None` is null. Timestamps are int64, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from kafkafmt._util.extras import needed_by

if TYPE_CHECKING:
    import pyarrow as pa

FieldType: TypeAlias = Literal[
    "binary",
    "boolean",
    "float64",
    "int32",
    "int64",
    "string",
    "list<int32>",
    "list<string>",
    "map<string,string>",
]


class Field(NamedTuple):
    """A field of rows. All fields are nullable."""

    name: str
    type: FieldType


def arrow_schema(fields: Sequence[Field]) -> pa.Schema:
    """Return the Arrow schema of rows with these fields. Raises ModuleNotFoundError without pyarrow."""
    with needed_by("an Arrow table", "arrow"):
        import pyarrow as pa

    types = {
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "float64": pa.float64(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "string": pa.string(),
        "list<int32>": pa.list_(pa.int32()),
        "list<string>": pa.list_(pa.string()),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([pa.field(field.name, types[field.type]) for field in fields])


def arrow_row(fields: Sequence[Field], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose maps are lists of pairs, as pyarrow reads them."""
    found = dict(row)
    for name, kind in fields:
        if kind.startswith("map") and row[name] is not None:
            found[name] = list(row[name].items())
    return found


def arrow_table(fields: Sequence[Field], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table with these fields. Raises ModuleNotFoundError without pyarrow."""
    schema = arrow_schema(fields)
    import pyarrow as pa

    return pa.Table.from_pylist([arrow_row(fields, row) for row in rows], schema)
