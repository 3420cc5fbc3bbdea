"""Decode text, and numbers as Kafka's own serializers write them: big-endian, of a fixed length."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from kafkafmt.columns.arrow import boolean_array, number_array, string_array
from kafkafmt.decode.arrays import binary_array, chunk_error_rows, payload_bytes
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UUID_TEXT_BYTES = 36  # Kafka's UUIDSerializer writes the text of a UUID


class _Number(NamedTuple):
    """A type of number: its bytes as Kafka writes them, in the machine's order, and as Arrow has them."""

    stored: str
    native: str
    type: pa.DataType


# By the names of Kafka's serializers: ShortSerializer and so on.
_NUMBERS = {
    "short": _Number(">i2", "=i2", pa.int16()),
    "integer": _Number(">i4", "=i4", pa.int32()),
    "long": _Number(">i8", "=i8", pa.int64()),
    "float": _Number(">f4", "=f4", pa.float32()),
    "double": _Number(">f8", "=f8", pa.float64()),
}


def primitive_decoder(name: str) -> PayloadDecoder:
    """Return the decoder of a format without schemas: `text`, `boolean`, `uuid` or a number."""
    if name == "text":
        return _TextDecoder()
    if name == "boolean":
        return _BooleanDecoder()
    if name == "uuid":
        return _UuidDecoder()
    return _NumberDecoder(_NUMBERS[name])


class _TextDecoder:
    """Decodes UTF-8."""

    type = pa.string()

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        array = binary_array(payloads)
        errors: dict[int, str] = {}
        try:
            return DecodedPayloads(array.cast(pa.string()), errors)
        except pa.ArrowInvalid:
            pass
        for row in chunk_error_rows(len(payloads), lambda start, end: array[start:end].cast(pa.string())):
            try:
                payload_bytes(payloads, row).decode()
            except UnicodeDecodeError as error:
                found = payload_bytes(payloads, row)[error.start]
                errors[row] = f"position {error.start}: expected UTF-8; found byte {found:#04x}"
        return DecodedPayloads(_without(array, errors).cast(pa.string()), errors)


def _without(array: pa.Array, errors: dict[int, str]) -> pa.Array:
    """Return an array of bytes with null at some rows."""
    places = np.arange(len(array))
    valid = np.ones(len(array), np.bool_)
    valid[list(errors)] = False
    return array.take(number_array(pa.int64(), places, valid))


class _NumberDecoder:
    """Decodes numbers of one length."""

    def __init__(self, number: _Number) -> None:
        self.type = number.type
        self._number = number

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        rows, errors = _with_length(payloads, np.dtype(self._number.stored).itemsize)
        numbers = np.zeros(len(payloads), self._number.native)
        numbers[rows] = self._stored(payloads, rows)
        return DecodedPayloads(number_array(self.type, numbers, _valid(len(payloads), errors)), errors)

    def _stored(self, payloads: Payloads, rows: NDArray[np.int64] | slice) -> NDArray[Any]:
        """Return the numbers of rows as they are stored."""
        starts, ends = payloads.starts[rows], payloads.ends[rows]
        data = np.ascontiguousarray(payloads.data)
        if len(starts) and (starts[1:] == ends[:-1]).all():
            return data[starts[0] : ends[-1]].view(self._number.stored)
        kind = np.dtype(self._number.stored)
        # The number at each byte of the data, without a copy.
        count = max(0, len(data) - kind.itemsize + 1)
        numbers: NDArray[Any] = np.ndarray(count, kind, data, strides=(1,))
        return numbers[starts]


class _BooleanDecoder:
    """Decodes booleans: one byte, 0 or 1."""

    type = pa.bool_()

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        rows, errors = _with_length(payloads, 1)
        values = np.zeros(len(payloads), np.uint8)
        values[rows] = payloads.data[payloads.starts[rows]]
        for row in np.flatnonzero(values > 1).tolist():
            errors[row] = f"position 0: expected byte 0 or 1; found {values[row]:#04x}"
        return DecodedPayloads(boolean_array(values == 1, _valid(len(payloads), errors)), errors)


class _UuidDecoder:
    """Decodes the text of UUIDs to text in lower case."""

    type = pa.string()

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        rows, errors = _with_length(payloads, _UUID_TEXT_BYTES)
        text = np.zeros((len(payloads), _UUID_TEXT_BYTES), np.uint8)
        text[rows] = payloads.data[payloads.starts[rows, np.newaxis] + np.arange(_UUID_TEXT_BYTES)]
        is_letter = (text >= ord("A")) & (text <= ord("F"))
        text[is_letter] += ord("a") - ord("A")
        is_digit = ((text >= ord("0")) & (text <= ord("9"))) | ((text >= ord("a")) & (text <= ord("f")))
        hyphens = np.zeros(_UUID_TEXT_BYTES, np.bool_)
        hyphens[[8, 13, 18, 23]] = True
        fits = np.where(hyphens, text == ord("-"), is_digit).all(axis=1)
        for row in np.flatnonzero(~fits).tolist():
            if row not in errors:
                found = payload_bytes(payloads, row)
                errors[row] = f"position 0: expected a UUID such as {uuid.UUID(int=0)}; found {found!r}"
        offsets = np.arange(len(payloads) + 1, dtype=np.int32) * _UUID_TEXT_BYTES
        text[list(errors)] = 0
        return DecodedPayloads(
            string_array(self.type, offsets, text.reshape(-1), _valid(len(payloads), errors)), errors
        )


def _with_length(payloads: Payloads, width: int) -> tuple[NDArray[np.int64] | slice, dict[int, str]]:
    """Return the payloads of this length, and errors for the others."""
    lengths = payloads.ends - payloads.starts
    fits = lengths == width
    if fits.all():
        return slice(None), {}
    errors = {
        row: f"position 0: expected {width} bytes; found {lengths[row]}"
        for row in np.flatnonzero(~fits).tolist()
    }
    return np.flatnonzero(fits), errors


def _valid(count: int, errors: dict[int, str]) -> NDArray[np.bool_] | None:
    if not errors:
        return None
    valid = np.ones(count, np.bool_)
    valid[list(errors)] = False
    return valid
