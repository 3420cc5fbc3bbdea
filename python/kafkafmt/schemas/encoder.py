"""Encoders made of a message's schema, the counterpart of `decoder.py`: for each version a list of writers.

An encoder writes what Kafka's generated classes write for the same values: tagged fields that have their default are
left out, and the others ascend by their tags. A value that the version cannot carry is a ValueError.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import Struct, error
from typing import Any

from kafkafmt.schemas.decoder import HasSchema
from kafkafmt.schemas.json_form import is_default
from kafkafmt.schemas.schema import FieldSchema

Writer = Callable[[bytearray, Any], None]
_MAX_STRING_BYTES = 0x7FFF


def encode(message: HasSchema, version: int) -> bytes:
    """Return the bytes of a message in a version. Raises ValueError if the version cannot carry its values."""
    schema = message.SCHEMA
    if version not in schema.versions:
        raise ValueError(f"{schema.name}: expected version {schema.versions}, found {version}")
    written = bytearray()
    _struct_writer(type(message), None, version)(written, message)
    return bytes(written)


@cache
def _struct_writer(message: type[HasSchema], name: str | None, version: int) -> Writer:
    """Return the writer of a message, or of the structure of it that has this name."""
    schema = message.SCHEMA
    fields = schema.struct(name).fields if name else schema.fields
    present = [field for field in fields if version in field.versions]
    placed = [
        (field, _field_writer(message, field, version)) for field in present if version not in field.tagged
    ]
    tagged = [(field, _field_writer(message, field, version)) for field in present if version in field.tagged]
    lost = [field for field in fields if version not in field.versions and not field.ignorable]
    flexible = version in schema.flexible

    def write_struct(written: bytearray, struct: Any) -> None:
        for field in lost:
            if not is_default(getattr(struct, field.name), field):
                raise ValueError(f"{schema.name}: version {version} has no field {field.name}")
        for field, write in placed:
            _write_field(written, write, field, struct)
        if flexible:
            _write_tagged_fields(written, tagged, struct)

    return write_struct


def _write_field(written: bytearray, write: Writer, field: FieldSchema, struct: Any) -> None:
    value = getattr(struct, field.name)
    try:
        write(written, value)
    except (error, TypeError, AttributeError) as wrong:
        kind = f"array of {field.type}" if field.array else field.type
        raise ValueError(f"field {field.name}: expected {kind}, found {value!r}") from wrong


def _write_tagged_fields(written: bytearray, tagged: list[tuple[FieldSchema, Writer]], struct: Any) -> None:
    encoded: list[tuple[int, bytes]] = [(each.tag, each.data) for each in struct.unknown_tagged_fields]
    for field, write in tagged:
        if not is_default(getattr(struct, field.name), field):
            content = bytearray()
            _write_field(content, write, field, struct)
            encoded.append((field.tag or 0, bytes(content)))
    write_unsigned_varint(written, len(encoded))
    for tag, data in sorted(encoded, key=lambda each: each[0]):
        write_unsigned_varint(written, tag)
        write_unsigned_varint(written, len(data))
        written += data


def _field_writer(message: type[HasSchema], field: FieldSchema, version: int) -> Writer:
    flexible = version in message.SCHEMA.flexible
    nullable = version in field.nullable
    write = _value_writer(message, field, version)
    if field.array:
        write_count = _write_compact_length if flexible else _INT32
        return _counted(write_count, _elements(write), nullable)
    if field.type == "struct" and nullable:
        return _nullable(write, tagged=version in field.tagged)
    return write


def _value_writer(message: type[HasSchema], field: FieldSchema, version: int) -> Writer:
    """Return the writer of a value, or of one element of an array."""
    flexible = version in message.SCHEMA.flexible
    nullable = version in field.nullable and not field.array
    if field.type == "string":
        write = _counted(_write_compact_length if flexible else _INT16, bytearray.extend, nullable)
        return lambda written, value: write(written, _utf8(value))
    if field.type == "bytes":
        return _counted(_write_compact_length if flexible else _INT32, bytearray.extend, nullable)
    if field.type == "struct":
        return _struct_writer(message, field.struct, version)
    return _FIXED[field.type]


def _utf8(value: str | None) -> bytes | None:
    if value is None:
        return None
    encoded = value.encode("utf-8")
    if len(encoded) > _MAX_STRING_BYTES:
        raise ValueError(f"expected a string of at most {_MAX_STRING_BYTES} bytes, found {len(encoded)}")
    return encoded


def _counted(write_length: Writer, write: Writer, nullable: bool) -> Writer:
    """Return a writer of a length, then of what has this length. The length of None is -1."""

    def write_counted(written: bytearray, value: Any) -> None:
        if value is None:
            if not nullable:
                raise TypeError("null")
            write_length(written, -1)
        else:
            write_length(written, len(value))
            write(written, value)

    return write_counted


def _elements(write: Writer) -> Writer:
    def write_elements(written: bytearray, values: Any) -> None:
        for value in values:
            write(written, value)

    return write_elements


def _nullable(write: Writer, *, tagged: bool) -> Writer:
    """Return the writer of a structure that can be null. In a tagged field its first byte is 0 if it is, else 1."""
    null, present = (b"\0", b"\1") if tagged else (b"\xff", b"\1")

    def write_nullable(written: bytearray, value: Any) -> None:
        written += null if value is None else present
        if value is not None:
            write(written, value)

    return write_nullable


def write_unsigned_varint(written: bytearray, value: int) -> None:
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)


def _write_compact_length(written: bytearray, length: int) -> None:
    write_unsigned_varint(written, length + 1)


def _packed(layout: str) -> Writer:
    pack = Struct(layout).pack

    def write(written: bytearray, value: Any) -> None:
        written += pack(value)

    return write


_INT16 = _packed(">h")
_INT32 = _packed(">i")
_FIXED: dict[str, Writer] = {
    "bool": _packed(">?"),
    "int8": _packed(">b"),
    "int16": _INT16,
    "uint16": _packed(">H"),
    "int32": _INT32,
    "uint32": _packed(">I"),
    "int64": _packed(">q"),
    "float64": _packed(">d"),
    "uuid": lambda written, value: written.extend(value.bytes),
}
