"""Protobuf: the Arrow type of a message, and the decoder of its payloads.

| Protobuf | Arrow |
|---|---|
| int32, sint32, sfixed32; int64 and its like | int32; int64 |
| uint32, fixed32; uint64, fixed64 | uint32; uint64 |
| float, double, bool, string, bytes | float, double, bool, string, binary |
| enum | string with the name; a number that has no name is text with the number |
| message, group | struct |
| message without fields, such as google.protobuf.Empty | bool: true if present |
| message within a message of the same type | binary with its bytes |
| repeated; map | list; map |
| google.protobuf.Timestamp; Duration | timestamp[us, UTC]; duration[us] |
| google.protobuf.Int64Value and the other wrappers | the type of the value |
| google.protobuf.Struct, Value, ListValue | string with JSON text |

A field that is absent is null if its presence is explicit: messages, fields of a oneof, `optional` fields, and those of
proto2. If its presence is implicit, or if proto2 gives a default value, it has its default value. Repeated fields and
maps are never null. Payloads are read with the fields of the reader, by their numbers, as Protobuf does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.protobuf import FieldRule, MessageScanner, ValueKind
from kafkafmt.columns.arrow import boolean_array, number_array, string_array
from kafkafmt.decode import protobuf_columns as columns
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads, Schema, SchemaError
from kafkafmt.decode.protobuf_columns import Column, Run, payload_cells, without_rows
from kafkafmt.decode.protobuf_schemas import message_descriptor

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

_MAX_DEPTH = 100
_MAX_FIELDS = 10_000  # messages that contain each other multiply

# By the numbers of FieldDescriptorProto.Type.
_ENUM, _MESSAGE, _GROUP, _BOOL, _STRING, _BYTES = 14, 11, 10, 8, 9, 12
_NUMBERS: dict[int, tuple[ValueKind, pa.DataType]] = {
    1: (ValueKind.FIXED64, pa.float64()),
    2: (ValueKind.FIXED32, pa.float32()),
    3: (ValueKind.INT64, pa.int64()),
    4: (ValueKind.INT64, pa.uint64()),
    5: (ValueKind.INT32, pa.int32()),
    6: (ValueKind.FIXED64, pa.uint64()),
    7: (ValueKind.FIXED32, pa.uint32()),
    13: (ValueKind.INT32, pa.uint32()),
    15: (ValueKind.FIXED32, pa.int32()),
    16: (ValueKind.FIXED64, pa.int64()),
    17: (ValueKind.SINT32, pa.int32()),
    18: (ValueKind.SINT64, pa.int64()),
}
_KINDS: dict[int, ValueKind] = {
    **{number: kind for number, (kind, _) in _NUMBERS.items()},
    _BOOL: ValueKind.BOOL,
    _STRING: ValueKind.STRING,
    _GROUP: ValueKind.GROUP,
    _MESSAGE: ValueKind.MESSAGE,
    _BYTES: ValueKind.BYTES,
    _ENUM: ValueKind.INT32,
}
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_JSON = {f"google.protobuf.{name}": name for name in ("Struct", "Value", "ListValue")}
_TIMES = {
    "google.protobuf.Timestamp": pa.timestamp("us", "UTC"),
    "google.protobuf.Duration": pa.duration("us"),
}
_TIME_FIELDS = [(1, 3), (2, 5)]  # int64 seconds, int32 nanos


class ProtobufFormat:
    """Decodes Protobuf messages. The fields of a message are found by their numbers."""

    def read_type(self, reader: Schema) -> pa.DataType:
        """Return the Arrow type of the message of a schema."""
        return _column(reader).type

    def decoder(self, writer: Schema, reader: Schema) -> PayloadDecoder:
        """Return a decoder of payloads of the message of `writer` to the type of the message of `reader`."""
        return ProtobufDecoder(_column(reader))


FORMAT = ProtobufFormat()


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes payloads of one message type."""

    column: Column

    @property
    def type(self) -> pa.DataType:
        return self.column.type

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads."""
        run = Run(payloads)
        array = self.column.array(run, payload_cells(payloads))
        if run.errors:
            array = without_rows(array, list(run.errors))
        return DecodedPayloads(array, run.errors)


@lru_cache(maxsize=256)
def _column(schema: Schema) -> Column:
    return _Planner().message_column(message_descriptor(schema), "", ())


class _Planner:
    """Makes the columns of a schema. Path: of a field. Open: the messages on the way to it."""

    def __init__(self) -> None:
        self._fields = count(1)

    def message_column(self, message: Descriptor, path: str, open_names: tuple[str, ...]) -> Column:
        """Return the column of messages."""
        name = message.full_name
        if name in _JSON:
            return columns.JsonTexts(_JSON[name], path)
        if name in open_names:
            return columns.MergedBytes()
        if len(open_names) == _MAX_DEPTH:
            raise SchemaError(f"the Protobuf schema has messages nested deeper than {_MAX_DEPTH}: {path}")
        if not message.fields:
            return columns.Presence(self._message(message, path, open_names))
        if name in _WRAPPERS and len(message.fields) == 1:
            inner = self._message(message, path, open_names)
            return columns.Wrapped(inner, inner.fields[0].value)
        if name in _TIMES and [(found.number, found.type) for found in message.fields] == _TIME_FIELDS:
            return columns.Times(self._message(message, path, open_names), _TIMES[name])
        return columns.Structs(self._message(message, path, open_names))

    def _message(self, message: Descriptor, path: str, open_names: tuple[str, ...]) -> columns.Message:
        numbered = sorted(message.fields, key=lambda found: found.number)
        places = {found.number: place for place, found in enumerate(numbered)}
        oneofs = {found.full_name: place for place, found in enumerate(message.oneofs)}
        open_names = (*open_names, message.full_name)
        fields = [self._field(found, places[found.number], path, open_names) for found in message.fields]
        names = {found.number: found.name for found in numbered}
        scanner = MessageScanner([_scanned(found, oneofs) for found in numbered], len(oneofs))
        return columns.Message(path, scanner, fields, names)

    def _field(
        self, found: FieldDescriptor, place: int, path: str, open_names: tuple[str, ...]
    ) -> columns.Field:
        if next(self._fields) > _MAX_FIELDS:
            raise SchemaError(f"the Protobuf schema has more than {_MAX_FIELDS} fields")
        path = f"{path}.{found.name}" if path else found.name
        if _is_map(found):
            return self._map(found, place, path, open_names)
        value = self._value(found, path, open_names)
        if _is_repeated(found):
            return columns.RepeatedField(found.name, place, value)
        if found.message_type is None and not found.has_presence:
            return columns.ImplicitField(found.name, place, value)
        if found.has_default_value and found.containing_oneof is None:
            return columns.DefaultField(found.name, place, value, _default(found, value))
        return columns.Field(found.name, place, value)

    def _map(
        self, found: FieldDescriptor, place: int, path: str, open_names: tuple[str, ...]
    ) -> columns.MapField:
        assert found.message_type is not None
        entries = self._message(found.message_type, path, open_names)
        key, value = sorted(entries.fields, key=lambda inner: inner.place)
        return columns.MapField(found.name, place, value.value, key.value, entries)

    def _value(self, found: FieldDescriptor, path: str, open_names: tuple[str, ...]) -> Column:
        if found.type in _NUMBERS:
            return columns.Numbers(_NUMBERS[found.type][1])
        if found.type == _BOOL:
            return columns.Booleans()
        if found.type == _ENUM:
            assert found.enum_type is not None
            return _enum(found.enum_type)
        if found.message_type is not None:
            return self.message_column(found.message_type, path, open_names)
        return columns.Bytes(pa.string() if found.type == _STRING else pa.binary())


def _scanned(found: FieldDescriptor, oneofs: dict[str, int]) -> tuple[int, int, int, int, Sequence[int]]:
    """Return a field as the scanner takes it."""
    rules = 0
    numbers: list[int] = []
    if _is_repeated(found):
        rules |= FieldRule.REPEATED
    if _is_required(found):
        rules |= FieldRule.REQUIRED
    in_entry = found.containing_type.GetOptions().map_entry
    if found.enum_type is not None and found.enum_type.is_closed and not in_entry:
        rules |= FieldRule.CLOSED
        numbers = sorted({value.number for value in found.enum_type.values})
    oneof = -1 if found.containing_oneof is None else oneofs[found.containing_oneof.full_name]
    return found.number, _KINDS[found.type], rules, oneof, numbers


def _is_map(found: FieldDescriptor) -> bool:
    return bool(found.message_type is not None and found.message_type.GetOptions().map_entry)


def _is_repeated(found: Any) -> bool:
    # Before Protobuf 6.31, fields only have a label.
    return bool(found.is_repeated if hasattr(found, "is_repeated") else found.label == found.LABEL_REPEATED)


def _is_required(found: Any) -> bool:
    return bool(found.is_required if hasattr(found, "is_required") else found.label == found.LABEL_REQUIRED)


def _enum(found: EnumDescriptor) -> columns.Enums:
    names: dict[int, str] = {}
    for value in found.values:  # of names for the same number the first one counts
        names.setdefault(value.number, value.name)
    return columns.Enums(names, is_closed=found.is_closed)


def _default(found: FieldDescriptor, value: Column) -> pa.Array:
    """Return the default value of a field as an array."""
    default: Any = found.default_value
    if isinstance(value, columns.Enums):
        assert found.enum_type is not None
        return columns.text_array([found.enum_type.values_by_number[default].name])
    if isinstance(default, str):
        return columns.text_array([default])
    if isinstance(default, bytes):
        return string_array(pa.binary(), np.array([0, len(default)], np.int32), default)
    if isinstance(default, bool):
        return boolean_array(np.array([default]))
    return number_array(value.type, np.array([default], value.type.to_pandas_dtype()))
