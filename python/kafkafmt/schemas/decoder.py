"""Decoders made of a message's schema: for each class and version a list of readers, one for each field.

The list is made when a version is first decoded, and kept. A decoder gives the fields of its version, and the defaults
of the others. It reads all bytes: bytes left after the last field are an error, and so is a tagged field whose size
differs from its content. Tagged fields that the schema does not know are kept as they are (KIP-482).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from kafkafmt.errors import InvalidRecordError, UnsupportedVersionError
from kafkafmt.schemas.cursor import (
    Cursor,
    InvalidBytes,
    array_of,
    compact_length,
    counted,
    read_bool,
    read_bytes,
    read_float64,
    read_int8,
    read_int16,
    read_int32,
    read_int64,
    read_string,
    read_uint16,
    read_uint32,
    read_unsigned_varint,
    read_uuid,
)
from kafkafmt.schemas.schema import FieldSchema, MessageSchema, TaggedField


class HasSchema(Protocol):
    SCHEMA: ClassVar[MessageSchema]


T = TypeVar("T", bound=HasSchema)
Reader = Callable[[Cursor], Any]
_FIXED: dict[str, Reader] = {
    "bool": read_bool,
    "int8": read_int8,
    "int16": read_int16,
    "uint16": read_uint16,
    "int32": read_int32,
    "uint32": read_uint32,
    "int64": read_int64,
    "float64": read_float64,
    "uuid": read_uuid,
}


class _FieldReader(NamedTuple):
    name: str
    read: Reader


class _TaggedReader(NamedTuple):
    name: str
    place: int
    read: Reader


def decode(message: type[T], data: bytes, version: int, position: int = 0) -> T:
    """Decode a message from `position` to the end of the bytes.

    Raises UnsupportedVersionError if the schema has no such version, InvalidRecordError if the bytes do not follow
    it. The error has the field, the byte position in `data`, what was expected and what was found.
    """
    schema = message.SCHEMA
    if version not in schema.versions:
        raise UnsupportedVersionError(f"{schema.name}: expected version {schema.versions}, found {version}")
    cursor = Cursor(data, position)
    try:
        decoded: T = _struct_reader(message, None, version)(cursor)
        if cursor.position < cursor.end:
            raise InvalidBytes(cursor.position, "the end", f"{cursor.end - cursor.position} more bytes")
    except InvalidBytes as error:
        raise invalid(error, f"{schema.name} version {version}") from None
    return decoded


def invalid(error: InvalidBytes, name: str) -> InvalidRecordError:
    """Turn the error of a reader into the public one. name: what was decoded."""
    path = "".join(f"{part}" if part.startswith("[") else f".{part}" for part in reversed(error.path))
    field = f", field {path.lstrip('.')}" if path else ""
    return InvalidRecordError(
        f"{name}{field}, byte {error.position}: expected {error.expected}, found {error.found}"
    )


@cache
def _struct_reader(message: type[HasSchema], name: str | None, version: int) -> Reader:
    """Return the reader of a message, or of the structure of it that has this name."""
    schema = message.SCHEMA
    made: Any = getattr(message, name) if name else message
    fields = schema.struct(name).fields if name else schema.fields
    compact = version in schema.flexible
    values = [_default(message, field) for field in fields]
    places: list[int] = []
    readers: list[_FieldReader] = []
    tagged: dict[int, _TaggedReader] = {}
    for place, field in enumerate(fields):
        if version not in field.versions:
            continue
        read = _field_reader(message, field, version)
        if field.tag is not None and version in field.tagged:
            tagged[field.tag] = _TaggedReader(field.json_name, place, read)
        else:
            places.append(place)
            readers.append(_FieldReader(field.json_name, read))

    def read_struct(cursor: Cursor) -> Any:
        read_values = values.copy()
        index = 0
        try:
            for index, (_, read) in enumerate(readers):
                read_values[places[index]] = read(cursor)
        except InvalidBytes as error:
            error.path.append(readers[index].name)
            raise
        if not compact:
            return made(*read_values)
        unknown = _read_tagged_fields(cursor, tagged, read_values)
        return made(*read_values, unknown)

    return read_struct


def _default(message: type[HasSchema], field: FieldSchema) -> Any:
    if field.type == "struct" and not field.array and field.default is not None:
        return getattr(message, str(field.struct))()
    return field.default


def _field_reader(message: type[HasSchema], field: FieldSchema, version: int) -> Reader:
    compact = version in message.SCHEMA.flexible
    nullable = version in field.nullable
    if field.array:
        read_count = compact_length if compact else read_int32
        return counted(read_count, array_of(_value_reader(message, field, version)), nullable)
    if field.type == "struct" and nullable:
        is_null = _is_null_tagged if version in field.tagged else _is_null
        return _nullable(is_null, _value_reader(message, field, version))
    return _value_reader(message, field, version)


def _value_reader(message: type[HasSchema], field: FieldSchema, version: int) -> Reader:
    """Return the reader of a value, or of one element of an array."""
    compact = version in message.SCHEMA.flexible
    nullable = version in field.nullable and not field.array
    if field.type == "string":
        return counted(compact_length if compact else read_int16, read_string, nullable)
    if field.type == "bytes":
        return counted(compact_length if compact else read_int32, read_bytes, nullable)
    if field.type == "struct":
        return _struct_reader(message, field.struct, version)
    return _FIXED[field.type]


def _is_null(cursor: Cursor) -> bool:
    """Read the byte before a structure that can be null: it is negative if it is."""
    return read_int8(cursor) < 0


def _is_null_tagged(cursor: Cursor) -> bool:
    """Read the varint before a structure that can be null, in a tagged field: 0 if it is."""
    return read_unsigned_varint(cursor) == 0


def _nullable(is_null: Callable[[Cursor], bool], read: Reader) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        return None if is_null(cursor) else read(cursor)

    return read_nullable


def _read_tagged_fields(
    cursor: Cursor, tagged: dict[int, _TaggedReader], values: list[Any]
) -> tuple[TaggedField, ...]:
    """Read the tagged fields at the end of a structure into `values`. Return those that the schema lacks."""
    unknown: list[TaggedField] = []
    for _ in range(_count_of_tags(cursor)):
        tag = read_unsigned_varint(cursor)
        size = read_unsigned_varint(cursor)
        start = cursor.take(size, f"tagged field {tag}")
        known = tagged.get(tag)
        if known is None:
            unknown.append(TaggedField(tag, cursor.data[start : start + size]))
        else:
            values[known.place] = _read_tagged(cursor, start, known)
    return tuple(unknown)


def _count_of_tags(cursor: Cursor) -> int:
    start = cursor.position
    count = read_unsigned_varint(cursor)
    left = cursor.end - cursor.position
    if count > left // 2:  # each takes a byte of its tag, and one of its size
        raise InvalidBytes(start, f"at most {left // 2} tagged fields in {left} bytes", f"{count}")
    return count


def _read_tagged(cursor: Cursor, start: int, known: _TaggedReader) -> Any:
    """Read a known tagged field from its start. The cursor is at its end, and is left there."""
    outer_end, cursor.end, cursor.position = cursor.end, cursor.position, start
    try:
        value = known.read(cursor)
        if cursor.position < cursor.end:
            found = f"{cursor.end - cursor.position} more bytes"
            raise InvalidBytes(cursor.position, "the end of the tagged field", found)
    except InvalidBytes as error:
        error.path.append(known.name)
        raise
    finally:
        cursor.end = outer_end
    return value
