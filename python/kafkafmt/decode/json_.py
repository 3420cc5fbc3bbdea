"""Decode JSON payloads, each on its own, to the columns of a type; and infer the type of JSON objects.

A payload is one value of JSON (RFC 8259) in UTF-8, with nothing but space around it. A value that does not fit the type
is an error: it is not rounded to an integer or cut to fewer digits, and NaN and Infinity are not JSON.

| Arrow | JSON |
|---|---|
| struct | object: fields that it lacks are null, fields that the type lacks left out, a field twice an error |
| map with text as keys | object; entries with equal names are all kept |
| list, large_list | array |
| string, large_string | string |
| bool, null | true and false, only null |
| int, uint | number without a point and an exponent, within the bounds of the type |
| float, double | number: the nearest value; a number beyond all of them is an error |
| decimal | number, or string with one; its digits must fit without rounding |
| timestamp | string, ISO 8601: a date, or a date and a time, with an offset or in UTC |
| date | string such as 2020-02-03 |

Each of them may be null. Text fields that may have any JSON get its text, byte for byte.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.json import ReadStatus
from kafkafmt.columns.arrow import number_array
from kafkafmt.decode.arrays import chunk_error_rows, payload_bytes
from kafkafmt.decode.json_types import Program, inferred_type
from kafkafmt.decode.payloads import DecodedPayloads, Payloads, SchemaError

_LEAST_BLOCK_BYTES = 1 << 20
_SHOWN_BYTES = 40


class JsonDecoder:
    """Decodes JSON to a type.

    kind: the type of the values. Fields that it lacks are left out; with `strict`, they are errors unless all their
        values are null.
    text_fields: paths of text fields that may have any JSON, whose text they become.

    Raises SchemaError if JSON has no form for the type.
    """

    def __init__(
        self,
        kind: pa.DataType,
        *,
        strict: bool = False,
        text_fields: frozenset[tuple[str, ...]] = frozenset(),
    ) -> None:
        self.type = kind
        self._program = Program(kind, text_fields)
        self._reader = self._program.reader(is_strict=strict)

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. Raises OverflowError if a column takes 2^31 bytes or items."""
        arrays, failures = self._reader.read(
            np.ascontiguousarray(payloads.data),
            np.ascontiguousarray(payloads.starts),
            np.ascontiguousarray(payloads.ends),
        )
        errors = {
            row: self._error(
                payload_bytes(payloads, row)[position:], ReadStatus(status), step, position, found
            )
            for row, status, step, position, found in failures.tolist()
        }
        return DecodedPayloads(self._program.root.array(arrays), errors)

    def _error(self, rest: bytes, status: ReadStatus, step: int, position: int, found: int) -> str:
        """Return what was expected and what was found. rest: the payload from the position on."""
        path = self._program.paths[step]
        if status == ReadStatus.UNKNOWN_FIELD:
            name = _name(rest[:found])
            path = f"{path}.{name}" if path else name
            return f"position {position}: expected no field {path}, which the inferred type lacks; found one"
        place = f"position {position}, field {path}" if path else f"position {position}"
        if status == ReadStatus.WRONG_VALUE:
            return (
                f"{place}: expected a value of type {self._program.types[step]}; found {_shown(rest[:found])}"
            )
        if status == ReadStatus.FIELD_TWICE:
            return f"{place}: expected the field once; found it again"
        if status == ReadStatus.ENDS_EARLY:
            return f"position {position}: expected more JSON; the payload ends"
        byte = chr(found) if 0x20 < found < 0x7F else f"byte {found:#04x}"
        return f"position {position}: {_REASONS[status].format(limit=found, byte=byte)}"


_REASONS = {
    ReadStatus.NO_VALUE: "expected a JSON value; found {byte}",
    ReadStatus.NO_NAME: "expected the name of a field in quotes; found {byte}",
    ReadStatus.NO_COLON: "expected a colon after the name of a field; found {byte}",
    ReadStatus.NO_COMMA_IN_OBJECT: "expected a comma or }} after a field; found {byte}",
    ReadStatus.NO_COMMA_IN_ARRAY: "expected a comma or ] after an item; found {byte}",
    ReadStatus.NO_DIGIT: "expected a digit of a number; found {byte}",
    ReadStatus.ESCAPE: "expected a letter of an escape; found {byte}",
    ReadStatus.HEX_DIGIT: "expected four hexadecimal digits; found {byte}",
    ReadStatus.SURROGATE: "expected a pair of surrogates; found one alone",
    ReadStatus.CONTROL_BYTE: "expected an escape of a control character; found {byte}",
    ReadStatus.NOT_UTF8: "expected UTF-8 in a string; found other bytes",
    ReadStatus.DEPTH: "expected at most {limit} levels of objects and arrays; found more",
    ReadStatus.BYTES_LEFT: "expected the end of the payload; found {byte}",
}


def _name(text: bytes) -> str:
    """Return the name of a field. text: it in its quotes, with a colon and maybe space after it."""
    name, _ = json.JSONDecoder().raw_decode(text.decode())
    return " ".join(str(name).split())


def _shown(value: bytes) -> str:
    """Return a valid value for an error."""
    if value[:1] in b"{[":
        return "an object" if value[:1] == b"{" else "an array"
    if len(value) > _SHOWN_BYTES:
        return f"{value[:_SHOWN_BYTES].decode(errors='ignore')}..."
    return value.decode()


def infer_json_type(payloads: Payloads) -> pa.DataType:
    """Return the type of JSON objects: that of all their fields.

    Text stays text if it looks like a time. A field that is always null becomes text. Objects without fields are left
    out. Payloads that are damaged are ignored.

    Raises SchemaError if no payload is a JSON object with fields.
    """
    texts = JsonDecoder(pa.large_string(), text_fields=frozenset({()})).decode(payloads).array
    objects = _objects(texts)
    if len(objects):
        try:
            found = _read_objects(objects, pa.schema([]))
        except pa.ArrowInvalid:
            found = _inferred_by_parts(objects)
        kind = inferred_type(pa.struct(list(found)))
        if kind is not None:
            return kind
    raise SchemaError("no record has a JSON object with fields to infer a type from: give reader_schema")


def _objects(texts: pa.Array) -> pa.Array:
    """Return the texts that are objects."""
    import pyarrow.compute as pc

    return texts.filter(pc.fill_null(pc.starts_with(texts, "{"), False))


def _inferred_by_parts(objects: pa.Array) -> pa.Schema:
    """Return the type of the objects that can be read with those before them."""
    known = pa.schema([])
    bad = set(chunk_error_rows(len(objects), lambda start, end: _read_objects(objects[start:end], known)))
    found = known
    for row in range(len(objects)):
        if row not in bad:
            try:
                found = _read_objects(objects[row : row + 1], found)
            except pa.ArrowInvalid:
                continue  # another type than in the rows before: it will be an error when it is decoded
    return found


def _read_objects(objects: pa.Array, known: pa.Schema) -> pa.Schema:
    """Return a type with all fields of JSON objects after those that are known.

    Raises ArrowInvalid if the objects have fields of different types, or a field twice.
    """
    import pyarrow.compute as pc
    from pyarrow import json as arrow_json

    bounds = number_array(pa.int32(), np.array([0, len(objects)], np.int32))
    lines = pc.binary_join(pa.ListArray.from_arrays(bounds, objects), pa.scalar("\n", pa.large_string()))
    longest = int(pc.max(pc.binary_length(objects)).as_py())
    table = arrow_json.read_json(
        pa.BufferReader(lines.buffers()[2]),
        read_options=arrow_json.ReadOptions(block_size=max(_LEAST_BLOCK_BYTES, 2 * longest + 2)),
        parse_options=arrow_json.ParseOptions(explicit_schema=known, newlines_in_values=True),
    )
    return table.schema
