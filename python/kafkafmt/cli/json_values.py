"""The values of Arrow arrays as JSON has them, exact and of any range.

pyarrow's own conversion to Python raises for times that `datetime` does not have, and needs pandas for nanoseconds. So
numbers become text here: times and durations are ISO 8601. Bytes are base64, decimals are strings, and a number that is
not finite is named as in Protobuf's JSON.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_NOT_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}
_NANOSECONDS = _PER_SECOND["ns"]


def json_values(array: pa.Array) -> list[Any]:
    """Return the values of an array as objects that `json.dumps` takes."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _structs(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        starts = array.offsets.to_pylist()
        return _where_valid(array, _slices(json_values(_items(array.values, starts)), starts))
    if pa.types.is_timestamp(kind):
        return _where_valid(array, _timestamps(array))
    if pa.types.is_date32(kind):
        days = np.asarray(array.view(pa.int32()).fill_null(0))
        return _where_valid(array, np.datetime_as_string(days.astype("M8[D]")).tolist())
    if pa.types.is_time(kind):
        return _where_valid(array, [_time(number, _PER_SECOND[kind.unit]) for number in _numbers(array)])
    if pa.types.is_duration(kind):
        return _where_valid(array, [_duration(number, _PER_SECOND[kind.unit]) for number in _numbers(array)])
    return [_scalar(value) for value in array.to_pylist()]


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    if not names:
        return _where_valid(array, [{} for _ in range(len(array))])
    columns = [json_values(array.field(place)) for place in range(len(names))]
    return _where_valid(array, [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)])


def _maps(array: pa.Array) -> list[Any]:
    starts = array.offsets.to_pylist()
    keys = [_name(key) for key in json_values(_items(array.keys, starts))]
    entries = list(zip(keys, json_values(_items(array.items, starts)), strict=True))
    return _where_valid(array, [dict(some) for some in _slices(entries, starts)])


def _name(key: Any) -> str:
    """Return the key of a map as the name of a member of an object."""
    return key if isinstance(key, str) else json.dumps(key)


def _items(values: pa.Array, starts: Sequence[int]) -> pa.Array:
    return values.slice(starts[0], starts[-1] - starts[0])


def _slices(values: list[Any], starts: Sequence[int]) -> list[list[Any]]:
    """Return the values of each list. starts: where each begins, and the last one ends."""
    places = [start - starts[0] for start in starts]
    return [values[start:end] for start, end in pairwise(places)]


def _where_valid(array: pa.Array, values: list[Any]) -> list[Any]:
    """Return values with None for those of the array that are null."""
    if not array.null_count:
        return values
    valid = array.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _numbers(array: pa.Array) -> list[int]:
    """Return times or durations as numbers of their unit, and 0 for null."""
    wide = pa.int32() if array.type.bit_width == 32 else pa.int64()
    numbers: list[int] = array.view(wide).fill_null(0).to_pylist()
    return numbers


def _timestamps(array: pa.Array) -> list[str]:
    per_second = _PER_SECOND[array.type.unit]
    zone = "" if array.type.tz is None else "Z"  # those that are decoded are UTC
    numbers = np.asarray(array.view(pa.int64()).fill_null(0))
    seconds = np.datetime_as_string((numbers // per_second).astype("M8[s]")).tolist()
    parts = (numbers % per_second).tolist()
    return [f"{text}{_fraction(part, per_second)}{zone}" for text, part in zip(seconds, parts, strict=True)]


def _fraction(part: int, per_second: int) -> str:
    """Return a fraction of a second with all digits of its unit, or nothing if it is 0."""
    return f".{part:0{len(str(per_second)) - 1}}" if part else ""


def _time(number: int, per_second: int) -> str:
    seconds, part = divmod(number, per_second)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}{_fraction(part, per_second)}"


def _duration(number: int, per_second: int) -> str:
    seconds, part = divmod(abs(number), per_second)
    return f"{'-' if number < 0 else ''}PT{seconds}{_fraction(part, per_second)}S"


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE.get(value, "NaN")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, pa.MonthDayNano):
        seconds = _duration(value.nanoseconds, _NANOSECONDS).removeprefix("P")
        return f"P{value.months}M{value.days}D{seconds}"
    return f"{value:f}"  # a decimal
