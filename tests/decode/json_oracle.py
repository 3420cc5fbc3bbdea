"""The oracle of JSON payloads: Python's `json`, and the rules of types in `kafkafmt.decode.json_`, slowly."""

from __future__ import annotations

import datetime
import json
import re
import struct
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

MAX_DEPTH = 100
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(?:Z|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_DECIMAL = re.compile(r"([+-]?)(?=\.?\d)(\d*)\.?(\d*)(?:[eE]([+-]?)0*(\d+))?", re.ASCII)
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class RefusedError(Exception):
    """The payload is no JSON, or does not fit the type."""


class Number(str):
    """The text of a number."""

    __slots__ = ()


class Object(NamedTuple):
    """The fields of an object, in order."""

    fields: list[tuple[str, Any]]


class AnyJson(NamedTuple):
    """What the text of any JSON must have."""

    value: Any


def read(payload: bytes) -> Any:
    """Return a payload as None, bool, str, Number, list or Object."""
    try:
        value = json.loads(
            payload.decode(),
            parse_int=Number,
            parse_float=Number,
            parse_constant=_refuse,
            object_pairs_hook=Object,
        )
    except (ValueError, RecursionError) as error:
        raise RefusedError from error
    _check(value, 0)
    return value


def _refuse(name: str) -> None:
    raise RefusedError(name)


def _check(value: Any, depth: int) -> None:
    if isinstance(value, Object | list):
        if depth == MAX_DEPTH:
            raise RefusedError
        for item in value.fields if isinstance(value, Object) else value:
            _check(item[0] if isinstance(value, Object) else None, depth)
            _check(item[1] if isinstance(value, Object) else item, depth + 1)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RefusedError from None


def decoded(payload: bytes, kind: pa.DataType, text_fields: frozenset[tuple[str, ...]] = frozenset()) -> Any:
    """Return the value of a payload as `to_pylist` has it, but times and dates as numbers.

    Raises RefusedError if it is an error.
    """
    return _value(read(payload), kind, (), text_fields)


def _value(
    value: Any, kind: pa.DataType, path: tuple[str, ...], text_fields: frozenset[tuple[str, ...]]
) -> Any:
    if value is None:
        return None
    if path in text_fields:
        return AnyJson(value)
    if pa.types.is_struct(kind):
        _expect(isinstance(value, Object))
        found = {}
        for name, inner in value.fields:
            if kind.get_field_index(name) >= 0:
                _expect(name not in found)
                found[name] = _value(inner, kind.field(name).type, (*path, name), text_fields)
        return {field.name: found.get(field.name) for field in kind}
    if pa.types.is_map(kind):
        _expect(isinstance(value, Object))
        return [
            (name, _value(inner, kind.item_type, (*path, "{}"), text_fields)) for name, inner in value.fields
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _expect(isinstance(value, list))
        return [_value(item, kind.value_type, (*path, "[]"), text_fields) for item in value]
    return _scalar(value, kind)


def _expect(fits: bool) -> None:
    if not fits:
        raise RefusedError


def _scalar(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        _expect(isinstance(value, bool))
        return value
    _expect(isinstance(value, str))
    if pa.types.is_decimal(kind):
        return _decimal(value, kind)
    _expect(isinstance(value, Number) == (pa.types.is_integer(kind) or pa.types.is_floating(kind)))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value
    if pa.types.is_integer(kind):
        _expect(re.fullmatch(r"-?\d+", value) is not None and len(value) <= 20)
        bits = kind.bit_width
        least, most = (
            (-(1 << bits - 1), (1 << bits - 1) - 1)
            if pa.types.is_signed_integer(kind)
            else (0, (1 << bits) - 1)
        )
        _expect(least <= int(value) <= most)
        return int(value)
    if pa.types.is_float64(kind):
        _expect(abs(float(value)) != float("inf"))
        return float(value)
    if pa.types.is_float32(kind):
        return nearest_single(value)
    if pa.types.is_date(kind):
        return _days(value) * (1 if pa.types.is_date32(kind) else 86_400_000)
    if pa.types.is_timestamp(kind):
        return _time(value, kind)
    raise RefusedError


def nearest_single(text: str) -> float:
    """Return the float of 32 bits that is nearest to a number."""
    wide = float(text)
    _expect(abs(wide) < 2.0**128)
    if abs(wide) < 1e-300:
        return wide * 0.0
    exact = Fraction(text)
    near = np.float32(wide) if abs(wide) < 3.4028235e38 else np.float32(np.copysign(3.4028235e38, wide))
    if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        raise RefusedError
    with np.errstate(over="ignore", under="ignore"):
        candidates = {float(near), *(float(np.nextafter(near, np.float32(end))) for end in (-np.inf, np.inf))}
    candidates = {one for one in candidates if abs(one) != np.inf}

    def distance(one: float) -> tuple[Fraction, int]:
        return abs(exact - Fraction(one)), struct.unpack("<I", struct.pack("<f", one))[0] & 1

    found = min(candidates, key=distance)
    return -0.0 if found == 0 and text.startswith("-") else found


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    match = _DECIMAL.fullmatch(text)
    _expect(match is not None)
    assert match is not None
    sign, whole, fraction, exponent_sign, exponent_digits = match.groups()
    size = int((exponent_digits or "0")[:15])  # more digits are as large for all payloads
    exponent = (-size if exponent_sign == "-" else size) - len(fraction)
    digits = whole + fraction
    shown = digits.lstrip("0")
    if not shown:
        return Decimal((0, (0,), -kind.scale))
    kept = shown.rstrip("0")
    power = exponent + len(shown) - len(kept) + kind.scale
    _expect(power >= 0 and len(kept) + power <= kind.precision)
    return Decimal((sign == "-", tuple(map(int, kept + "0" * power)), -kind.scale))


def _days(text: str) -> int:
    match = _DATE.fullmatch(text)
    _expect(match is not None)
    assert match is not None
    year, month, day = map(int, match.groups())
    try:  # 400 years later the days are the same; Python has no year 0
        later = datetime.date(year + 400 if year < 9000 else year - 400, month, day)
    except ValueError:
        raise RefusedError from None
    return later.toordinal() - datetime.date(1970, 1, 1).toordinal() - (146_097 if year < 9000 else -146_097)


def _time(text: str, kind: pa.DataType) -> int:
    match = _TIME.fullmatch(text)
    _expect(match is not None)
    assert match is not None
    date, hours, minutes, seconds, fraction, sign, zone_hours, zone_minutes = match.groups()
    numbers = [int(part or 0) for part in (hours, minutes, seconds, zone_hours, zone_minutes)]
    _expect(all(number < limit for number, limit in zip(numbers, (24, 60, 60, 24, 60), strict=True)))
    digits = _DIGITS[kind.unit]
    _expect(len(fraction or "") <= digits)
    offset = (numbers[3] * 60 + numbers[4]) * (-60 if sign == "-" else 60)
    second = _days(date) * 86_400 + numbers[0] * 3600 + numbers[1] * 60 + numbers[2] - offset
    limit = (2**63 - 1) // 10**digits
    _expect(-limit <= second < limit)
    return second * 10**digits + int((fraction or "").ljust(digits, "0") or 0)


def values(array: pa.Array) -> list[Any]:
    """Return the values of an array as `to_pylist` does, but times and dates as numbers.

    Python's times have no nanoseconds, and pyarrow's casts of structs with nulls in them are damaged.
    """
    kind = array.type
    found: list[Any]
    if pa.types.is_struct(kind):
        columns = {field.name: values(array.field(place)) for place, field in enumerate(kind)}
        found = [{name: column[row] for name, column in columns.items()} for row in range(len(array))]
    elif pa.types.is_map(kind):
        entries = list(zip(array.keys.to_pylist(), values(array.items), strict=True))
        found = [entries[start:end] for start, end in pairwise(array.offsets.to_pylist())]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = values(array.values)
        found = [items[start:end] for start, end in pairwise(array.offsets.to_pylist())]
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        found = array.view(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()
    else:
        found = array.to_pylist()
    return [
        value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)
    ]


def assert_agrees(found: Any, expected: Any) -> None:
    """Assert that a value is as expected. Floats have the same bits."""
    if isinstance(expected, AnyJson):
        assert read(found.encode()) == expected.value
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name, inner in expected.items():
            assert_agrees(found[name], inner)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_agrees(one, other)
    else:
        assert repr(found) == repr(expected)
