"""Messages and their fields as Arrow arrays.

The kernel scans all messages of one type in one call, and returns the ranges of the messages in them, which the next
call scans. So there is a call for each message type of the schema, whatever the number of payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from _kafkafmt.payloads.protobuf import FieldColumn, MessageScanner, ScanStatus, join_ranges
from kafkafmt.columns.arrow import bitmap, boolean_array, number_array, string_array, text_array
from kafkafmt.decode.protobuf.cells import Cells, Column, Run, joined_messages
from kafkafmt.decode.protobuf.scalars import Enums

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MICROSECONDS = 1_000_000
_NANOSECONDS_A_MICROSECOND = 1000
MAX_DEPTH = 100  # of messages, as Protobuf's own parsers have it
_MAX_NANOSECONDS = 999_999_999
_TIMESTAMP_SECONDS = (-62_135_596_800, 253_402_300_799)  # from the year 1 to the year 9999
_DURATION_SECONDS = (-315_576_000_000, 315_576_000_000)  # about 10,000 years

_EXPECTED = {
    ScanStatus.ENDS_EARLY: "a value; the bytes end in it",
    ScanStatus.VARINT_TOO_LONG: "a varint of at most 10 bytes; found a longer one",
    ScanStatus.FIELD_NUMBER: "a field number from 1 to 536870911; found another",
    ScanStatus.WIRE_TYPE: "a wire type from 0 to 5; found another",
    ScanStatus.LENGTH: "a length of at most the bytes that are left; found a larger one",
    ScanStatus.GROUP_END: "the end of the group that is open; found another",
    ScanStatus.GROUP_DEPTH: "groups nested at most 100 deep; found more",
    ScanStatus.NOT_UTF8: "UTF-8; found other bytes",
    ScanStatus.REQUIRED_MISSING: "the field, which is required; found none",
}


class MessageColumn:
    """What is made of messages of a type."""

    def __init__(self, message: Message) -> None:
        self.message = message


class Presence(MessageColumn):
    """Messages without fields: true if present."""

    type = pa.bool_()

    def array(self, run: Run, cells: Cells) -> pa.Array:
        self.message.scan(run, cells)  # the fields that it does not know may be damaged
        return boolean_array(np.ones(len(cells), np.bool_), cells.valid)


class Structs(MessageColumn):
    """Messages with fields."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.type = pa.struct([pa.field(found.name, found.type) for found in message.fields])

    def array(self, run: Run, cells: Cells) -> pa.Array:
        columns = self.message.scan(run, cells)
        children = [found.array(run, columns[found.place], cells.rows) for found in self.message.fields]
        return pa.Array.from_buffers(self.type, len(cells), [bitmap(cells.valid)], children=children)


class Wrapped(MessageColumn):
    """Messages with one field, which stands for the message: google.protobuf.Int64Value and its like."""

    def __init__(self, message: Message, value: Column) -> None:
        super().__init__(message)
        self._value = value
        self.type = value.type

    def array(self, run: Run, cells: Cells) -> pa.Array:
        (column,) = self.message.scan(run, cells)
        return self._value.array(run, Cells(column.values, None, cells.present, cells.rows))


class Times(MessageColumn):
    """google.protobuf.Timestamp and google.protobuf.Duration as microseconds. Nanoseconds are rounded towards zero."""

    def __init__(self, message: Message, kind: pa.DataType) -> None:
        super().__init__(message)
        self.type = kind
        self._is_duration = pa.types.is_duration(kind)

    def array(self, run: Run, cells: Cells) -> pa.Array:
        seconds, nanos = (column.values for column in self.message.scan(run, cells))
        first, last = _DURATION_SECONDS if self._is_duration else _TIMESTAMP_SECONDS
        least_nanos = -_MAX_NANOSECONDS if self._is_duration else 0
        wrong = (seconds < first) | (seconds > last) | (nanos < least_nanos) | (nanos > _MAX_NANOSECONDS)
        if wrong.any():
            for cell in cells.chosen(wrong):
                problem = f"{first} to {last} seconds and {least_nanos} to {_MAX_NANOSECONDS} nanos; "
                found = f"found {seconds[cell]} and {nanos[cell]}"
                run.fail(cells, cell, self.message.path, problem + found)
            seconds = np.where(wrong, 0, seconds)
        part = np.abs(nanos) // _NANOSECONDS_A_MICROSECOND * np.sign(nanos)
        micros = seconds * _MICROSECONDS + part
        return number_array(self.type, micros, cells.valid)


class MergedBytes(MessageColumn):
    """Messages as their bytes, because they are in a message of the same type. They are checked nevertheless."""

    type = pa.binary()

    def array(self, run: Run, cells: Cells) -> pa.Array:
        self.message.check(run, cells)
        data, offsets = merged(run, cells)
        return string_array(self.type, offsets, data, cells.valid)


def merged(run: Run, cells: Cells) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return the bytes of messages, and offsets. The ranges of a message are joined, which merges them."""
    data, offsets = join_ranges(run.payloads.data, cells.values)
    if cells.owners is not None:
        offsets = offsets[np.searchsorted(cells.owners, np.arange(len(cells) + 1))]
    return data, offsets


class JsonTexts:
    """google.protobuf.Struct, Value and ListValue as JSON text with sorted keys."""

    type = pa.string()

    def __init__(self, name: str, path: str) -> None:
        self._name, self._path = name, path

    def array(self, run: Run, cells: Cells) -> pa.Array:
        import json

        from google.protobuf import struct_pb2
        from google.protobuf.json_format import MessageToDict, SerializeToJsonError
        from google.protobuf.message import DecodeError

        message = getattr(struct_pb2, self._name)
        data, offsets = merged(run, cells)
        whole, bounds = data.tobytes(), offsets.tolist()
        texts: list[str] = [""] * len(cells)
        for cell in cells.chosen(np.ones(len(cells), np.bool_)):
            try:
                value = MessageToDict(message.FromString(whole[bounds[cell] : bounds[cell + 1]]))
                texts[cell] = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
            except (DecodeError, SerializeToJsonError, RecursionError, ValueError) as error:  # such as NaN
                problem = " ".join(str(error).split()) or type(error).__name__
                run.fail(cells, cell, self._path, f"google.protobuf.{self._name}; {problem}")
        return text_array(texts, cells.valid)


class Message:
    """A message type: its scanner, and its fields in the order of the schema.

    It is complete after `complete`: a message may have fields of its own type.

    path: of the field whose messages these are; empty for payloads.
    """

    fields: Sequence[Field]

    def __init__(self, path: str) -> None:
        self.path = path

    def complete(self, scanner: MessageScanner, fields: Sequence[Field], names: dict[int, str]) -> None:
        """Set the fields. names: of the fields, by number."""
        self.fields = fields
        self._scanner = scanner
        self._names = names

    def check(self, run: Run, cells: Cells) -> None:
        """Add errors for messages that are damaged, with the messages in them.

        Messages of one type and depth are scanned in one call, whatever their fields are.
        """
        level = {id(self): (self, [cells])}
        for _ in range(MAX_DEPTH):
            inner: dict[int, tuple[Message, list[Cells]]] = {}
            for message, parts in level.values():
                found = joined_messages(parts)
                if not len(found):
                    continue
                columns = message.scan(run, found)
                for part in message.fields:
                    if part.message is not None:
                        given = inner.setdefault(id(part.message), (part.message, []))
                        given[1].append(part.cells(columns[part.place], found.rows))
            level = inner
        for message, parts in level.values():
            found = joined_messages(parts)
            for cell in range(len(found)):
                run.fail(found, cell, message.path, f"messages nested at most {MAX_DEPTH} deep; found more")

    def scan(self, run: Run, cells: Cells) -> list[FieldColumn]:
        """Return the columns of messages, in the order of the field numbers."""
        run.budget.take(self._scanner.message_bytes * len(cells))
        starts, ends = (np.ascontiguousarray(cells.values[:, side]) for side in (0, 1))
        owners = np.arange(len(cells)) if cells.owners is None else cells.owners
        columns, failures = self._scanner.scan(run.payloads.data, starts, ends, owners, len(cells))
        for cell, status, position, number in failures.tolist():
            run.fail_at(int(cells.rows[cell]), position, self._path_of(number), _EXPECTED[ScanStatus(status)])
        return columns

    def _path_of(self, number: int) -> str:
        if not number:
            return self.path
        name = self._names.get(number, f"field {number}")
        return f"{self.path}.{name}" if self.path else name


@dataclass(frozen=True)
class Field:
    """A field of a message. place: among the columns of the scanner."""

    name: str
    place: int
    value: Column

    @property
    def type(self) -> pa.DataType:
        return self.value.type

    @property
    def message(self) -> Message | None:
        """Return the message type of the field. None if it has none, or if it is checked elsewhere."""
        return self.value.message if isinstance(self.value, MessageColumn) else None

    def cells(self, column: FieldColumn, rows: NDArray[np.int64]) -> Cells:
        """Return the values. rows: the payload of each message."""
        return Cells(column.values, column.owners, column.present, rows)

    def array(self, run: Run, column: FieldColumn, rows: NDArray[np.int64]) -> pa.Array:
        """Return the values of the field, one a message. rows: the payload of each message."""
        return self.value.array(run, self.cells(column, rows))


@dataclass(frozen=True)
class ImplicitField(Field):
    """A field that has its default value, which is zero or empty, if it is absent."""

    def cells(self, column: FieldColumn, rows: NDArray[np.int64]) -> Cells:
        return Cells(column.values, None, None, rows)


@dataclass(frozen=True)
class DefaultField(Field):
    """A field whose schema gives a default value. default: an array of it alone."""

    default: pa.Array

    def array(self, run: Run, column: FieldColumn, rows: NDArray[np.int64]) -> pa.Array:
        found = super().array(run, column, rows)
        assert column.present is not None
        places = np.where(column.present.view(np.bool_), np.arange(len(rows)), len(rows))
        return pa.concat_arrays([found, self.default]).take(number_array(pa.int64(), places))


@dataclass(frozen=True)
class RepeatedField(Field):
    """A repeated field. It is never null: without items it is empty."""

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.value.type)

    def cells(self, column: FieldColumn, rows: NDArray[np.int64]) -> Cells:
        return Cells(column.values, None, None, np.repeat(rows, np.diff(item_offsets(column))))

    def array(self, run: Run, column: FieldColumn, rows: NDArray[np.int64]) -> pa.Array:
        items = self.value.array(run, self.cells(column, rows))
        buffers = [None, pa.py_buffer(item_offsets(column))]
        return pa.Array.from_buffers(self.type, len(rows), buffers, children=[items])


@dataclass(frozen=True)
class MapField(RepeatedField):
    """A map. Of entries with the same key the last one counts. value: of its values. entries: their message type."""

    key: Column
    entries: Message

    @property
    def type(self) -> pa.DataType:
        return pa.map_(self.key.type, self.value.type)

    @property
    def message(self) -> Message:
        return self.entries

    def array(self, run: Run, column: FieldColumn, rows: NDArray[np.int64]) -> pa.Array:
        offsets = item_offsets(column)
        messages = np.repeat(np.arange(len(rows)), np.diff(offsets))
        cells = self.cells(column, rows)
        keys, values = self._scanned(run, cells)
        kept = self._kept(keys, values, messages)
        if kept is not None:
            messages = messages[kept]
            cells = Cells(column.values[kept], None, None, rows[messages])
            offsets = np.searchsorted(messages, np.arange(len(rows) + 1)).astype(np.int32)
            keys, values = self._scanned(run, cells)
        kind = pa.struct([pa.field("key", self.key.type, nullable=False), pa.field("value", self.value.type)])
        children = [keys, self._values(run, values, cells)]
        entries = pa.Array.from_buffers(kind, len(cells), [None], children=children)
        return pa.Array.from_buffers(self.type, len(rows), [None, pa.py_buffer(offsets)], children=[entries])

    def _scanned(self, run: Run, cells: Cells) -> tuple[pa.Array, FieldColumn]:
        keys, values = self.entries.scan(run, cells)
        return self.key.array(run, Cells(keys.values, None, None, cells.rows)), values

    def _values(self, run: Run, column: FieldColumn, cells: Cells) -> pa.Array:
        values = column.values
        if isinstance(self.value, Enums) and self.value.default:
            assert column.present is not None
            values = np.where(column.present.view(np.bool_), values, np.int32(self.value.default))
        return self.value.array(run, Cells(values, column.owners, None, cells.rows))

    def _kept(
        self, keys: pa.Array, values: FieldColumn, messages: NDArray[np.int64]
    ) -> NDArray[np.int64] | None:
        """Return the entries that count. None if all do."""
        kept = np.arange(len(messages))
        if isinstance(self.value, Enums) and self.value.is_closed:
            assert values.present is not None
            kept = kept[self.value.is_known(values.values) | ~values.present.view(np.bool_)]
        encoded = keys.dictionary_encode()
        codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(keys)) if len(keys) else kept
        pairs = (messages * (len(encoded.dictionary) + 1) + codes)[kept]
        _, last = np.unique(pairs[::-1], return_index=True)
        if len(last) == len(messages):
            return None
        chosen: NDArray[np.int64] = kept[np.sort(len(pairs) - 1 - last)]
        return chosen


def item_offsets(column: FieldColumn) -> NDArray[np.int32]:
    """Return the offsets of the items of a repeated field. Raises OverflowError if there are too many for Arrow."""
    offsets = column.offsets
    assert offsets is not None
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{offsets[-1]} items do not fit into one column with int32 offsets")
    return offsets.astype(np.int32)
