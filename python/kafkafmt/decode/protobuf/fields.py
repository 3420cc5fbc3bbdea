"""Fields of Protobuf messages: how the kernel reads them, and which fields of a reader can read those of a writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.protobuf import FieldRule, ValueKind
from kafkafmt.decode.payloads import SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor

# By the numbers of FieldDescriptorProto.Type, which have these names in schemas.
BOOL, STRING, GROUP, MESSAGE, BYTES, UINT32, ENUM = 8, 9, 10, 11, 12, 13, 14
_INT32 = 5
_NAMES = (
    "no type",
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "group",
    "message",
    "bytes",
    "uint32",
    "enum",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
)
_NUMBERS: dict[str, tuple[ValueKind, pa.DataType]] = {
    "double": (ValueKind.FIXED64, pa.float64()),
    "float": (ValueKind.FIXED32, pa.float32()),
    "int64": (ValueKind.INT64, pa.int64()),
    "uint64": (ValueKind.INT64, pa.uint64()),
    "int32": (ValueKind.INT32, pa.int32()),
    "fixed64": (ValueKind.FIXED64, pa.uint64()),
    "fixed32": (ValueKind.FIXED32, pa.uint32()),
    "uint32": (ValueKind.INT32, pa.uint32()),
    "sfixed32": (ValueKind.FIXED32, pa.int32()),
    "sfixed64": (ValueKind.FIXED64, pa.int64()),
    "sint32": (ValueKind.SINT32, pa.int32()),
    "sint64": (ValueKind.SINT64, pa.int64()),
}
NUMBER_TYPES = {_NAMES.index(name): kind for name, (_, kind) in _NUMBERS.items()}
_KINDS: dict[int, ValueKind] = {
    **{_NAMES.index(name): kind for name, (kind, _) in _NUMBERS.items()},
    BOOL: ValueKind.BOOL,
    STRING: ValueKind.STRING,
    GROUP: ValueKind.GROUP,
    MESSAGE: ValueKind.MESSAGE,
    BYTES: ValueKind.BYTES,
    ENUM: ValueKind.INT32,
}
# Numbers with the same encoding. Within a group a number of the writer may not fit the type of the reader.
_GROUPS = (
    {"int32", "int64", "uint32", "uint64"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
)
# (writer, reader) of different types whose bytes the reader's type reads as they are.
_SAME_BYTES = {
    *(("bool", name) for name in ("int32", "int64", "uint32", "uint64", "enum")),
    *(("enum", name) for name in ("int32", "int64")),
    *((name, "bool") for name in ("int32", "int64", "uint32", "uint64", "enum")),
    ("int32", "enum"),
    ("string", "bytes"),
    ("bytes", "string"),
    ("message", "bytes"),
    ("bytes", "message"),
}


def stored_type(writer: FieldDescriptor | None, reader: FieldDescriptor, path: str) -> int:
    """Return the type as which the kernel reads a field, so that `reader` has the values of `writer`.

    It is another type than that of `reader` only for numbers that may be out of the range of the type of `reader`.

    Raises SchemaError if the bytes have another meaning to the reader, or if it would lose values.
    """
    kind: int = reader.type
    if writer is None:
        return kind
    if is_repeated(writer) and not is_repeated(reader):
        raise SchemaError(f"{path}: a repeated field cannot be read as one value")
    names = (_NAMES[writer.type], _NAMES[kind])
    if writer.type == kind or names in _SAME_BYTES:
        return kind
    if any(group.issuperset(names) for group in _GROUPS):
        read, written = np.iinfo(number_dtype(kind)), np.iinfo(number_dtype(writer.type))
        fits = read.min <= written.min and written.max <= read.max
        # A positive uint32 has no sign to extend, and an int32 is written as the int64 with the same value.
        return kind if fits else int(writer.type)
    raise SchemaError(f"{path}: {names[0]} cannot be read as {names[1]}")


def number_dtype(kind: int) -> np.dtype[Any]:
    """Return how numpy has the numbers of a type."""
    found: np.dtype[Any] = np.dtype(NUMBER_TYPES[kind].to_pandas_dtype())
    return found


def scanned_field(
    found: FieldDescriptor, stored: int, oneof: int
) -> tuple[int, int, int, int, Sequence[int]]:
    """Return a field as the kernel's scanner takes it. stored: of `stored_type`. oneof: its number, -1 for none."""
    rules = 0
    numbers: list[int] = []
    if is_repeated(found):
        rules |= FieldRule.REPEATED
    if is_required(found):
        rules |= FieldRule.REQUIRED
    # An entry of a map whose value is unknown is dropped as a whole, which the column of the map does.
    in_entry = found.containing_type.GetOptions().map_entry
    if found.enum_type is not None and found.enum_type.is_closed and not in_entry:
        rules |= FieldRule.CLOSED
        numbers = sorted({value.number for value in found.enum_type.values})
    return found.number, _KINDS[stored], rules, oneof, numbers


def is_map(found: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return bool(found.message_type is not None and found.message_type.GetOptions().map_entry)


def is_repeated(found: Any) -> bool:
    """Return whether a field is repeated, or a map."""
    # Before Protobuf 6.31, fields only have a label.
    return bool(found.is_repeated if hasattr(found, "is_repeated") else found.label == found.LABEL_REPEATED)


def is_required(found: Any) -> bool:
    """Return whether a field is required, which is of proto2."""
    return bool(found.is_required if hasattr(found, "is_required") else found.label == found.LABEL_REQUIRED)
