"""Make Arrow arrays of buffers, and numpy arrays of Arrow's buffers, without a copy of the values.

pyarrow's `array`, `scalar` and `to_numpy`, and numpy's `asarray` of an Arrow array, are avoided: they import pandas if
it is installed. That costs every Python worker of a Spark executor half a second and 50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_STRING_BYTES = np.iinfo(np.int32).max
_VIEW_BYTES = 16


def bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Return booleans as an Arrow bitmap, one bit each. None, which means no nulls, gives None."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def number_array(
    kind: pa.DataType, numbers: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return an Arrow array of numbers or times. Each number must be as wide as the type `kind`.

    valid: a boolean per number, False for null; None if there are no nulls.
    """
    return pa.Array.from_buffers(kind, len(numbers), [bitmap(valid), pa.py_buffer(numbers)])


def boolean_array(values: NDArray[np.bool_], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array of booleans. valid: False where an entry is null; None if there are no nulls."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap(valid), bitmap(values)])


def string_array(
    kind: pa.DataType, offsets: NDArray[np.int32], data: Any, valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return an Arrow array of bytes or text, by `kind`. String i is data[offsets[i]:offsets[i + 1]]."""
    buffers = [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def text_array(texts: Sequence[str], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return texts as an Arrow array. valid: False where an entry is null; None if there are no nulls.

    Raises OverflowError if the texts take 2^31 bytes or more in all.
    """
    parts = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    if offsets[-1] > _MAX_STRING_BYTES:
        raise OverflowError(f"{offsets[-1]} bytes do not fit into one column with int32 offsets")
    return string_array(pa.string(), offsets.astype(np.int32), b"".join(parts), valid)


def view_array(views: NDArray[np.uint8], valid: NDArray[np.bool_] | None, buffers: list[Any]) -> pa.Array:
    """Return an Arrow array of binary views. Each view is 16 bytes and refers to one of `buffers`."""
    parts = [bitmap(valid), *map(pa.py_buffer, [views, *buffers])]
    return pa.Array.from_buffers(pa.binary_view(), len(views) // _VIEW_BYTES, parts)


def list_array(kind: pa.DataType, offsets: NDArray[np.int32], items: pa.Array) -> pa.Array:
    """Return an Arrow array of lists. List i is items[offsets[i]:offsets[i + 1]]; an empty list is null."""
    present = np.diff(offsets) > 0
    buffers = [None if present.all() else bitmap(present), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(present), buffers, children=[items])


def repeated_text(text: str | None, count: int) -> pa.Array:
    """Return an Arrow array with `text`, or null for None, `count` times.

    Raises OverflowError if the text takes 2^31 bytes or more in all.
    """
    if text is None:
        return pa.nulls(count, pa.string())
    data = text.encode()
    if len(data) * count > _MAX_STRING_BYTES:
        raise OverflowError(f"{len(data) * count} bytes do not fit into one column with int32 offsets")
    return string_array(pa.string(), np.arange(count + 1, dtype=np.int32) * len(data), data * count)


def repeated_int(number: int | None, count: int) -> pa.Array:
    """Return an Arrow array of int32 with `number`, or null for None, `count` times."""
    if number is None:
        return pa.nulls(count, pa.int32())
    return number_array(pa.int32(), np.full(count, number, np.int32))


def int64_values(array: pa.Array) -> NDArray[np.int64]:
    """Return an Arrow array of 64-bit integers without nulls as a numpy array, which shares its memory."""
    if not len(array):  # an empty array may have no buffers
        return np.empty(0, np.int64)
    _, data = array.buffers()
    return np.frombuffer(data, np.int64, len(array), array.offset * np.dtype(np.int64).itemsize)


def true_values(array: pa.Array) -> NDArray[np.bool_]:
    """Return which entries of an array of booleans are true. Null is not."""
    if not len(array):
        return np.empty(0, np.bool_)
    values, valid = _bits(array, array.buffers()[1]), valid_values(array)
    return values if valid is None else values & valid


def valid_values(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return a boolean per entry, False for null. Returns None if there are no nulls."""
    if not array.null_count:
        return None
    return _bits(array, array.buffers()[0])


def _bits(array: pa.Array, buffer: pa.Buffer) -> NDArray[np.bool_]:
    """Return the bits of a buffer of an array, one an entry."""
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)
