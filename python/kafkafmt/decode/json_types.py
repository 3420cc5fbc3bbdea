"""Arrow types of JSON: what pyarrow's JSON reader reads, what is made of it, and types that were inferred."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kafkafmt.columns.arrow import valid_values
from kafkafmt.decode.payloads import SchemaError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WRAPPER = "value"


class JsonReading:
    """How values of a type are read: as the struct `physical`, from which `logical` makes them.

    rewrites: payloads must be given to `rewrite` first, since pyarrow's reader does not take them as they are.
    """

    def __init__(self, kind: pa.DataType, text_fields: frozenset[tuple[str, ...]]) -> None:
        self._type = kind
        self._text_fields = text_fields
        self._wrapped = not pa.types.is_struct(kind)
        struct = pa.struct([pa.field(_WRAPPER, kind)]) if self._wrapped else kind
        self.physical = _physical(struct)
        self.rewrites = self._wrapped or bool(text_fields) or _has_map(kind)

    def rewrite(self, value: Any) -> Any:
        """Return a JSON value in the form that is read. Raises ValueError if it has another type."""
        return {_WRAPPER: self._rewrite(value, self._type, ())} if self._wrapped else self._top(value)

    def _top(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"expected a JSON object; found {type(value).__name__}")
        return self._rewrite(value, self._type, ())

    def _rewrite(self, value: Any, kind: pa.DataType, path: tuple[str, ...]) -> Any:
        if path in self._text_fields:
            return None if value is None else json.dumps(value, ensure_ascii=False)
        if pa.types.is_struct(kind) and isinstance(value, dict):
            fields = ((field.name, field.type) for field in kind)
            return {n: self._rewrite(value[n], t, (*path, n)) for n, t in fields if n in value}
        if _is_list(kind) and isinstance(value, list):
            return [self._rewrite(item, kind.value_type, (*path, "[]")) for item in value]
        if pa.types.is_map(kind) and isinstance(value, dict):
            inner = (*path, "{}")
            return [
                {"key": k, "value": self._rewrite(item, kind.item_type, inner)} for k, item in value.items()
            ]
        return value

    def logical(self, values: pa.Array) -> pa.Array:
        """Return what was read as the type. Raises ArrowInvalid if a text is no date or the like."""
        if self._wrapped:
            return _logical(values.field(0), self._type)
        return values if values.type == self._type else _logical(values, self._type)


def json_reading(kind: pa.DataType, text_fields: frozenset[tuple[str, ...]]) -> JsonReading:
    """Return how a type is read. Raises SchemaError if JSON has no form for the type."""
    return JsonReading(kind, text_fields)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(place).type) for place in range(kind.num_fields))


def _physical(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _physical(field.type)) for field in kind])
    if _is_list(kind):
        return pa.list_(_physical(kind.value_type))
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise SchemaError(
                f"keys of JSON objects are text; expected a map with keys of type string, found {kind}"
            )
        return pa.list_(
            pa.struct([pa.field("key", kind.key_type), pa.field("value", _physical(kind.item_type))])
        )
    if pa.types.is_date(kind):
        return pa.string()
    scalars = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_decimal,
        pa.types.is_timestamp,
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_null,
    )
    if any(check(kind) for check in scalars):
        return kind
    raise SchemaError(f"JSON cannot be read as {kind}")


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _logical(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        children = [_logical(array.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))
    if _is_list(kind):
        offsets, items, valid = _list_parts(array)
        made = pa.ListArray.from_arrays(
            offsets, _logical(items, kind.value_type), pa.list_(kind.value_type), mask=valid
        )
        return made.cast(kind)
    if pa.types.is_map(kind):
        offsets, items, nulls = _list_parts(array)
        values = _logical(items.field(1), kind.item_type)
        made = pa.MapArray.from_arrays(offsets, items.field(0), values, mask=nulls)
        return made if made.type == kind else made.cast(kind)
    return array.cast(kind)


def _list_parts(array: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Return offsets, items and nulls of lists, which all start at 0."""
    if array.offset:
        array = pa.concat_arrays([array.slice(0, 0), array])
    return array.offsets, array.values, _nulls(array)


def inferred_type(kind: pa.DataType) -> pa.DataType | None:
    """Return a type that was inferred, without guesses: times and nulls are text. None if no fields are left."""
    if pa.types.is_struct(kind):
        fields = [(field.name, inferred_type(field.type)) for field in kind]
        kept = [pa.field(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(kept) if kept else None
    if _is_list(kind):
        item = inferred_type(kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_temporal(kind) or pa.types.is_null(kind):
        return pa.string()
    return kind


class UnknownField(NamedTuple):
    """A field that a type lacks, and the rows that have a value for it."""

    path: str
    rows: NDArray[np.int64]


def unknown_fields(array: pa.Array, kind: pa.DataType) -> Iterator[UnknownField]:
    """Yield the fields of values that `kind` lacks, if they have values."""
    yield from _unknown(array, kind, "", np.arange(len(array)))


def _unknown(
    array: pa.Array, kind: pa.DataType, path: str, rows: NDArray[np.int64]
) -> Iterator[UnknownField]:
    import pyarrow.compute as pc

    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        for place, field in enumerate(array.type):
            inner = f"{path}.{field.name}" if path else field.name
            child = array.field(place)
            if field.name in known:
                yield from _unknown(child, known[field.name], inner, rows)
            elif inferred_type(field.type) is not None and child.null_count < len(child):
                valid = valid_values(child)
                yield UnknownField(inner, np.unique(rows if valid is None else rows[valid]))
    elif _is_list(array.type) and _is_list(kind):
        parents = np.asarray(pc.list_parent_indices(array))
        yield from _unknown(array.flatten(), kind.value_type, f"{path}[]", rows[parents])
