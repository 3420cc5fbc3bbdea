"""Decode JSON payloads with pyarrow's JSON reader: the payloads of a group are joined to lines and read in one call.

pyarrow reads one document after another and does not care for lines. Rows stay aligned all the same: each payload
starts with `{` and ends with `}`, a line feed in a string is not JSON, and `}` before `{` is in no document. So no
document continues in the next payload, each payload has at least one, and a count equal to that of the payloads proves
that each has one. If the read fails or counts otherwise, the rows that cause it are found and become errors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import pyarrow as pa

from kafkafmt.columns.arrow import number_array
from kafkafmt.decode.arrays import binary_array, chunk_error_rows, payload_bytes
from kafkafmt.decode.grouping import in_row_order
from kafkafmt.decode.json_types import JsonReading, inferred_type, json_reading, unknown_fields
from kafkafmt.decode.payloads import DecodedPayloads, Payloads, SchemaError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_DEPTH = 100  # of payloads whose fields are inferred: pyarrow's reader recurses, without a limit
_LEAST_BLOCK_BYTES = 1 << 20
_CACHED_BYTES = 1 << 17


class JsonDecoder:
    """Decodes JSON objects to a struct, or any JSON to another type.

    type: of the values. Fields that it lacks are left out; with `strict`, they are errors.
    text_fields: paths of text fields that may have any JSON, whose text they become.
    """

    def __init__(
        self,
        kind: pa.DataType,
        *,
        strict: bool = False,
        text_fields: frozenset[tuple[str, ...]] = frozenset(),
    ) -> None:
        self.type = kind
        self._strict = strict
        self._reading: JsonReading = json_reading(kind, text_fields)

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        errors: dict[int, str] = {}
        array = binary_array(payloads)
        rows = _object_rows(payloads, errors) if not self._reading.rewrites else np.arange(len(payloads))
        rows = _text_rows(array, rows, errors)
        if self._reading.rewrites:
            rows, array = self._rewritten(payloads, rows, errors)
        elif len(rows) < len(payloads):
            array = array.take(number_array(pa.int64(), rows))
        parts = [(rows[kept], part) for kept, part in self._read(array, rows, errors)]
        return DecodedPayloads(in_row_order(self.type, parts, len(payloads)), errors)

    def _rewritten(
        self, payloads: Payloads, rows: NDArray[np.int64], errors: dict[int, str]
    ) -> tuple[NDArray[np.int64], pa.Array]:
        """Return payloads in the form that pyarrow's reader takes for the type."""
        kept, texts = [], []
        for row in rows.tolist():
            try:
                # As text: json.loads takes bytes with zeros for UTF-16.
                value = json.loads(payload_bytes(payloads, row).decode(), parse_constant=_refuse_constant)
                if value is not None:
                    texts.append(json.dumps(self._reading.rewrite(value)).encode())
                    kept.append(row)
            except (ValueError, RecursionError) as error:
                errors[row] = _python_error(error)
        return np.array(kept, np.int64), pa.array(texts, pa.large_binary())

    def _read(
        self, array: pa.Array, rows: NDArray[np.int64], errors: dict[int, str]
    ) -> Iterator[tuple[NDArray[np.int64], pa.Array]]:
        """Yield values with the indexes of their payloads in `array`. rows: the row of each, for errors."""
        indexes = np.arange(len(array))
        if self._strict:
            indexes = indexes[_shallow(array, rows, errors)]
        pending = [(indexes, False)]
        while pending:
            indexes, checked = pending.pop()
            if not len(indexes):
                continue
            part = array if len(indexes) == len(array) else array.take(number_array(pa.int64(), indexes))
            try:
                yield from self._checked(part, indexes, rows, errors)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                if len(indexes) == 1:
                    errors[int(rows[indexes[0]])] = _arrow_error(error)
                elif not checked:
                    pending.append((_well_formed(array, indexes, rows, errors), True))
                else:
                    middle = len(indexes) // 2
                    pending += [(indexes[middle:], True), (indexes[:middle], True)]

    def _checked(
        self, array: pa.Array, indexes: NDArray[np.int64], rows: NDArray[np.int64], errors: dict[int, str]
    ) -> Iterator[tuple[NDArray[np.int64], pa.Array]]:
        values = read_lines(array, self._reading.physical, infer=self._strict)
        if not self._strict or values.type == self._reading.physical:
            yield indexes, self._reading.logical(values)
            return
        unknown = np.zeros(len(array), np.bool_)
        for path, found in unknown_fields(values, self._reading.physical):
            for row in rows[indexes[found]].tolist():
                errors.setdefault(row, f"expected no field {path}, which the inferred type lacks; found one")
            unknown[found] = True
        kept = np.flatnonzero(~unknown)
        if len(kept):
            known = array.take(number_array(pa.int64(), kept))
            yield indexes[kept], self._reading.logical(read_lines(known, self._reading.physical, infer=False))


def infer_json_type(payloads: Payloads) -> pa.DataType:
    """Return the type of JSON objects: that of all their fields.

    Text stays text if it looks like a time. A field that is always null becomes text. Objects without fields are left
    out. Payloads that are damaged are ignored.

    Raises SchemaError if no payload is a JSON object with fields.
    """
    errors: dict[int, str] = {}
    rows = _text_rows(binary_array(payloads), _object_rows(payloads, errors), errors)
    array = binary_array(payloads).take(number_array(pa.int64(), rows))
    array = array.take(number_array(pa.int64(), _shallow(array, rows, errors)))
    if len(array):
        try:
            found = read_lines(array, pa.struct([]), infer=True).type
        except pa.ArrowInvalid:
            kept = _well_formed(array, np.arange(len(array)), np.arange(len(array)), errors)
            found = _inferred_by_parts(array.take(number_array(pa.int64(), kept)))
        found = inferred_type(found)
        if found is not None:
            return found
    raise SchemaError("no record has a JSON object with fields to infer a type from: give reader_schema")


def _inferred_by_parts(array: pa.Array) -> pa.DataType:
    """Return the type of the payloads that can be read with those before them."""
    known = pa.struct([])
    bad = set(
        chunk_error_rows(len(array), lambda start, end: read_lines(array[start:end], known, infer=True))
    )
    found = known
    for row in range(len(array)):
        if row not in bad:
            try:
                found = read_lines(array[row : row + 1], found, infer=True).type
            except pa.ArrowInvalid:
                continue  # another type than in the rows before: it will be an error when it is decoded
    return found


def read_lines(array: pa.Array, kind: pa.DataType, *, infer: bool) -> pa.Array:
    """Return JSON objects as structs. array: large binary; each starts with `{` and ends with `}`.

    infer: fields that the type lacks are appended to it; otherwise they are left out.

    Raises ArrowInvalid if there is an object that is damaged or has other types, or more than one in an entry.
    """
    import pyarrow.compute as pc
    from pyarrow import json as arrow_json

    count = len(array)
    bounds = number_array(pa.int32(), np.array([0, count], np.int32))
    lines = pc.binary_join(pa.ListArray.from_arrays(bounds, array), pa.scalar(b"\n", pa.large_binary()))
    buffer = lines.buffers()[2]
    _, offsets, _ = array.buffers()
    lengths = np.diff(np.frombuffer(offsets, np.int64, count + 1, array.offset * 8))
    data = np.frombuffer(buffer, np.uint8)
    if _count_below(data, ord("\r") + 1) != count - 1:
        # pyarrow cuts blocks at line feeds. Outside of strings a tab has the same meaning; in strings both are errors.
        data = np.where((data == ord("\n")) | (data == ord("\r")), np.uint8(ord("\t")), data)
        data[np.cumsum(lengths)[:-1] + np.arange(count - 1)] = ord("\n")
        buffer = pa.py_buffer(data)
    block = max(_LEAST_BLOCK_BYTES, 2 * int(lengths.max()) + 2)
    table = arrow_json.read_json(
        pa.BufferReader(buffer),
        read_options=arrow_json.ReadOptions(use_threads=len(data) > block, block_size=block),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema(list(kind)), unexpected_field_behavior="infer" if infer else "ignore"
        ),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid(f"expected one JSON object in each of {count} payloads; found {table.num_rows}")
    if not table.num_columns:
        return _empty(count)
    columns = [column.combine_chunks() for column in table.columns]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def _count_below(data: NDArray[np.uint8], limit: int) -> int:
    """Return how many bytes are less than a limit. Works in parts that stay in the cache of the processor."""
    parts = range(0, len(data), _CACHED_BYTES)
    return sum(int(np.count_nonzero(data[start : start + _CACHED_BYTES] < limit)) for start in parts)


def _empty(count: int) -> pa.Array:
    """Return structs without fields."""
    return pa.Array.from_buffers(pa.struct([]), count, [None], children=[])


def _object_rows(payloads: Payloads, errors: dict[int, str]) -> NDArray[np.int64]:
    """Return the rows that start with `{` and end with `}`; the others become errors."""
    rows = np.flatnonzero(payloads.ends - payloads.starts >= 2)
    opened = payloads.data[payloads.starts[rows]] == ord("{")
    closed = payloads.data[payloads.ends[rows] - 1] == ord("}")
    fits = np.zeros(len(payloads), np.bool_)
    fits[rows] = opened & closed
    for row in np.flatnonzero(~fits).tolist():
        text = payload_bytes(payloads, row).strip(b" \t\r\n")
        if text.startswith(b"{") and text.endswith(b"}"):
            fits[row] = True
            continue
        try:
            found = json.loads(text)
            if found is not None:
                errors[row] = f"position 0: expected a JSON object; found {type(found).__name__}"
        except (ValueError, RecursionError) as error:
            errors[row] = _python_error(error)
    return np.flatnonzero(fits)


def _text_rows(array: pa.Array, rows: NDArray[np.int64], errors: dict[int, str]) -> NDArray[np.int64]:
    """Return the rows that are UTF-8; the others become errors. pyarrow's JSON reader does not check this."""
    try:
        array.cast(pa.large_string())
        return rows
    except pa.ArrowInvalid:
        pass
    bad = set(chunk_error_rows(len(array), lambda start, end: array[start:end].cast(pa.large_string())))
    for row in bad:
        errors[row] = "expected UTF-8; found other bytes"
    return rows[[row not in bad for row in rows.tolist()]]


def _shallow(array: pa.Array, rows: NDArray[np.int64], errors: dict[int, str]) -> NDArray[np.int64]:
    """Return the indexes of payloads that are not nested too deeply; the others become errors."""
    if not len(array):
        return np.empty(0, np.int64)
    _, offsets, buffer = array.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    data = np.frombuffer(buffer, np.uint8)
    opening = np.flatnonzero((data | 0x20) == ord("{"))  # { and [ differ in this bit
    counts = np.diff(np.searchsorted(opening, bounds))
    deep = [
        index
        for index in np.flatnonzero(counts > MAX_DEPTH).tolist()
        if _depth(data[bounds[index] : bounds[index + 1]].tobytes()) > MAX_DEPTH
    ]
    for index in deep:
        errors[int(rows[index])] = f"expected at most {MAX_DEPTH} levels of objects and arrays; found more"
    kept = np.ones(len(array), np.bool_)
    kept[deep] = False
    return np.flatnonzero(kept)


def _depth(text: bytes) -> int:
    """Return the depth of JSON, or more if brackets in its strings do not match."""
    steps = np.zeros(256, np.int64)
    steps[list(b"{[")], steps[list(b"}]")] = 1, -1
    return int(np.cumsum(steps[np.frombuffer(text, np.uint8)]).max())


def _well_formed(
    array: pa.Array, indexes: NDArray[np.int64], rows: NDArray[np.int64], errors: dict[int, str]
) -> NDArray[np.int64]:
    """Return the indexes of payloads that are JSON; the others become errors, with their position."""
    kept = []
    for index in indexes.tolist():
        try:
            json.loads(array[index].as_py())
            kept.append(index)
        except (ValueError, RecursionError) as error:
            errors[int(rows[index])] = _python_error(error)
    return np.array(kept, np.int64)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"found {name}")


def _python_error(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"position {error.pos}: expected JSON; {error.msg}"
    if isinstance(error, RecursionError):
        return "expected JSON; it is nested too deeply"
    return f"expected JSON; {error}".replace("\n", " ")


def _arrow_error(error: Exception) -> str:
    text = str(error).replace("\n", " ").removeprefix("JSON parse error: ").removesuffix(" in row 0")
    return f"expected JSON of the type of the column; {text[:1].lower()}{text[1:]}"
