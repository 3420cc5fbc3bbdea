"""The columns of an Iceberg table as Arrow, with the ids of its fields, and the reverse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyiceberg.schema import Schema


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns as files have them: with the id of each field, and with offsets of 32 bits."""
    return pa.schema([_small(field) for field in schema.as_arrow()])


def iceberg_fields(schema: pa.Schema) -> pa.Schema:
    """Return columns for `union_by_name`, which wants ids on all fields or on none: without them."""
    return pa.schema([_without_id(field) for field in schema])


def field_ids(schema: pa.Schema) -> dict[str, bytes | None]:
    """Return the id of each field of `arrow_schema`, also of nested ones, by its path."""
    return dict(_paths(schema, ""))


def _paths(fields: Iterable[pa.Field], prefix: str) -> Iterator[tuple[str, bytes | None]]:
    for field in fields:
        path = prefix + field.name
        yield path, (field.metadata or {}).get(b"PARQUET:field_id")
        kind = field.type
        yield from _paths(map(kind.field, range(kind.num_fields)), f"{path}.")


def _small(field: pa.Field) -> pa.Field:
    """Replace types with offsets of 64 bits, which pyiceberg has for text, bytes and lists."""
    kind = field.type
    if pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    elif pa.types.is_struct(kind):
        kind = pa.struct([_small(one) for one in kind])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    return field.with_type(kind)


def _without_id(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_without_id(one) for one in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_without_id(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(_without_id(kind.key_field), _without_id(kind.item_field))
    return field.with_type(kind).remove_metadata()
