"""JSON payloads of random types against Python's `json`: written in every way, damaged, and cut."""

from __future__ import annotations

import datetime
import json
import math
import string
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode.json_oracle import RefusedError, assert_agrees, decoded, values
from decode.rows import payloads
from kafkafmt.decode.json_ import JsonDecoder

pytestmark = pytest.mark.slow

_EXACT = Context(prec=2000, Emin=-5000, Emax=5000)
_EPOCH = datetime.datetime(1970, 1, 1)
_PIECES = [*(bytes([byte]) for byte in b'{}[]:,"\\ \n-+.eE0123456789tfnu\x00\x1f\x7f\x80\xff'),
           b"\\ud800", b"\\u0041", b"null", b"NaN", b"\xc3\xa4", b"\xed\xa0\x80", b'"a":1,']  # fmt: skip

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = st.text(st.characters(codec="utf-8"), max_size=3) | st.text("abc", max_size=12)
scalars = st.sampled_from(
    [
        *(pa.bool_(), pa.null(), pa.string(), pa.large_string(), pa.float32(), pa.float64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.decimal32(7, 2), pa.decimal64(18, 0), pa.decimal128(38, 4), pa.decimal256(76, 30)),
        *(pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("ns")),
    ]
)


def _structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(names, inner), max_size=5, unique_by=lambda field: field[0])
    return fields.map(pa.struct)


types = st.recursive(
    scalars,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
        | _structs(inner)
    ),
    max_leaves=8,
)


class Source:
    """Writes values of types as JSON, in one of the many ways that JSON has."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def value(self, kind: pa.DataType) -> str:
        if pa.types.is_null(kind) or self._draw(st.integers(0, 9)) == 0:
            return "null"
        if pa.types.is_struct(kind):
            fields = [field for field in kind if self._draw(st.integers(0, 5))]
            written = [(field.name, self.value(field.type)) for field in self._draw(st.permutations(fields))]
            if self._draw(st.integers(0, 3)) == 0:
                written.insert(self._draw(st.integers(0, len(written))), ("not in a type", self.any_value()))
            return self._object(written)
        if pa.types.is_map(kind):
            keys = self._draw(st.lists(names, max_size=3))
            return self._object([(key, self.value(kind.item_type)) for key in keys])
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return self._array([self.value(kind.value_type) for _ in range(self._draw(st.integers(0, 3)))])
        return self._scalar(kind)

    def any_value(self) -> str:
        kind = pa.list_(pa.map_(pa.string(), pa.list_(self._draw(scalars))))
        return self.value(kind)

    def _scalar(self, kind: pa.DataType) -> str:
        if pa.types.is_boolean(kind):
            return self._draw(st.sampled_from(["true", "false"]))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return self._string(self._draw(texts))
        if pa.types.is_integer(kind):
            bits = kind.bit_width
            least = -(1 << bits - 1) if pa.types.is_signed_integer(kind) else 0
            return str(self._draw(st.integers(least, least + (1 << bits) - 1)))
        if pa.types.is_floating(kind):
            width = 64 if pa.types.is_float64(kind) else 32
            return self._float(self._draw(st.floats(allow_nan=False, allow_infinity=False, width=width)))
        if pa.types.is_decimal(kind):
            number = self._draw(st.integers(1 - 10**kind.precision, 10**kind.precision - 1))
            text = f"{Decimal(number).scaleb(-kind.scale, _EXACT):f}"
            return text if self._draw(st.booleans()) else self._string(text)
        if pa.types.is_date(kind):
            return self._string(self._draw(st.dates()).isoformat())
        time = self._draw(st.datetimes(_EPOCH.replace(year=1700), _EPOCH.replace(year=2200)))
        zone = self._draw(st.sampled_from(["", "Z", "+01:00", "-1130", "+05"]))
        return self._string(time.replace(microsecond=0).isoformat() + zone)

    def _float(self, number: float) -> str:
        ways = [repr(number), f"{number:.25e}", f"{number:f}"]
        if abs(number) < 3e38:  # rounded, the largest number of a type does not fit into it
            ways.append(f"{number:.3E}")
        return self._draw(st.sampled_from(ways))

    def _string(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=self._draw(st.booleans()))
        if self._draw(st.integers(0, 4)) == 0:
            written = f'"{"".join(_escaped(char) for char in text)}"'
        return written

    def _object(self, fields: list[tuple[str, str]]) -> str:
        written = [f"{self._string(name)}{self._space()}:{self._space()}{value}" for name, value in fields]
        return f"{{{self._joined(written)}}}"

    def _array(self, items: list[str]) -> str:
        return f"[{self._joined(items)}]"

    def _joined(self, parts: list[str]) -> str:
        return f"{self._space()},{self._space()}".join(parts).join([self._space(), self._space()])

    def _space(self) -> str:
        return self._draw(st.sampled_from(["", " ", "", "\n\t", "\r"]))


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02X}" for place in range(0, len(units), 2))


def assert_as_oracle(kind: pa.DataType, rows: list[bytes]) -> None:
    """Assert that each payload is the value that the oracle has, or an error where the oracle has one."""
    found = JsonDecoder(kind).decode(payloads(rows))
    found.array.validate(full=True)
    for place, (row, value) in enumerate(zip(rows, values(found.array), strict=True)):
        try:
            expected = decoded(row, kind)
        except RefusedError:
            assert place in found.errors, row
            assert value is None
            continue
        assert place not in found.errors, (row, found.errors)
        assert_agrees(value, expected)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_json_of_a_random_type_when_written_in_any_way_then_has_the_values_of_python(
    data: st.DataObject,
) -> None:
    kind = data.draw(types)
    source = Source(data.draw)
    rows = [source.value(kind).encode() for _ in range(data.draw(st.integers(1, 4)))]
    assert JsonDecoder(kind).decode(payloads(rows)).errors == {}
    assert_as_oracle(kind, rows)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_json_of_a_random_type_when_damaged_then_is_refused_as_python_refuses_it(data: st.DataObject) -> None:
    kind = data.draw(types)
    source = Source(data.draw)
    row = source.value(kind).encode()
    rows = []
    for _ in range(6):
        start = data.draw(st.integers(0, len(row)))
        size = data.draw(st.integers(0, 2))
        put = data.draw(st.sampled_from([b"", *_PIECES]) | st.binary(max_size=2))
        rows.append(row[:start] + put + row[start + size :])
    assert_as_oracle(kind, rows)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_json_of_a_random_type_when_cut_at_each_byte_then_is_as_python_has_it(data: st.DataObject) -> None:
    kind = data.draw(types)
    row = Source(data.draw).value(kind).encode()
    assert_as_oracle(kind, [row[:size] for size in range(len(row) + 1)])


@given(
    st.lists(st.tuples(st.text(string.digits, min_size=1, max_size=30), st.integers(-345, 310)), min_size=1)
)
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_float_when_it_has_many_digits_then_is_the_nearest(
    kind: pa.DataType, parts: list[tuple[str, int]]
) -> None:
    rows = [f"{int(digits)}.{digits}e{exponent}".encode() for digits, exponent in parts]
    assert_as_oracle(kind, rows)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(0, 800))
@settings(max_examples=100, deadline=None)
def test_float_when_it_is_halfway_between_two_others_then_is_rounded_to_even(
    numbers: list[float], more: int
) -> None:
    rows = []
    for number in numbers:
        middle = _middle(number)
        rows += [middle.encode(), (middle + "0" * more).encode(), (middle + "0" * more + "1").encode()]
    assert_as_oracle(pa.float64(), rows)


def _middle(number: float) -> str:
    """Return the number halfway between a float and the next one, with all digits."""
    other = math.nextafter(number, math.inf)
    if math.isinf(other):
        other = math.nextafter(number, -math.inf)
    middle = _EXACT.divide(_EXACT.add(Decimal(number), Decimal(other)), Decimal(2))
    text = f"{middle:f}"
    return text if "." in text else f"{text}.0"
