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
maps are never null.

Payloads are read with the fields of the reader, which are found by their numbers, as Protobuf does. What would change
the values is refused: a number that the type of the reader cannot have is an error of its payload, and types with
different encodings are errors of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.protobuf import MessageScanner
from kafkafmt.columns.arrow import boolean_array, number_array, string_array, text_array
from kafkafmt.decode.payloads import DecodedPayloads, PayloadDecoder, Payloads, Schema, SchemaError
from kafkafmt.decode.protobuf import columns, scalars
from kafkafmt.decode.protobuf.cells import Column, Run, payload_cells, without_rows
from kafkafmt.decode.protobuf.fields import (
    BOOL,
    NUMBER_TYPES,
    STRING,
    is_map,
    is_repeated,
    number_dtype,
    scanned_field,
    stored_type,
)
from kafkafmt.decode.protobuf.schemas import message_descriptors

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

_MAX_FIELDS = 10_000  # messages that contain each other multiply

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

    def ensure_valid(self, schema: Schema) -> None:
        """Raise SchemaError if a schema is damaged or has no message, and SchemaSourceError as `read_type`."""
        message_descriptors(schema)

    def read_type(self, reader: Schema) -> pa.DataType:
        """Return the Arrow type of the message of a schema."""
        return _column(reader, reader).type

    def decoder(self, writer: Schema, reader: Schema) -> PayloadDecoder:
        """Return a decoder of payloads of the message of `writer` to the type of the message of `reader`."""
        return ProtobufDecoder(_column(writer, reader))

    def left_out(self, writer: Schema, reader: Schema) -> Sequence[str]:
        """Return the paths of the fields of the message of `writer` whose numbers the message of `reader` lacks."""
        _column(writer, reader)
        return list(_left_out(*_messages(writer, reader), "", set()))


FORMAT = ProtobufFormat()


@dataclass(frozen=True)
class ProtobufDecoder:
    """Decodes payloads of one message type."""

    column: Column

    @property
    def type(self) -> pa.DataType:
        return self.column.type

    def decode(self, payloads: Payloads) -> DecodedPayloads:
        """Decode payloads. Raises OverflowError as the decoders of the other formats."""
        run = Run(payloads)
        array = self.column.array(run, payload_cells(payloads))
        if run.errors:
            array = without_rows(array, list(run.errors))
        return DecodedPayloads(array, run.errors)


@lru_cache(maxsize=256)
def _column(writer: Schema, reader: Schema) -> Column:
    """Return the column of payloads of the message of `writer`, as the message of `reader` has them."""
    return _Planner().message_column(*_messages(writer, reader), "")


def _messages(writer: Schema, reader: Schema) -> tuple[Descriptor, Descriptor]:
    """Return the messages of two schemas. Raises SchemaError if that of `writer` is another message."""
    read = message_descriptors(reader)[0]
    candidates = message_descriptors(writer)
    written = next((found for found in candidates if found.full_name == read.full_name), candidates[0])
    if written.full_name != read.full_name and _has_message(written, read.full_name):
        raise SchemaError(f"the payload is of message {written.full_name}; expected {read.full_name}")
    return written, read


def _left_out(written: Descriptor, read: Descriptor, path: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    if (written.full_name, read.full_name) in seen:
        return
    seen.add((written.full_name, read.full_name))
    known = {found.number: found for found in read.fields}
    for found in written.fields:
        inner = f"{path}.{found.name}" if path else found.name
        other = known.get(found.number)
        if other is None:
            yield inner
        elif found.message_type is not None and other.message_type is not None:
            yield from _left_out(found.message_type, other.message_type, inner, seen)


def _has_message(near: Descriptor, name: str) -> bool:
    """Return whether the schema of a message has a message with a name. If not, the message may be renamed."""
    try:
        near.file.pool.FindMessageTypeByName(name)
    except KeyError:
        return False
    return True


class _Planner:
    """Makes the columns of a schema.

    Of two messages or fields the first is of the writer, None if it has none. The columns are those of the reader.
    path: of a field. open: the messages on the way to it, by their names.
    """

    def __init__(self) -> None:
        self._fields = count(1)
        self._open: dict[str, columns.Message] = {}

    def message_column(self, written: Descriptor | None, read: Descriptor, path: str) -> Column:
        """Return the column of messages."""
        name = read.full_name
        if name in _JSON:
            return columns.JsonTexts(_JSON[name], path)
        if name in self._open:
            return columns.MergedBytes(self._open[name])
        if len(self._open) == columns.MAX_DEPTH:
            raise SchemaError(
                f"the Protobuf schema has messages nested deeper than {columns.MAX_DEPTH}: {path}"
            )
        message = self._message(written, read, path)
        if not read.fields:
            return columns.Presence(message)
        if name in _WRAPPERS and len(read.fields) == 1:
            return columns.Wrapped(message, message.fields[0].value)
        if name in _TIMES and [(found.number, found.type) for found in read.fields] == _TIME_FIELDS:
            return columns.Times(message, _TIMES[name])
        return columns.Structs(message)

    def _message(self, written: Descriptor | None, read: Descriptor, path: str) -> columns.Message:
        writers = {} if written is None else {found.number: found for found in written.fields}
        oneofs = {found.full_name: place for place, found in enumerate(read.oneofs)}
        message = self._open[read.full_name] = columns.Message(path)
        fields, scanned = [], []
        places = {number: place for place, number in enumerate(sorted(found.number for found in read.fields))}
        for found in read.fields:
            inner = f"{path}.{found.name}" if path else found.name
            writer = writers.get(found.number)
            stored = stored_type(writer, found, inner)
            oneof = -1 if found.containing_oneof is None else oneofs[found.containing_oneof.full_name]
            scanned.append(scanned_field(found, stored, oneof))
            fields.append(self._field(_Pair(writer, found, stored), places[found.number], inner))
        names = {found.number: found.name for found in read.fields}
        message.complete(MessageScanner(sorted(scanned), len(oneofs)), fields, names)
        del self._open[read.full_name]
        return message

    def _field(self, pair: _Pair, place: int, path: str) -> columns.Field:
        if next(self._fields) > _MAX_FIELDS:
            raise SchemaError(f"the Protobuf schema has more than {_MAX_FIELDS} fields")
        found = pair.read
        if is_map(found):
            return self._map(pair, place, path)
        value = self._value(pair, path)
        if is_repeated(found):
            return columns.RepeatedField(found.name, place, value)
        if found.message_type is None and not found.has_presence:
            return columns.ImplicitField(found.name, place, value)
        if found.has_default_value and found.containing_oneof is None:
            return columns.DefaultField(found.name, place, value, _default(found, value))
        return columns.Field(found.name, place, value)

    def _map(self, pair: _Pair, place: int, path: str) -> columns.MapField:
        entry = pair.read.message_type
        assert entry is not None
        entries = self._message(pair.written_message, entry, path)
        key, value = sorted(entries.fields, key=lambda inner: inner.place)
        return columns.MapField(pair.read.name, place, value.value, key.value, entries)

    def _value(self, pair: _Pair, path: str) -> Column:
        found = pair.read
        if found.message_type is not None:
            return self.message_column(pair.written_message, found.message_type, path)
        if found.enum_type is not None:
            return _enum(found.enum_type)
        kind: int = found.type
        if kind == BOOL:
            return scalars.Booleans()
        if kind not in NUMBER_TYPES:
            return scalars.Bytes(pa.string() if kind == STRING else pa.binary())
        numbers = scalars.Numbers(NUMBER_TYPES[kind])
        if kind == pair.stored:
            return numbers
        return scalars.NarrowNumbers(numbers, number_dtype(pair.stored), path)


class _Pair(NamedTuple):
    """A field of the writer and that of the reader. stored: how the kernel reads it."""

    written: FieldDescriptor | None
    read: FieldDescriptor
    stored: int

    @property
    def written_message(self) -> Descriptor | None:
        return None if self.written is None else self.written.message_type


def _enum(found: EnumDescriptor) -> scalars.Enums:
    names: dict[int, str] = {}
    for value in found.values:  # of names for the same number the first one counts
        names.setdefault(value.number, value.name)
    return scalars.Enums(names, is_closed=found.is_closed)


def _default(found: FieldDescriptor, value: Column) -> pa.Array:
    """Return the default value of a field as an array."""
    default: Any = found.default_value
    if isinstance(value, scalars.Enums):
        assert found.enum_type is not None
        return text_array([found.enum_type.values_by_number[default].name])
    if isinstance(default, str):
        return text_array([default])
    if isinstance(default, bytes):
        if value.type == pa.string():
            raise SchemaError(f"field {found.full_name}: expected a default in UTF-8; found {default!r}")
        return string_array(pa.binary(), np.array([0, len(default)], np.int32), default)
    if isinstance(default, bool):
        return boolean_array(np.array([default]))
    return number_array(value.type, np.array([default], value.type.to_pandas_dtype()))
