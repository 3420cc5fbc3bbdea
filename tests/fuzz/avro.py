"""Target: Avro payloads.

Input: a byte that chooses a schema and its reader, then payloads, each after a byte with its size. Whatever they are:

- each payload becomes a value or an error with its position; the array is valid;
- a payload has the same value alone as among others;
- a value is what fastavro reads, if the schema of the reader is that of the writer;
- a payload that can be read can be skipped.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

from decode.avro_samples import read_by_fastavro, written
from decode.rows import payloads
from kafkafmt.decode import Schema
from kafkafmt.decode.formats import payload_format

OPTIONS_LENGTH = 1
POSITION = re.compile(r"position (\d+)")
FORMAT = payload_format("AVRO")


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": kind} for key, kind in fields.items()],
    }


_ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}
_WIDE = {"type": "fixed", "name": "W", "size": 33, "logicalType": "decimal", "precision": 76}
SCHEMAS: list[tuple[Any, Any]] = [
    (
        record("A", a="int", b="string", c=["null", "long"], d="boolean"),
        {"a": 1, "b": "x", "c": 2**40, "d": True},
    ),
    (
        record("B", a={"type": "array", "items": record("I", x="double", y="bytes")}),
        {"a": [{"x": 1.5, "y": b"a"}]},
    ),
    (
        record("C", a={"type": "map", "values": ["null", "string", "int"]}),
        {"a": {"k": "v", "l": 1, "m": None}},
    ),
    (
        record("D", a=_ENUM, b="float", c={"type": "fixed", "name": "F", "size": 3}),
        {"a": "B", "b": 0.5, "c": b"abc"},
    ),
    ({"type": "array", "items": {"type": "array", "items": "null"}}, [[None, None], []]),
    (record("G", a={"type": "array", "items": record("N")}, b="long"), {"a": [{}, {}], "b": -1}),
    (_DECIMAL, Decimal(12)),
    (_WIDE, b"\0" * 33),
]


def check(data: bytes) -> None:
    schema, _ = SCHEMAS[(data[0] if data else 0) % len(SCHEMAS)]
    rows, left = [], data[OPTIONS_LENGTH:]
    while left:
        size, left = left[0], left[1:]
        rows.append(left[:size])
        left = left[size:]
    own = Schema("AVRO", json.dumps(schema))
    decoder = FORMAT.decoder(own, own)
    decoded = decoder.decode(payloads(rows))
    decoded.array.validate(full=True)
    outer = Schema("AVRO", json.dumps(record("Outer", x=schema)))
    skipped = FORMAT.decoder(outer, Schema("AVRO", json.dumps(record("Outer")))).decode(payloads(rows))
    for place, row in enumerate(rows):
        alone = decoder.decode(payloads([row]))
        assert repr(alone.array[0].as_py()) == repr(decoded.array[place].as_py())  # NaN equals nothing
        assert alone.errors.get(0) == decoded.errors.get(place)
        error = decoded.errors.get(place)
        if error is not None:
            found = POSITION.match(error)
            assert found is not None
            assert 0 <= int(found[1]) <= len(row)
            continue
        assert place not in skipped.errors
        _check_by_fastavro(row, schema, decoded.array[place].as_py())


def _check_by_fastavro(row: bytes, schema: Any, value: Any) -> None:
    if schema in (_DECIMAL, _WIDE):  # Python's context rounds
        return
    expected = read_by_fastavro(row, schema, schema)
    if repr(value) != repr(expected):  # a map of fastavro has each key once
        assert "nan" in repr(value) or dict(value["a"]).keys() == dict(expected["a"]).keys()


def seeds() -> list[bytes]:
    """A payload of each schema, twice."""
    found = []
    for number, (schema, value) in enumerate(SCHEMAS):
        (row,) = [value] if isinstance(value, bytes) else written(schema, [value])
        found.append(bytes([number]) + 2 * (bytes([len(row)]) + row))
    return found
