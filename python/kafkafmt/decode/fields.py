"""The fields of Arrow types, those within structs, lists and maps included."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def lacking_fields(written: pa.DataType, read: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of `written` that `read` lacks."""
    if pa.types.is_list(written) and pa.types.is_list(read):
        yield from lacking_fields(written.value_type, read.value_type, f"{path}[]")
    elif pa.types.is_map(written) and pa.types.is_map(read):
        yield from lacking_fields(written.item_type, read.item_type, f"{path}{{}}")
    elif pa.types.is_struct(written) and pa.types.is_struct(read):
        known = {field.name: field.type for field in read}
        for field in written:
            inner = f"{path}.{field.name}" if path else field.name
            if field.name not in known:
                yield inner
            else:
                yield from lacking_fields(field.type, known[field.name], inner)


def with_fields(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type with the fields that it lacks of another one. A field of both has the type that it has in `kind`.

    Fields whose names differ in case only are one field.
    """
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(kind.value_field.with_type(with_fields(kind.value_type, other.value_type)))
    if pa.types.is_map(kind) and pa.types.is_map(other):
        items = kind.item_field.with_type(with_fields(kind.item_type, other.item_type))
        return pa.map_(kind.key_field, items)
    if not (pa.types.is_struct(kind) and pa.types.is_struct(other)):
        return kind
    names = {field.name.lower() for field in kind}
    more = {field.name: field for field in other}
    fields = [
        field.with_type(with_fields(field.type, more[field.name].type)) if field.name in more else field
        for field in kind
    ]
    return pa.struct([*fields, *(field for name, field in more.items() if name.lower() not in names)])
