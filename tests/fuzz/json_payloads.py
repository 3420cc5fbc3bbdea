"""Target: JSON payloads.

Input: a byte that chooses a type, and a payload. Whatever they are:

- the payload is the value that Python's `json` reads, or an error where the value does not fit the type;
- the array is valid, and the payloads beside it are right;
- the position of an error is in the payload;
- with `strict`, the payload is the same, or an error that names a field.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from decode.json_oracle import RefusedError, assert_agrees, decoded, values
from decode.rows import payloads
from kafkafmt.decode.json_ import JsonDecoder

OPTIONS_LENGTH = 1
POSITION = re.compile(r"position (\d+)")
# A type, the paths of its texts of any JSON, and a payload of it.
CASES: list[tuple[pa.DataType, frozenset[tuple[str, ...]], bytes]] = [
    (
        pa.struct([("id", pa.int64()), ("name", pa.string()), ("rate", pa.float64()), ("ok", pa.bool_())]),
        frozenset(),
        b'{"id":12,"name":"a\\u00e4\\ud83d\\ude00","rate":-1.5e3,"ok":true,"more":[{}]}',
    ),
    (
        pa.struct([("a", pa.list_(pa.struct([("x", pa.uint8()), ("a long name", pa.float32())])))]),
        frozenset(),
        b'{"a":[{"a long name":0.1,"x":255},null,{}]}',
    ),
    (pa.map_(pa.string(), pa.list_(pa.int32())), frozenset(), b'{"a":[1,-2],"b":null}'),
    (
        pa.struct([("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("n", pa.decimal128(20, 3))]),
        frozenset(),
        b'{"t":"2020-02-03T04:05:06.789+01:00","d":"2020-02-29","n":"12.5"}',
    ),
    (pa.struct([("x", pa.string())]), frozenset({("x",)}), b'{"x": {"y": [1.50, "\xc3\xa4"]} }'),
    (pa.string(), frozenset({()}), b' [1, {"a": "b"}] '),
    (pa.decimal256(76, 38), frozenset(), b"123456789.000000001e3"),
    (pa.float64(), frozenset(), b"0.12345678901234567890123"),
]


def check(data: bytes) -> None:
    kind, text_fields, neighbour = CASES[(data[0] if data else 0) % len(CASES)]
    row = data[OPTIONS_LENGTH:]
    found = JsonDecoder(kind, text_fields=text_fields).decode(payloads([neighbour, row, neighbour]))
    found.array.validate(full=True)
    first, value, last = values(found.array)
    assert repr(first) == repr(last)
    assert_agrees(first, decoded(neighbour, kind, text_fields))
    assert set(found.errors) <= {1}
    try:
        expected = decoded(row, kind, text_fields)
    except RefusedError:
        assert value is None
        _check_error(found.errors[1], row)
    else:
        assert not found.errors
        assert_agrees(value, expected)
    _check_strict(kind, text_fields, row, found.errors.get(1), value)


def _check_error(error: str, row: bytes) -> None:
    place = POSITION.match(error)
    assert place is not None
    assert 0 <= int(place[1]) <= len(row)


def _check_strict(
    kind: pa.DataType, text_fields: frozenset[tuple[str, ...]], row: bytes, error: str | None, value: Any
) -> None:
    strict = JsonDecoder(kind, strict=True, text_fields=text_fields).decode(payloads([row]))
    if "expected no field" in strict.errors.get(0, ""):
        _check_error(strict.errors[0], row)
        return
    assert strict.errors.get(0) == error
    assert repr(values(strict.array)[0]) == repr(value)


def seeds() -> list[bytes]:
    """A payload of each type."""
    return [bytes([number]) + payload for number, (_, _, payload) in enumerate(CASES)]
