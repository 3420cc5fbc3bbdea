"""Infer the Arrow type of JSON objects: that of all their fields."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from kafkafmt.decode.json_ import JsonDecoder
from kafkafmt.decode.json_types import Program
from kafkafmt.decode.payloads import GIVE_SCHEMA, Payloads, SchemaError

_SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
_INT64 = range(-(1 << 63), 1 << 63)
_MAX_FIELDS = 10_000  # names that are data, such as the ids of users, would become columns without an end


def infer_json_type(payloads: Iterable[Payloads], known: pa.DataType | None = None) -> pa.DataType:
    """Return the type of JSON objects: that of all their fields.

    Text stays text if it looks like a time. A field that is always null becomes text. Objects without fields are left
    out. Payloads that are damaged are ignored. If a field has integers and other numbers, it is a double. If it has
    values of other types, the first type counts, and the others will be errors when they are decoded.

    known: the type of earlier objects. Its fields come first, and keep their types, except those that JSON lacks. A
    field whose name differs from that of another one in case only is not added to them: tables cannot have both.

    Raises SchemaError if no payload is a JSON object with fields, and no type is known, and if there are more than
    10,000 fields.
    """
    decoder = JsonDecoder(pa.large_string(), text_fields=frozenset({()}))
    found: dict[str, Any] = {}
    for part in payloads:
        for text in decoder.decode(part).array.to_pylist():
            if text is not None and text.startswith("{"):
                try:
                    value = json.loads(text)
                except ValueError:  # a number has thousands of digits
                    continue
                _add(found, value)
    kind = _merged(known, _arrow_type(found))
    if kind is None:
        raise SchemaError(
            "expected a JSON object with a field to infer a type from, found none in the records that were read; "
            f"fields that are {{}} or [{{}}] do not count: {GIVE_SCHEMA}"
        )
    if (count := _field_count(kind)) > _MAX_FIELDS:
        raise SchemaError(
            f"the records have {count} fields of JSON; at most {_MAX_FIELDS} are inferred: {GIVE_SCHEMA}"
        )
    return kind


def _field_count(kind: pa.DataType) -> int:
    """Return how many fields a type has, with those of its fields and of its items."""
    count, waiting = 0, [kind]
    while waiting:
        found = waiting.pop()
        count += found.num_fields
        waiting += [found.field(place).type for place in range(found.num_fields)]
    return count


def _add(known: Any, value: Any) -> Any:
    """Return a type that also has the fields of a value.

    A type is None for nulls, a dict of the fields of an object, a list with the type of the items of an array, or the
    Arrow type of a scalar.
    """
    if value is None:
        return known
    kind = type(value)
    if kind is dict:
        known = {} if known is None else known
        if isinstance(known, dict):
            for name, inner in value.items():
                known[name] = _add(known.get(name), inner)
        return known
    if kind is list:
        known = [None] if known is None else known
        if isinstance(known, list):
            for item in value:
                known[0] = _add(known[0], item)
        return known
    found = _SCALARS[kind if kind is not int or value in _INT64 else float]
    return found if known is None or (known, found) == (pa.int64(), pa.float64()) else known


def _arrow_type(found: Any) -> pa.DataType | None:
    """Return the Arrow type of a type of `_add`. None for objects without fields, and arrays of them."""
    if found is None:
        return pa.string()
    if isinstance(found, dict):
        fields = [(name, _arrow_type(inner)) for name, inner in found.items()]
        kept = [pa.field(name, kind) for name, kind in fields if kind is not None]
        return pa.struct(kept) if kept else None
    if isinstance(found, list):
        item = _arrow_type(found[0])
        return None if item is None else pa.list_(item)
    return found


def _merged(known: pa.DataType | None, found: pa.DataType | None) -> pa.DataType | None:
    """Return a type with the fields of two; None if none is left.

    Fields of `known` come first. They keep their types, except those that JSON does not have. Of new fields whose names
    differ from others in case only, none is added.
    """
    if known is None:
        return found
    if pa.types.is_struct(known) and (found is None or pa.types.is_struct(found)):
        new = {} if found is None else {field.name: field for field in found}
        merged = []
        for field in known:
            other = new.pop(field.name, None)
            kind = _merged(field.type, None if other is None else other.type)
            if kind is not None:
                merged.append(pa.field(field.name, kind))
        names = {field.name.lower() for field in known}
        for name, field in new.items():
            if name.lower() not in names:
                merged.append(field)
                names.add(name.lower())
        return pa.struct(merged) if merged else None
    if found is not None and pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(pa.field("item", _merged(known.value_type, found.value_type)))
    return known if _is_readable(known) else found


def _is_readable(kind: pa.DataType) -> bool:
    try:
        Program(kind, frozenset())
    except SchemaError:
        return False
    return True
