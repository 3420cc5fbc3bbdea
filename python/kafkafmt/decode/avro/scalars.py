"""Steps for the types without parts: promotions, logical types and their units (Avro 1.12, "Schema Resolution")."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from _kafkafmt.payloads.avro import Operation
from kafkafmt.decode.avro.schemas import AvroType, Fixed, Logical, Primitive
from kafkafmt.decode.node_columns import Column
from kafkafmt.decode.payloads import SchemaError

PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_BOUNDS = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_DAY_SECONDS = 86_400


class Step(NamedTuple):
    """A step of a program, as the kernel takes it."""

    operation: Operation
    node: int = 0
    first: int = 0
    child_count: int = 0
    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0


def logical_of(kind: AvroType) -> Logical | None:
    """Return the logical type of a type, or None."""
    return kind.logical if isinstance(kind, Primitive | Fixed) else None


def primitive_step(writer: Primitive, reader: Primitive, column: Column) -> Step:
    """Return the step that reads a primitive type, which is that of the reader or promoted to it."""
    if writer.kind in _BOUNDS:
        return _integer_step(writer, reader, column)
    if writer.kind == "float":
        return Step(Operation.FLOAT if column.width == 4 else Operation.FLOAT_TO_DOUBLE, column.node)
    if writer.kind == "double":
        return Step(Operation.DOUBLE, column.node)
    if writer.kind == "boolean":
        return Step(Operation.BOOLEAN, column.node)
    if writer.kind == "null":
        return Step(Operation.NULL_VALUE, column.node)
    return Step(Operation.STRING if pa.types.is_string(column.type) else Operation.BYTES, column.node)


def ensure_same_scale(writer: AvroType, reader: AvroType) -> None:
    """Raise SchemaError if both are decimals whose digits have different meanings."""
    written, read = logical_of(writer), logical_of(reader)
    if written is None or read is None or not written.name == read.name == "decimal":
        return
    if written.scale != read.scale:
        raise SchemaError(
            f"a decimal with scale {written.scale} cannot be read as one with scale {read.scale}"
        )


def _integer_step(writer: Primitive, reader: Primitive, column: Column) -> Step:
    low, high = _BOUNDS[writer.kind]
    if reader.kind not in _BOUNDS:
        operation = Operation.INTEGER_TO_FLOAT if column.width == 4 else Operation.INTEGER_TO_DOUBLE
        return Step(operation, column.node, a=low, b=high)
    factor, divisor = _scale(writer.logical, reader.logical)
    if reader.logical is not None and reader.logical.name.startswith("time-"):
        low, high = 0, _DAY_SECONDS * _rate(reader.logical) * divisor // factor - 1
    elif factor > 1:
        low, high = -(_BOUNDS["long"][1] // factor), _BOUNDS["long"][1] // factor
    if factor != divisor:
        return Step(Operation.SCALED_INT64, column.node, a=low, b=high, c=factor, d=divisor)
    operation = Operation.INT32 if column.width == 4 else Operation.INT64
    return Step(operation, column.node, a=low, b=high)


def _scale(writer: Logical | None, reader: Logical | None) -> tuple[int, int]:
    """Return by what the numbers of the writer are multiplied and divided, so that they have the reader's unit."""
    if writer is None or reader is None:
        return 1, 1
    families = {_family(writer), _family(reader)}
    if len(families) > 1:
        raise SchemaError(f"a {writer.name} cannot be read as {reader.name}")
    if families == {"date"}:
        return 1, 1
    written, read = _rate(writer), _rate(reader)
    return (read // written, 1) if read >= written else (1, written // read)


def _family(logical: Logical) -> str:
    name = logical.name.removeprefix("local-")
    return name.partition("-")[0]


def _rate(logical: Logical) -> int:
    """Return how many units a second has."""
    return _PER_SECOND[logical.name.rpartition("-")[2]]
