"""Arrow arrays made of buffers, and buffers out of them; nothing is copied.

pyarrow's `array`, `scalar` and `to_numpy` import pandas where it is installed: half a second and 50 MB more for every
Python worker of a Spark executor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_STRING_BYTES = np.iinfo(np.int32).max
_VIEW_BYTES = 16


def bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    """Booleans as Arrow has them, a bit each; None stands for no bitmap: nothing is null."""
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


def number_array(
    kind: pa.DataType, numbers: NDArray[Any], valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Numbers or times, end to end and as wide as those of `kind`; valid: False for null, None without nulls."""
    return pa.Array.from_buffers(kind, len(numbers), [bitmap(valid), pa.py_buffer(numbers)])


def boolean_array(values: NDArray[np.bool_], valid: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(values), [bitmap(valid), bitmap(values)])


def string_array(
    kind: pa.DataType, offsets: NDArray[np.int32], data: Any, valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    """Bytes or text, as `kind` says: string i is data[offsets[i]:offsets[i + 1]]."""
    buffers = [bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def view_array(views: NDArray[np.uint8], valid: NDArray[np.bool_] | None, buffers: list[Any]) -> pa.Array:
    """Arrow's binary views, 16 bytes each, into `buffers`."""
    parts = [bitmap(valid), *map(pa.py_buffer, [views, *buffers])]
    return pa.Array.from_buffers(pa.binary_view(), len(views) // _VIEW_BYTES, parts)


def list_array(kind: pa.DataType, offsets: NDArray[np.int32], items: pa.Array) -> pa.Array:
    """Lists, of which those without items are null."""
    present = np.diff(offsets) > 0
    buffers = [None if present.all() else bitmap(present), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(present), buffers, children=[items])


def repeated_text(text: str | None, count: int) -> pa.Array:
    """`text`, or null, `count` times. Raises OverflowError for more than one array holds."""
    if text is None:
        return pa.nulls(count, pa.string())
    data = text.encode()
    if len(data) * count > _MOST_STRING_BYTES:
        raise OverflowError(f"{len(data) * count} bytes do not fit into one column with int32 offsets")
    return string_array(pa.string(), np.arange(count + 1, dtype=np.int32) * len(data), data * count)


def repeated_int(number: int | None, count: int) -> pa.Array:
    """`number`, or null, `count` times, as int32."""
    if number is None:
        return pa.nulls(count, pa.int32())
    return number_array(pa.int32(), np.full(count, number, np.int32))


def int64_values(array: pa.Array) -> NDArray[np.int64]:
    """64-bit numbers without nulls as a numpy array, which shares their memory."""
    if not len(array):  # it may have no buffers
        return np.empty(0, np.int64)
    _, data = array.buffers()
    return np.frombuffer(data, np.int64, len(array), array.offset * np.dtype(np.int64).itemsize)


def valid_values(array: pa.Array) -> NDArray[np.bool_] | None:
    """False for null; None without nulls."""
    if not array.null_count:
        return None
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, bitorder="little")[array.offset : array.offset + len(array)].astype(np.bool_)
