"""Random Avro schemas, values of them, readers that evolved from them, and what fastavro reads as Arrow has it."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID

import fastavro
from hypothesis import strategies as st

from kafkafmt.decode import Schema

_NAMES = count()
_UTC = dt.timezone.utc
_INT, _LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_TIMES = st.datetimes(dt.datetime(1950, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(_UTC))
_MILLIS = _TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))

LOGICAL: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "int", "logicalType": "date"}, st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1))),
    ({"type": "int", "logicalType": "time-millis"}, _MILLIS.map(lambda time: time.time())),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "long", "logicalType": "timestamp-millis"}, _MILLIS),
    ({"type": "long", "logicalType": "timestamp-micros"}, _TIMES),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        _TIMES.map(lambda time: time.replace(tzinfo=None)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        st.integers(-(10**9) + 1, 10**9 - 1).map(lambda number: Decimal(number).scaleb(-2)),
    ),
    (
        {"type": "fixed", "name": "D", "size": 17, "logicalType": "decimal", "precision": 38},
        st.integers(-(10**28) + 1, 10**28 - 1).map(Decimal),  # as many digits as Python's context keeps
    ),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    ({"type": "long", "logicalType": "unheard-of"}, _LONG),
]
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": _INT,
    "long": _LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=12),
    "string": st.text(max_size=12),
}
# Types of a union whose values Python tells apart. fastavro also promotes to an earlier branch if a later one is the
# same type, which Java does not: so no two of these are promoted to each other.
_APART = [("boolean",), ("int", "long", "float", "double"), ("bytes", "string"), ("array",), ("record",)]


def name(letter: str) -> str:
    return f"{letter}{next(_NAMES)}"


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Any:
    """Draw a schema. Names of types are unique."""
    kinds = ["primitive", "logical", "enum", "fixed"]
    kind = draw(st.sampled_from(kinds + ["array", "map", "union", "record", "record"] * (depth > 0)))
    inner = schemas(depth - 1)
    if kind == "primitive":
        return draw(st.sampled_from(sorted(PRIMITIVES)))
    if kind == "logical":
        found = dict(draw(st.sampled_from([schema for schema, _ in LOGICAL])))
        return {**found, "name": name("D")} if "name" in found else found
    if kind == "enum":
        return {"type": "enum", "name": name("E"), "symbols": ["A", "B", "C"][: draw(st.integers(1, 3))]}
    if kind == "fixed":
        return {"type": "fixed", "name": name("F"), "size": draw(st.integers(1, 9))}
    if kind == "array":
        return {"type": "array", "items": draw(inner)}
    if kind == "map":
        return {"type": "map", "values": draw(inner)}
    if kind == "union":
        return draw(_unions(depth - 1))
    return draw(_records(depth))


@st.composite
def _records(draw: st.DrawFn, depth: int) -> Any:
    fields = [{"name": name("f"), "type": draw(schemas(depth - 1))} for _ in range(draw(st.integers(0, 4)))]
    return {"type": "record", "name": name("R"), "fields": fields}


@st.composite
def _unions(draw: st.DrawFn, depth: int) -> Any:
    kinds = draw(st.lists(st.sampled_from(_APART), unique=True, max_size=3))
    branches: list[Any] = [draw(st.sampled_from(choice)) for choice in kinds]
    for place, branch in enumerate(branches):
        if branch == "array":
            branches[place] = {"type": "array", "items": draw(schemas(max(depth, 0)))}
        if branch == "record":
            branches[place] = draw(_records(max(depth, 1)))
    return draw(st.permutations([*branches, "null"])) if draw(st.booleans()) or not branches else branches


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Return the values of a schema, as fastavro writes them."""
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, dict) and "logicalType" in schema:
        return next(
            drawn
            for found, drawn in LOGICAL
            if found["logicalType"] == schema["logicalType"] and found["type"] == kind
        )
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in schema["fields"]})
    return PRIMITIVES[kind]


_PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
             "string": ["bytes"], "bytes": ["string"]}  # fmt: skip
_ADDED: list[tuple[Any, Any, Any]] = [
    ("int", -7, -7),
    ("string", "ä", "ä"),
    (["null", "string"], None, None),
    ({"type": "array", "items": "long"}, [1, 300], [1, 300]),
    ({"type": "map", "values": "boolean"}, {"k": True}, {"k": True}),
    ("double", 1, 1.0),
]


@st.composite
def evolved(draw: st.DrawFn, schema: Any, *, in_union: bool = False) -> Any:
    """Draw a schema of a reader that can read what the schema writes."""
    if isinstance(schema, list):
        return [draw(evolved(branch, in_union=True)) for branch in schema]
    if isinstance(schema, str):
        choices = [schema, schema, *([] if in_union else _PROMOTED.get(schema, []))]
        found = draw(st.sampled_from(choices))
        return found if in_union or found == "null" or draw(st.booleans()) else ["null", found]
    if schema["type"] == "array":
        return {**schema, "items": draw(evolved(schema["items"]))}
    if schema["type"] == "map":
        return {**schema, "values": draw(evolved(schema["values"]))}
    if schema["type"] != "record":
        return schema
    fields = []
    for field in draw(st.permutations(schema["fields"])):
        change = draw(st.sampled_from(["keep", "keep", "drop", "rename"]))
        if change == "drop":
            continue
        renamed = {"name": name("g"), "aliases": [field["name"]]} if change == "rename" else {}
        fields.append({**field, "type": draw(evolved(field["type"])), **renamed})
    if draw(st.booleans()):
        kind, default, _ = draw(st.sampled_from(_ADDED))
        fields.append({"name": name("h"), "type": kind, "default": default})
    return {**schema, "fields": fields}


def schema_of(document: Any) -> Schema:
    return Schema("AVRO", json.dumps(document))


def written(schema: Any, rows: list[Any]) -> list[bytes]:
    """Return values as fastavro writes them."""
    parsed = fastavro.parse_schema(schema)
    payloads = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        payloads.append(out.getvalue())
    return payloads


def read_by_fastavro(payload: bytes, writer: Any, reader: Any) -> Any:
    """Return the value as Arrow has it."""
    found = fastavro.schemaless_reader(
        io.BytesIO(payload), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )
    return as_arrow(found, reader)


def as_arrow(value: Any, schema: Any) -> Any:
    """Return a value of fastavro as the Python value that Arrow gives."""
    if value is None:
        return None
    if isinstance(schema, list):
        return _union_value(value, [branch for branch in schema if branch != "null"])
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if kind == "array":
        return [as_arrow(item, schema["items"]) for item in value]
    if kind == "map":
        return [(key, as_arrow(item, schema["values"])) for key, item in value.items()]
    if kind == "record":
        return {field["name"]: as_arrow(value[field["name"]], field["type"]) for field in schema["fields"]}
    return str(value) if isinstance(value, UUID) else value


def _union_value(value: Any, branches: list[Any]) -> Any:
    if len(branches) == 1:
        return as_arrow(value, branches[0])
    kinds = {"boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes,
             "string": str, "array": list, "record": dict}  # fmt: skip
    names = [branch if isinstance(branch, str) else branch["type"] for branch in branches]
    place = next(place for place, found in enumerate(names) if type(value) is kinds[found])
    return {
        f"member{i}": as_arrow(value, branch) if i == place else None for i, branch in enumerate(branches)
    }
