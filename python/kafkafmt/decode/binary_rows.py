"""The bytes of the rows of an Arrow column as numpy arrays, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kafkafmt.columns.arrow import valid_values

if TYPE_CHECKING:
    from numpy.typing import NDArray


class BinaryRows(NamedTuple):
    """The bytes of rows: row i is data[starts[i]:ends[i]], or null if present[i] is false.

    data: uint8. starts, ends: int64. present: bool.
    """

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    present: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.starts)

    def row(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def numbers(self, rows: NDArray[np.int64], skip: int, width: int) -> NDArray[np.uint64]:
        """Return the big-endian number at `skip` in each of some rows. They have its `width` of at most 8 bytes."""
        return big_endian(self.data, self.starts[rows] + skip, width)


def big_endian(data: NDArray[np.uint8], positions: NDArray[np.int64], width: int) -> NDArray[np.uint64]:
    """Return the big-endian unsigned numbers of `width` bytes, at most 8, at some positions."""
    found = np.zeros(len(positions), np.uint64)
    for place in range(width):
        found = (found << np.uint64(8)) | data[positions + place]
    return found


def binary_rows(array: Any) -> BinaryRows:
    """Return the rows of an Arrow array of bytes or of text, of any layout."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
        width: type[np.integer[Any]] = np.int64
    elif pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        width = np.int32
    else:
        return binary_rows(array.cast(pa.large_binary()))
    count = len(array)
    present = valid_values(array)
    if present is None:
        present = np.ones(count, np.bool_)
    _, offsets, data = array.buffers()
    if not count or offsets is None:
        empty = np.zeros(count, np.int64)
        return BinaryRows(np.empty(0, np.uint8), empty, empty, present)
    places = np.frombuffer(offsets, width, count + 1, array.offset * np.dtype(width).itemsize)
    bounds = places.astype(np.int64)
    values = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return BinaryRows(values, bounds[:-1], bounds[1:], present)
