"""The program with which the kernel reads JSON payloads of an Arrow type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.json import Operation, PayloadReader
from _kafkafmt.payloads.nodes import Layout
from kafkafmt.decode.node_columns import Column, columns_by_node
from kafkafmt.decode.payloads import SchemaError

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MILLISECONDS = 86_400_000
_Numbers = tuple[int, int]


class Program:
    """The steps that read values of a type, one for each column.

    text_fields: paths whose fields, if they are text, get the JSON text of any value.
    paths: the field of each step, for errors. types: what each reads.

    Raises SchemaError if JSON has no form for the type.
    """

    def __init__(self, kind: pa.DataType, text_fields: frozenset[tuple[str, ...]]) -> None:
        self._text_fields = text_fields
        self._count = 0
        self._steps: dict[int, tuple[int, int, int, int, int]] = {}
        self._names: dict[int, bytes] = {}
        self.paths: dict[int, str] = {}
        self.types: dict[int, pa.DataType] = {}
        self.root = self._column(kind, self._reserved(1), (), "")

    def reader(self, *, is_strict: bool) -> PayloadReader:
        """Return the kernel's reader. is_strict: fields that the type lacks are errors."""
        columns = columns_by_node(self.root)
        return PayloadReader(
            np.array([self._steps[column.node] for column in columns], np.int64),
            np.array([column.specification for column in columns], np.int64),
            [self._names.get(column.node, b"") for column in columns],
            is_strict,
        )

    def _reserved(self, count: int) -> int:
        first = self._count
        self._count += count
        return first

    def _column(self, kind: pa.DataType, node: int, path: tuple[str, ...], shown: str) -> Column:
        self.paths[node], self.types[node] = shown, kind
        if path in self._text_fields and _is_text(kind):
            return self._made(kind, Layout.TEXT, node, Operation.ANY)
        if pa.types.is_struct(kind):
            return self._struct(kind, node, path, shown)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            first = self._reserved(1)
            items = self._column(kind.value_type, first, (*path, "[]"), f"{shown}[]")
            return self._made(kind, Layout.LIST, node, Operation.LIST, [items])
        if pa.types.is_map(kind):
            return self._map(kind, node, path, shown)
        return self._scalar(kind, node)

    def _made(
        self,
        kind: pa.DataType,
        layout: Layout,
        node: int,
        operation: Operation,
        children: list[Column] | None = None,
        numbers: _Numbers = (0, 0),
    ) -> Column:
        column = Column(kind, layout, node, children or [])
        _, _, first, count = column.specification
        self._steps[node] = (operation, first, count, *numbers)
        return column

    def _struct(self, kind: pa.StructType, node: int, path: tuple[str, ...], shown: str) -> Column:
        fields = list(kind)
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaError(f"expected fields with different names; found {twice} twice in {kind}")
        first = self._reserved(len(fields))
        children = []
        for place, field in enumerate(fields, first):
            self._names[place] = field.name.encode()
            inner = f"{shown}.{field.name}" if shown else field.name
            children.append(self._column(field.type, place, (*path, field.name), inner))
        return self._made(kind, Layout.STRUCT, node, Operation.OBJECT, children)

    def _map(self, kind: pa.MapType, node: int, path: tuple[str, ...], shown: str) -> Column:
        if not pa.types.is_string(kind.key_type):
            raise SchemaError(
                f"keys of JSON objects are text; expected a map with keys of type string, found {kind}"
            )
        entries, keys = self._reserved(1), self._reserved(2)
        self._names[keys], self._names[keys + 1] = b"key", b"value"
        for place, inner in (entries, kind.field(0).type), (keys, kind.key_type):
            self.paths[place], self.types[place] = shown, inner
        children = [
            self._scalar(kind.key_type, keys),
            self._column(kind.item_type, keys + 1, (*path, "{}"), f"{shown}{{}}"),
        ]
        column = self._made(kind.field(0).type, Layout.STRUCT, entries, Operation.OBJECT, children)
        return self._made(kind, Layout.LIST, node, Operation.MAP, [column])

    def _scalar(self, kind: pa.DataType, node: int) -> Column:
        if _is_text(kind):
            return self._made(kind, Layout.TEXT, node, Operation.STRING)
        if pa.types.is_null(kind):
            return self._made(kind, Layout.EMPTY, node, Operation.NOTHING)
        operation, numbers = _plain(kind)
        return self._made(kind, Layout.PLAIN, node, operation, numbers=numbers)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(kind: pa.DataType) -> tuple[Operation, _Numbers]:
    """Return how the kernel reads values of a fixed width."""
    if pa.types.is_boolean(kind):
        return Operation.BOOLEAN, (0, 0)
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        if pa.types.is_signed_integer(kind):
            return Operation.INTEGER, (_wrapped(1 << bits - 1), (1 << bits - 1) - 1)
        return Operation.INTEGER, (0, _wrapped((1 << bits) - 1))
    if pa.types.is_float32(kind):
        return Operation.FLOAT, (0, 0)
    if pa.types.is_float64(kind):
        return Operation.DOUBLE, (0, 0)
    if pa.types.is_decimal(kind):
        return Operation.DECIMAL, (kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return Operation.TIMESTAMP, (_UNITS[kind.unit], 0)
    if pa.types.is_date(kind):
        return Operation.DATE, (1 if pa.types.is_date32(kind) else _DAY_MILLISECONDS, 0)
    raise SchemaError(f"JSON cannot be read as {kind}")


def _wrapped(number: int) -> int:
    """Return the int64 with the bits of an unsigned number."""
    return number if number < 1 << 63 else number - (1 << 64)
