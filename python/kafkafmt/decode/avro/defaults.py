"""Defaults of fields as Avro's bytes: the program reads them as it reads payloads (Avro 1.12, "Complex Types")."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kafkafmt.decode.avro.schemas import (
    MISSING,
    Array,
    AvroType,
    Enum,
    Fixed,
    Map,
    Primitive,
    Record,
    Union,
    shown,
)

_BYTES_ENCODING = "latin-1"  # the default of bytes is text whose code points are the bytes
_MAX_SIZE = 1 << 20  # of a default: its bytes, and its values, since some take no bytes


class WrongDefaultError(ValueError):
    """A default is not a value of its type. The message is made when it is read: most are of branches of unions."""

    def __init__(self, expected: str, found: Any) -> None:
        super().__init__(expected, found)

    def __str__(self) -> str:
        expected, found = self.args
        return f"expected {expected}; found {shown(found)}"


class _SizeError(WrongDefaultError):
    """A default has too many bytes or values. No other branch of a union is tried."""


def encoded_default(kind: AvroType, value: Any) -> bytes:
    """Return a default as bytes. That of a union is of the first branch that can have it, as since Avro 1.12.

    Raises WrongDefaultError if the type has no such value.
    """
    out = _Output()
    _write(kind, value, out)
    return bytes(out)


class _Output(bytearray):
    """values: how many values were written, with those of the branches of unions that cannot have the default."""

    values = 0


def _write(kind: AvroType, value: Any, out: _Output) -> None:
    out.values += 1
    if max(len(out), out.values) > _MAX_SIZE:
        raise _SizeError(f"at most {_MAX_SIZE} bytes and values", value)
    if isinstance(kind, Primitive):
        _PRIMITIVES[kind.kind](value, out)
    elif isinstance(kind, Enum):
        _ensure(value in kind.symbols, value, f"a symbol of {kind.name}")
        _write_integer(kind.symbols.index(value), out)
    elif isinstance(kind, Fixed):
        data = _octets(value)
        _ensure(len(data) == kind.size, value, f"{kind.size} bytes")
        out += data
    elif isinstance(kind, Union):
        _write_branch(kind, value, out)
    elif isinstance(kind, Array):
        _ensure(isinstance(value, list), value, "a list")
        _write_block(value, lambda item: _write(kind.items, item, out), out)
    elif isinstance(kind, Map):
        _ensure(isinstance(value, dict), value, "an object")
        _write_block(value.items(), lambda entry: _write_entry(kind, entry, out), out)
    else:
        _write_record(kind, value, out)


def _write_record(kind: Record, value: Any, out: _Output) -> None:
    _ensure(isinstance(value, dict), value, "an object")
    for part in kind.fields:
        found = value.get(part.name, part.default)
        _ensure(found is not MISSING, value, f"a field {part.name}")
        _write(part.type, found, out)


def _write_entry(kind: Map, entry: tuple[str, Any], out: _Output) -> None:
    _write_text(entry[0], out)
    _write(kind.values, entry[1], out)


def _write_branch(kind: Union, value: Any, out: _Output) -> None:
    for number, branch in enumerate(kind.branches):
        found = _Output()
        found.values = out.values
        try:
            _write(branch, value, found)
        except _SizeError:
            raise
        except WrongDefaultError:
            continue
        finally:
            out.values = found.values
        _write_integer(number, out)
        out += found
        return
    raise WrongDefaultError("a value of a branch of the union", value)


def _write_block(items: Any, write: Callable[[Any], Any], out: bytearray) -> None:
    if items:
        _write_integer(len(items), out)
    for item in items:
        write(item)
    out.append(0)


def _write_integer(value: int, out: bytearray) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw >= 0x80:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)


def _write_text(value: Any, out: bytearray) -> None:
    _ensure(isinstance(value, str), value, "text")
    _write_octets(value.encode(), out)


def _write_octets(data: bytes, out: bytearray) -> None:
    _write_integer(len(data), out)
    out += data


def _octets(value: Any) -> bytes:
    _ensure(isinstance(value, str), value, "text")
    try:
        return bytes(value, _BYTES_ENCODING)
    except UnicodeEncodeError:
        raise WrongDefaultError("code points up to 255", value) from None


def _ensure(fits: bool, value: Any, expected: str) -> None:
    if not fits:
        raise WrongDefaultError(expected, value)


def _write_null(value: Any, out: bytearray) -> None:
    _ensure(value is None, value, "null")


def _write_boolean(value: Any, out: bytearray) -> None:
    _ensure(isinstance(value, bool), value, "true or false")
    out.append(int(value))


def _integer_writer(bits: int) -> Callable[[Any, bytearray], None]:
    def write(value: Any, out: bytearray) -> None:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        _ensure(is_whole and -(1 << bits - 1) <= value < 1 << bits - 1, value, f"an integer of {bits} bits")
        _write_integer(value, out)

    return write


def _float_writer(form: str) -> Callable[[Any, bytearray], None]:
    names = {"NaN", "Infinity", "-Infinity"}

    def write(value: Any, out: bytearray) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        _ensure(is_number or (isinstance(value, str) and value in names), value, "a number")
        try:
            out += struct.pack(form, float(value))
        except OverflowError:
            raise WrongDefaultError("a number in the range of its type", value) from None

    return write


_PRIMITIVES: dict[str, Callable[[Any, bytearray], None]] = {
    "null": _write_null,
    "boolean": _write_boolean,
    "int": _integer_writer(32),
    "long": _integer_writer(64),
    "float": _float_writer("<f"),
    "double": _float_writer("<d"),
    "bytes": lambda value, out: _write_octets(_octets(value), out),
    "string": _write_text,
}
