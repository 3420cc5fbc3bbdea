"""Decode JSON payloads, each on its own, to the columns of a type.

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
| timestamp | string, ISO 8601: a date, or a date and a time, with an offset or in UTC; zeros at its end are left out |
| date | string such as 2020-02-03 |

Each of them may be null. Text fields that may have any JSON get its text, byte for byte.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.json import ReadStatus
from kafkafmt.decode.arrays import payload_bytes
from kafkafmt.decode.json_types import Program
from kafkafmt.decode.payloads import DecodedPayloads, Payloads

_SHOWN_BYTES = 40


class JsonDecoder:
    """Decodes JSON to a type.

    kind: the type of the values. Fields that it lacks are left out; with `strict`, they are errors unless all their
        values are null.
    text_fields: paths whose fields, if they are text, may have any JSON, whose text they become.

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
        """Decode payloads. Raises OverflowError if the columns take too many bytes or items."""
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
