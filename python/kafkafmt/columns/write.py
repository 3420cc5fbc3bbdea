"""Turn columns of numpy or Arrow arrays into the kernel's `ColumnRows`, without reading or copying byte strings.

Chunked Arrow arrays are divided wherever a chunk of any of them ends, so that the kernel gets whole buffers. pyarrow is
imported only for a column that is an Arrow array: then the caller has imported it, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from _kafkafmt.columns.column_rows import ColumnEntries, ColumnRows
from kafkafmt.columns.read import BinaryColumn, HeadersColumn

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

Timestamps: TypeAlias = "NDArray[np.int64] | pa.Array | pa.ChunkedArray"
Binary: TypeAlias = "BinaryColumn | pa.Array | pa.ChunkedArray | None"
Headers: TypeAlias = "HeadersColumn | pa.Array | pa.ChunkedArray | None"
Offsets: TypeAlias = "NDArray[np.int64] | pa.Array | pa.ChunkedArray | None"

# Arrow's units per millisecond. Arrow's remaining unit, the second, is longer than a millisecond.
_PER_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def column_rows(
    timestamps: Timestamps, keys: Binary, values: Binary, headers: Headers, offsets: Offsets = None
) -> list[ColumnRows]:
    """Return the records of the columns as `ColumnRows`: one for each range of rows that is whole in all chunks.

    Without records it is one empty `ColumnRows`, so that types are checked. Raises TypeError for a column of a wrong
    type, and ValueError if lengths differ or timestamps or offsets have nulls.
    """
    columns = {
        "timestamps": timestamps,
        "keys": keys,
        "values": values,
        "headers": headers,
        "offsets": offsets,
    }
    if timestamps is None:
        raise TypeError("timestamps: expected int64 or Arrow timestamps, found None")
    lengths = {name: _length(name, column) for name, column in columns.items() if column is not None}
    count = lengths["timestamps"]
    for name, length in lengths.items():
        if length != count:
            raise ValueError(f"{name}: expected {count} entries, one per timestamp, found {length}")
    return [
        _part({name: _slice(column, start, stop) for name, column in columns.items()}, start)
        for start, stop in pairwise(_cuts(columns.values()))
    ]


def _part(columns: dict[str, Any], origin: int) -> ColumnRows:
    return ColumnRows(
        _milliseconds(columns["timestamps"]),
        _entries("keys", columns["keys"]),
        _entries("values", columns["values"]),
        *_header_entries(columns["headers"]),
        _offsets(columns["offsets"]),
        origin=origin,
    )


def _length(name: str, column: Any) -> int:
    if isinstance(column, BinaryColumn | HeadersColumn):
        return len(_checked(f"{name}: offsets", column.offsets, np.int64)) - 1
    if isinstance(column, np.ndarray) or _is_arrow(column):
        return len(column)
    raise _type_error(name, column)


def _is_arrow(column: Any) -> bool:
    pyarrow = sys.modules.get("pyarrow")
    return pyarrow is not None and isinstance(column, pyarrow.Array | pyarrow.ChunkedArray)


def _is_chunked(column: Any) -> bool:
    return _is_arrow(column) and hasattr(column, "chunks")


def _cuts(columns: Iterable[Any]) -> list[int]:
    """Return the rows where a chunk of any column begins or ends, in order; [0, 0] if there are no records."""
    cuts = {0}
    for column in columns:
        if _is_chunked(column):
            cuts.update(accumulate(map(len, column.chunks)))
        elif column is not None:
            cuts.add(len(column))
    return sorted(cuts) if len(cuts) > 1 else [0, 0]


def _slice(column: Any, start: int, stop: int) -> Any:
    """Return the entries from `start` to `stop` (exclusive), which must be in one chunk."""
    if column is None or (start == 0 and stop == len(column) and not _is_chunked(column)):
        return column
    if isinstance(column, BinaryColumn):
        valid = None if column.valid is None else column.valid[start:stop]
        return BinaryColumn(column.offsets[start : stop + 1], column.data, valid)
    if isinstance(column, HeadersColumn):
        return HeadersColumn(column.offsets[start : stop + 1], column.keys, column.values)
    if isinstance(column, np.ndarray):
        return column[start:stop]
    part = column.slice(start, stop - start)
    if not _is_chunked(part):
        return part
    return next(chunk for chunk in part.chunks if len(chunk)) if start < stop else part.combine_chunks()


def _milliseconds(timestamps: Any) -> NDArray[np.int64]:
    if isinstance(timestamps, np.ndarray):
        milliseconds: NDArray[np.int64] = _checked("timestamps", timestamps, np.int64)
        return milliseconds
    if not _is_arrow(timestamps):
        raise _type_error("timestamps", timestamps)
    import pyarrow as pa

    from kafkafmt.columns.arrow import int64_values

    kind = timestamps.type
    if timestamps.null_count:
        raise ValueError(f"timestamps: expected no nulls, found {timestamps.null_count}")
    if pa.types.is_int64(kind):
        return int64_values(timestamps)
    if not pa.types.is_timestamp(kind):
        raise _type_error("timestamps", timestamps)
    if kind.unit not in _PER_MILLISECOND:
        return int64_values(timestamps.cast(pa.timestamp("ms", kind.tz)))
    per_millisecond = _PER_MILLISECOND[kind.unit]
    numbers = int64_values(timestamps.cast(pa.int64()))
    return numbers if per_millisecond == 1 else numbers // per_millisecond


def _offsets(offsets: Any) -> NDArray[np.int64] | None:
    if offsets is None or isinstance(offsets, np.ndarray):
        return None if offsets is None else _checked("offsets", offsets, np.int64)
    import pyarrow as pa

    from kafkafmt.columns.arrow import int64_values

    if not pa.types.is_int64(offsets.type):
        raise _type_error("offsets", offsets)
    if offsets.null_count:
        raise ValueError(f"offsets: expected no nulls, found {offsets.null_count}")
    return int64_values(offsets)


def _entries(name: str, column: Any) -> ColumnEntries | None:
    if column is None:
        return None
    if isinstance(column, BinaryColumn):
        return _numpy_entries(name, column)
    if _is_arrow(column):
        return _arrow_entries(name, column)
    raise _type_error(name, column)


def _numpy_entries(name: str, column: BinaryColumn) -> ColumnEntries:
    offsets = _checked(f"{name}: offsets", column.offsets, np.int64)
    data = _checked(f"{name}: data", column.data, np.uint8)
    valid = None if column.valid is None else _checked(f"{name}: valid", column.valid, np.bool_)
    if valid is not None and len(valid) != len(column):
        raise ValueError(f"{name}: valid: expected {len(column)} entries, found {len(valid)}")
    return ColumnEntries(len(column), offsets.itemsize, offsets, data=[data], valid=valid)


def _arrow_entries(name: str, array: Any) -> ColumnEntries | None:
    import pyarrow as pa

    sizes = {
        pa.binary(): 4,
        pa.string(): 4,
        pa.large_binary(): 8,
        pa.large_string(): 8,
        pa.binary_view(): 16,
        pa.string_view(): 16,
    }
    if array.type == pa.null():
        return None
    if array.type not in sizes:
        raise _type_error(name, array)
    valid, entries, *data = array.buffers()
    return ColumnEntries(
        len(array),
        sizes[array.type],
        entries or b"",
        first=array.offset,
        data=[b"" if buffer is None else buffer for buffer in data],
        valid=valid if array.null_count else None,
        bitmap=True,
    )


def _header_entries(column: Any) -> tuple[ColumnEntries | None, ColumnEntries | None, ColumnEntries | None]:
    """Return three: each record's offsets into the headers of all records, the keys of these, and their values."""
    if column is None:
        return None, None, None
    if isinstance(column, HeadersColumn):
        offsets = _checked("headers: offsets", column.offsets, np.int64)
        keys, values = _entries("headers: keys", column.keys), _entries("headers: values", column.values)
        if keys is None or values is None:
            raise TypeError("headers: expected keys and values, found None")
        limit = min(len(keys), len(values))
        return ColumnEntries(len(column), offsets.itemsize, offsets, limit=limit), keys, values
    if not _is_arrow(column):
        raise _type_error("headers", column)
    return _arrow_header_entries(column)


def _arrow_header_entries(
    array: Any,
) -> tuple[ColumnEntries | None, ColumnEntries | None, ColumnEntries | None]:
    import pyarrow as pa

    kind = array.type
    if kind == pa.null():
        return None, None, None
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_struct(kind.value_type) or kind.value_type.num_fields != 2:
        raise _type_error("headers", array)
    keys, values = array.values.flatten()
    # pyarrow takes the order of the fields from the first dict.
    if [field.name for field in kind.value_type] == ["value", "key"]:
        keys, values = values, keys
    valid, offsets = array.buffers()[:2]
    entries = ColumnEntries(
        len(array),
        8 if pa.types.is_large_list(kind) else 4,
        offsets or b"",
        first=array.offset,
        limit=len(array.values),
        valid=valid if array.null_count else None,
        bitmap=True,
    )
    return entries, _arrow_entries("headers: keys", keys), _arrow_entries("headers: values", values)


def _checked(name: str, array: Any, dtype: type[np.generic]) -> Any:
    """Return the array, copied if it is not contiguous. Raises TypeError for another dtype or not one dimension."""
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != 1:
        expected = np.dtype(dtype).name
        raise TypeError(
            f"{name}: expected an array of {expected}, of one dimension, found {_described(array)}"
        )
    return np.ascontiguousarray(array)


def _type_error(name: str, column: Any) -> TypeError:
    expected = {
        "timestamps": "an array of int64, or Arrow timestamps",
        "offsets": "an array of int64, or None",
        "headers": "a HeadersColumn, an Arrow array of lists of structs of key and value, or None",
    }.get(name, "a BinaryColumn, an Arrow array of a binary or string type, or None")
    return TypeError(f"{name}: expected {expected}, found {_described(column)}")


def _described(column: Any) -> str:
    if _is_arrow(column):
        return f"an Arrow array of {column.type}"
    if isinstance(column, np.ndarray):
        return f"an array of {column.dtype} of {column.ndim} dimensions"
    return f"{type(column).__name__}"
