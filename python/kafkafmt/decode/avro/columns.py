"""The Arrow columns of the schema of a reader.

| Avro | Arrow |
|---|---|
| null, boolean, int, long, float, double, bytes, string | null, bool, int32, int64, float, double, binary, string |
| record, array, map | struct, list, map |
| enum | string |
| fixed | fixed_size_binary |
| union of null and a type | the type: all columns can have nulls |
| union of int and long, of float and double | int64, double |
| other unions | struct<member0, member1, ...>: one is not null; null is not a member, as Spark's from_avro has it |
| decimal | decimal128, or decimal256 for a precision of more than 38 |
| uuid | string |
| date; time-millis, time-micros | date32; time32[ms], time64[us] |
| timestamp-millis, -micros, -nanos | timestamp with UTC |
| local-timestamp-millis, -micros, -nanos | timestamp without a time zone |
| duration | month_day_nano_interval |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from _kafkafmt.payloads.nodes import Layout
from kafkafmt.decode.avro.schemas import (
    MAX_DEPTH,
    Array,
    AvroType,
    Enum,
    Fixed,
    Logical,
    Map,
    Primitive,
    Record,
    Union,
)
from kafkafmt.decode.payloads import SchemaError

MAX_COLUMNS = 10_000  # named types that refer to each other multiply
_MAX_SHORT_PRECISION = 38
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


@dataclass
class Column:
    """A column of a reader. node: its number. children: of a struct, of a list (one), or of a map (its entries)."""

    type: pa.DataType
    layout: Layout
    node: int
    children: Sequence[Column] = ()
    members: bool = False  # a struct with a member for each branch of a union

    @property
    def width(self) -> int:
        """Return the bytes of a value of a plain column."""
        if self.layout != Layout.PLAIN:
            return 0
        return 1 if pa.types.is_boolean(self.type) else int(self.type.bit_width) // 8


class Columns:
    """The columns of a schema, numbered so that the children of a column follow each other.

    Raises SchemaError for a type that contains itself, which no Arrow type can do, and for columns that are too many or
    nested too deeply.
    """

    def __init__(self, kind: AvroType) -> None:
        self._count = 1
        self._open: list[Record] = []
        self._depth = 0
        self.root = self._column(kind, 0)

    def all(self) -> list[Column]:
        """Return all columns by their numbers."""
        found = [self.root] * self._count
        pending = [self.root]
        while pending:
            column = pending.pop()
            found[column.node] = column
            pending += column.children
        return found

    def _reserved(self, count: int) -> int:
        first = self._count
        self._count += count
        if self._count > MAX_COLUMNS:
            raise SchemaError(f"the Avro schema has more than {MAX_COLUMNS} columns")
        return first

    def _column(self, kind: AvroType, node: int) -> Column:
        if self._depth == MAX_DEPTH:
            raise SchemaError(f"the Avro schema has columns nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        column = self._made_column(kind, node)
        self._depth -= 1
        return column

    def _made_column(self, kind: AvroType, node: int) -> Column:
        if isinstance(kind, Primitive):
            return _primitive(kind, node)
        if isinstance(kind, Fixed):
            return _fixed(kind, node)
        if isinstance(kind, Enum):
            return Column(pa.string(), Layout.TEXT, node)
        if isinstance(kind, Array):
            first = self._reserved(1)
            items = self._column(kind.items, first)
            return Column(pa.list_(items.type), Layout.LIST, node, [items])
        if isinstance(kind, Map):
            return self._map(kind, node)
        if isinstance(kind, Union):
            return self._union(kind, node)
        return self._record(kind, node)

    def _record(self, kind: Record, node: int) -> Column:
        if kind in self._open:
            raise SchemaError(f"the Avro type {kind.name} contains itself: no Arrow type can do that")
        self._open.append(kind)
        first = self._reserved(len(kind.fields))
        columns = [self._column(part.type, first + i) for i, part in enumerate(kind.fields)]
        self._open.pop()
        return _struct([part.name for part in kind.fields], columns, node)

    def _map(self, kind: Map, node: int) -> Column:
        first = self._reserved(1)
        entries = self._reserved(2)
        values = self._column(kind.values, entries + 1)
        found = pa.map_(pa.string(), values.type)
        keys = Column(pa.string(), Layout.TEXT, entries)
        return Column(
            found, Layout.LIST, node, [Column(found.field(0).type, Layout.STRUCT, first, [keys, values])]
        )

    def _union(self, kind: Union, node: int) -> Column:
        branches = members_of(kind)
        if not branches:
            return self._column(Primitive("null"), node)
        if len(branches) == 1:
            return self._column(branches[0], node)
        plain = [branch.kind for branch in branches if isinstance(branch, Primitive) and not branch.logical]
        wider = _WIDER.get(frozenset(plain)) if len(plain) == len(branches) else None
        if wider is not None:
            return self._column(Primitive(wider), node)
        first = self._reserved(len(branches))
        columns = [self._column(branch, first + i) for i, branch in enumerate(branches)]
        found = _struct([f"member{i}" for i in range(len(branches))], columns, node)
        found.members = True
        return found


def members_of(kind: Union) -> list[AvroType]:
    """Return the branches of a union but null."""
    return [branch for branch in kind.branches if branch.kind != "null"]


def _struct(names: Sequence[str], columns: Sequence[Column], node: int) -> Column:
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    return Column(pa.struct(fields), Layout.STRUCT, node, columns)


def _primitive(kind: Primitive, node: int) -> Column:
    if kind.kind == "null":
        return Column(pa.null(), Layout.EMPTY, node)
    found = _PRIMITIVES[kind.kind] if kind.logical is None else _logical_type(kind.logical)
    is_text = pa.types.is_string(found) or pa.types.is_binary(found)
    return Column(found, Layout.TEXT if is_text else Layout.PLAIN, node)


def _fixed(kind: Fixed, node: int) -> Column:
    if kind.logical is None:
        return Column(pa.binary(kind.size), Layout.PLAIN, node)
    found = _logical_type(kind.logical)
    return Column(found, Layout.TEXT if kind.logical.name == "uuid" else Layout.PLAIN, node)


def _logical_type(logical: Logical) -> pa.DataType:
    if logical.name == "decimal":
        make = pa.decimal128 if logical.precision <= _MAX_SHORT_PRECISION else pa.decimal256
        return make(logical.precision, logical.scale)
    if logical.name == "uuid":
        return pa.string()
    if logical.name == "date":
        return pa.date32()
    if logical.name == "duration":
        return pa.month_day_nano_interval()
    unit = _UNITS[logical.name.rpartition("-")[2]]
    if logical.name.startswith("time-"):
        return pa.time32(unit) if unit == "ms" else pa.time64(unit)
    return pa.timestamp(unit, None if logical.name.startswith("local-") else "UTC")
