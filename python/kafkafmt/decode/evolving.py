"""Bring decoded values to an Arrow type that the user gave: fields by name, numbers and times by casts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkafmt.columns.arrow import number_array, true_values, valid_values
from kafkafmt.decode.arrays import MISFITS, ColumnBudget, chunk_error_rows
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads, SchemaError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHOWN_CHARACTERS = 40
_SAMPLED_NULLS = 64


class EvolvingDecoder:
    """Decodes payloads with another decoder and brings the values to a type.

    Fields that the type lacks are left out, and fields that the values lack are null. A value that the type cannot
    have, such as a number that is too large, is an error of its payload.
    """

    def __init__(self, decoder: PayloadDecoder, kind: pa.DataType) -> None:
        self.type = kind
        self._decoder = decoder
        try:
            evolved(pa.nulls(1, decoder.type), kind)
        except MISFITS as error:
            raise SchemaError(
                f"{decoder.type} cannot be read as {kind}: {' '.join(str(error).split())}"
            ) from None

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads, and bring them to the type. Raises OverflowError if the columns take too many bytes."""
        size = payloads.size_in_bytes

        def brought(found: pa.Array, kind: pa.DataType = self.type) -> pa.Array:
            budget = ColumnBudget(size)
            budget.take(found.nbytes)
            return evolved(found, kind, budget=budget)

        decoded = self._decoder.decode(payloads)
        array = decoded.array
        try:
            return DecodedPayloads(brought(array), decoded.errors)
        except MISFITS:
            errors = dict(decoded.errors)
        for row in chunk_error_rows(len(array), lambda start, end: brought(_rows(array, start, end))):
            errors[row] = _misfit(_rows(array, row, row + 1), self.type, "", brought)
        places = np.arange(len(array))
        valid = np.ones(len(array), np.bool_)
        valid[list(errors)] = False
        return DecodedPayloads(brought(array.take(number_array(pa.int64(), places, valid))), errors)


def _nulls(count: int, kind: pa.DataType, budget: ColumnBudget | None) -> pa.Array:
    """Return nulls. They take no bytes of a payload, and one that has many items could take any memory."""
    if budget is not None:
        budget.take(count * pa.nulls(_SAMPLED_NULLS, kind).nbytes // _SAMPLED_NULLS)
    return pa.nulls(count, kind)


def evolved(
    array: pa.Array,
    kind: pa.DataType,
    convert: Callable[[pa.Array, pa.DataType], pa.Array] | None = None,
    budget: ColumnBudget | None = None,
) -> pa.Array:
    """Return an array as another type. Raises one of MISFITS if a value does not fit.

    convert: how the arrays in a nested one become others; None for this function.
    budget: counts the nulls of fields that the array lacks, and the results of casts. Only offsets that become those of
        a large list are not counted: they take twice the bytes of those that the array has.
    """
    convert = convert or partial(evolved, budget=budget)
    if array.type == kind:
        return array
    if pa.types.is_null(array.type):
        return _nulls(len(array), kind, budget)
    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        names = {field.name: place for place, field in enumerate(array.type)}
        children = [
            convert(array.field(names[field.name]), field.type)
            if field.name in names
            else _nulls(len(array), field.type, budget)
            for field in kind
        ]
        mask = array.is_null() if array.null_count else None
        if not children:
            return array.cast(kind)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    if _is_list(array.type) and _is_list(kind):
        whole, mask = _unsliced(array)
        items = convert(whole.values, kind.value_type)
        return type(whole).from_arrays(whole.offsets, items, mask=mask).cast(kind)
    if pa.types.is_map(array.type) and pa.types.is_map(kind):
        whole, mask = _unsliced(array)
        keys, items = convert(whole.keys, kind.key_type), convert(whole.items, kind.item_type)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, mask=mask).cast(kind)
    result = array.cast(kind)
    if budget is not None:
        budget.take(result.nbytes)
    if pa.types.is_floating(kind):
        _ensure_finite(array, result)
    return result


def _ensure_finite(array: pa.Array, result: pa.Array) -> None:
    """Raise ArrowInvalid if a number, or the text of one, became infinite. Casts check the range of integers only."""
    if pa.types.is_integer(array.type) or pa.types.is_boolean(array.type):
        return
    infinite = _infinite_values(result)
    if not infinite.any():
        return
    if pa.types.is_floating(array.type):
        infinite &= ~_infinite_values(array)
    elif pa.types.is_string(array.type) or pa.types.is_large_string(array.type):  # text may say "inf"
        infinite &= true_values(pc.match_substring_regex(array, "[0-9]"))
    if infinite.any():
        raise pa.ArrowInvalid(f"{array[int(infinite.argmax())]} is beyond the range of {result.type}")


def _infinite_values(array: pa.Array) -> NDArray[np.bool_]:
    """Return which entries of an array of floating numbers are infinite. Null is not."""
    if array.null_count == len(array):
        return np.zeros(len(array), np.bool_)
    numbers = np.frombuffer(array.buffers()[1], array.type.to_pandas_dtype(), array.offset + len(array))
    infinite: NDArray[np.bool_] = np.isinf(numbers[array.offset :])
    valid = valid_values(array)
    return infinite if valid is None else infinite & valid


def _rows(array: pa.Array, start: int, end: int) -> pa.Array:
    """Return a copy of some rows. A cast of a slice also casts the items of arrays outside of it."""
    return array.take(number_array(pa.int64(), np.arange(start, end)))


def _misfit(
    row: pa.Array, kind: pa.DataType, path: str, bring: Callable[[pa.Array, pa.DataType], pa.Array]
) -> str:
    """Return what in one value, or in the items of an array, cannot be brought to a type: its field, and what it is."""
    parts: Iterable[tuple[pa.Array, pa.DataType, str]] = ()
    if pa.types.is_struct(row.type) and pa.types.is_struct(kind):
        parts = [
            (row.field(field.name), field.type, f"{path}.{field.name}" if path else field.name)
            for field in kind
            if row.type.get_field_index(field.name) >= 0
        ]
    elif _is_list(row.type) and _is_list(kind):
        items = row.flatten()
        found = chunk_error_rows(
            len(items), lambda start, end: bring(_rows(items, start, end), kind.value_type)
        )
        parts = ((_rows(items, place, place + 1), kind.value_type, f"{path}[]") for place in found)
    for part, part_kind, part_path in parts:
        try:
            bring(part, part_kind)
        except MISFITS:
            return _misfit(part, part_kind, part_path, bring)
    place = f"field {path}: " if path else ""
    shown = row.to_string(indent=0, skip_new_lines=True)[1:-1]
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
    return f"{place}expected a value of type {kind}; found {shown}"


def _unsliced(array: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return a list or map array with its own items only, as `from_arrays` wants it, and which entries are null."""
    items = array.keys if pa.types.is_map(array.type) else array.values
    is_slice = array.offset or (len(array.offsets) and array.offsets[-1].as_py() < len(items))
    whole = pa.concat_arrays([array.slice(0, 0), array]) if is_slice else array
    return whole, whole.is_null() if whole.null_count else None


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
