"""A read position in the bytes of one message, and the readers of Kafka's wire types.

Each reader takes the cursor, checks what it reads against the bytes that are left, and moves the position. Nothing
else moves it. A reader that finds invalid bytes raises `InvalidBytes`; `decoder.py` adds the field, and turns it into
the public error. No reader allocates more than the bytes that are left.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeVar
from uuid import UUID

T = TypeVar("T")
_MAX_STRING_BYTES = 0x7FFF  # also with a compact length
_UUID_BYTES = 16
_VARINT_BYTES = 5


class InvalidBytes(Exception):
    """Bytes that the schema does not allow. path: the fields that contain them, the innermost first."""

    def __init__(self, position: int, expected: str, found: str) -> None:
        super().__init__(position, expected, found)
        self.position = position
        self.expected = expected
        self.found = found
        self.path: list[str] = []


class Cursor:
    """A position in the bytes of a message, and the end up to which it may read."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data: Final = data
        self.position = position
        self.end = len(data)

    def take(self, size: int, what: str) -> int:
        """Move over `size` bytes. Return the position of the first one."""
        position = self.position
        left = self.end - position
        if size < 0 or size > left:
            raise InvalidBytes(position, f"{size} bytes of {what}", f"{left} left")
        self.position = position + size
        return position


def _fixed(layout: str, name: str) -> Callable[[Cursor], int]:
    fixed = Struct(layout)
    size, unpack_from = fixed.size, fixed.unpack_from

    def read(cursor: Cursor) -> int:
        value: int = unpack_from(cursor.data, cursor.take(size, name))[0]
        return value

    return read


read_int8 = _fixed(">b", "int8")
read_int16 = _fixed(">h", "int16")
read_uint16 = _fixed(">H", "uint16")
read_int32 = _fixed(">i", "int32")
read_uint32 = _fixed(">I", "uint32")
read_int64 = _fixed(">q", "int64")
_DOUBLE = Struct(">d")


def read_float64(cursor: Cursor) -> float:
    value: float = _DOUBLE.unpack_from(cursor.data, cursor.take(_DOUBLE.size, "float64"))[0]
    return value


def read_bool(cursor: Cursor) -> bool:
    """Any byte but 0 is true, as for Kafka."""
    return cursor.data[cursor.take(1, "bool")] != 0


def read_uuid(cursor: Cursor) -> UUID:
    start = cursor.take(_UUID_BYTES, "uuid")
    return UUID(bytes=cursor.data[start : cursor.position])


def read_unsigned_varint(cursor: Cursor) -> int:
    """Read an unsigned 32-bit varint of at most 5 bytes."""
    start = cursor.position
    value = 0
    for index in range(_VARINT_BYTES):
        byte = cursor.data[cursor.take(1, "varint")]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value
    raise InvalidBytes(start, "a varint of 32 bits in at most 5 bytes", "a longer one")


def read_string(cursor: Cursor, length: int) -> str:
    if length > _MAX_STRING_BYTES:
        raise InvalidBytes(cursor.position, f"a string of at most {_MAX_STRING_BYTES} bytes", f"{length}")
    start = cursor.take(length, "string")
    try:
        return cursor.data[start : cursor.position].decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"{error.object[error.start]:#04x}"
        raise InvalidBytes(start + error.start, "UTF-8", f"{wrong}, {error.reason}") from None


def read_bytes(cursor: Cursor, length: int) -> bytes:
    start = cursor.take(length, "bytes")
    return cursor.data[start : cursor.position]


def compact_length(cursor: Cursor) -> int:
    """Read a compact length: an unsigned varint, one more than the length. -1 means null."""
    return read_unsigned_varint(cursor) - 1


def counted(
    read_length: Callable[[Cursor], int], read: Callable[[Cursor, int], T], nullable: bool
) -> Callable[[Cursor], T | None]:
    """Return a reader of a length, then of what has this length. A length of -1 is null."""

    def read_counted(cursor: Cursor) -> T | None:
        start = cursor.position
        length = read_length(cursor)
        if length >= 0:
            return read(cursor, length)
        if length < -1 or not nullable:
            raise InvalidBytes(start, f"a length of {-1 if nullable else 0} or more", f"{length}")
        return None

    return read_counted


def array_of(read: Callable[[Cursor], T]) -> Callable[[Cursor, int], tuple[T, ...]]:
    """Return a reader of so many elements. Each takes at least one byte, so the bytes left limit their number."""

    def read_elements(cursor: Cursor, count: int) -> tuple[T, ...]:
        left = cursor.end - cursor.position
        if count > left:
            raise InvalidBytes(cursor.position, f"at most {left} elements in {left} bytes", f"{count}")
        elements: list[T] = []
        try:
            for _ in range(count):
                elements.append(read(cursor))  # noqa: PERF401 - the number read so far names the wrong one
        except InvalidBytes as error:
            error.path.append(f"[{len(elements)}]")
            raise
        return tuple(elements)

    return read_elements
