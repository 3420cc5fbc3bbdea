"""Measures the memory that a message takes once it is decoded, by a walk over its frame that creates no objects of it.

The walk uses kafka-python's schemas, as its decoder does. It counts the structs, strings, arrays and tagged fields that
the decoder creates, each with the most that it takes on CPython; `tests/server/test_frames.py` measures every API. A
malformed frame is counted up to the point where the decoder fails as well.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from kafka.protocol.api_key import ApiKey

from _kafkafmt.server import fetching, producing
from kafkafmt.server.errors import MalformedRequestError

_HEADER_BYTES = 8  # API key, version, correlation ID
_RESPONSE_HEADER_BYTES = 4  # correlation ID
_VARINT_BITS = 32
_SIZES = {
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "int64": 8,
    "float64": 8,
    "bool": 1,
    "uuid": 16,
    "bitfield": 4,
}
# The most bytes of Python's objects, including the references to them.
_NUMBER_BYTES, _UUID_BYTES, _LIST_BYTES, _SLOT_BYTES = 32, 160, 128, 10
_BITFIELD_BYTES = 2304  # a set of up to 31 numbers
_STRING_BYTES, _CHARACTER_BYTES, _BYTES_BYTES = 96, 4, 56
_STRUCT_BYTES = 32  # beside its slots: the collector's header, and what the allocator rounds up
_TAG_BYTES, _TAGGED_STRUCT_BYTES = 160, 512


class TooManyElementsError(Exception):
    """A frame has more elements than the limit. The rest was not counted."""


class Measured(NamedTuple):
    """decoded_bytes: the memory of the decoded message, without the payload. elements: of all arrays.

    payload_bytes: of records and other byte strings, which are copied unchanged.
    """

    decoded_bytes: int
    elements: int
    payload_bytes: int


def measure(
    frame: bytes | memoryview,
    request_class: Any,
    version: int,
    *,
    max_bytes: int | None = None,
    max_elements: int | None = None,
) -> Measured:
    """Measure what a frame takes once it is decoded. request_class: kafka-python's.

    Raises MalformedRequestError if more than `max_bytes` of the frame are not payload, and TooManyElementsError for
    more than `max_elements`.
    """
    flexible = request_class.flexible_version_q(version)
    walk = _Walk(frame, len(frame) if max_bytes is None else max_bytes, max_elements or len(frame) + 1)
    with suppress(struct.error, IndexError):
        walk.position = _HEADER_BYTES
        walk.sized(
            walk.integer(">h"), _STRING_BYTES, _CHARACTER_BYTES
        )  # the client ID, which is never compact
        if flexible:
            walk.tags()
        walk.structure(_program(request_class, version, flexible))
    return Measured(walk.decoded_bytes, walk.elements, walk.payload_bytes)


def measure_response(frame: bytes | memoryview, response_class: Any, version: int) -> Measured:
    """Measure what the frame of a response takes once it is decoded. response_class: kafka-python's."""
    flexible = response_class.flexible_version_q(version)
    walk = _Walk(frame, len(frame), len(frame) + 1)
    with suppress(struct.error, IndexError):
        walk.position = _RESPONSE_HEADER_BYTES
        # The header of ApiVersions is never flexible (KIP-511).
        if flexible and ApiKey.ApiVersions != response_class.API_KEY:
            walk.tags()
        walk.structure(_program(response_class, version, flexible))
    return Measured(walk.decoded_bytes, walk.elements, walk.payload_bytes)


def measure_fetch_request(frame: bytes | memoryview) -> Measured:
    """Measure what a frame takes once `decode_fetch_request` has decoded it."""
    decoded_bytes, elements = fetching.measure_fetch_request(frame)
    return Measured(decoded_bytes, elements, 0)


def measure_produce_request(frame: bytes | memoryview) -> Measured:
    """Measure what a frame takes once `decode_produce_request` has decoded it. What is payload is not counted."""
    decoded_bytes, elements = producing.measure_produce_request(frame)
    return Measured(decoded_bytes, elements, 0)


class _Field(NamedTuple):
    """A field in a frame. kind: _FIXED or another; size: bytes in the frame; cost: bytes in memory."""

    kind: int
    size: int = 0
    cost: int = 0
    within: _Program | None = None


class _Program(NamedTuple):
    """The fields of a struct, in order. cost: bytes of the object, its slots and numbers in memory."""

    fields: tuple[_Field, ...]
    cost: int
    is_compact: bool


_FIXED, _STRING, _PAYLOAD, _FIXED_ARRAY, _STRING_ARRAY, _STRUCT_ARRAY, _STRUCT = range(7)


@cache
def _program(message_class: Any, version: int, flexible: bool) -> _Program:
    return _program_of(message_class._struct, message_class, version, flexible)


def _program_of(schema: Any, data_class: Any, version: int, flexible: bool) -> _Program:
    fields: list[_Field] = []
    cost = data_class.__basicsize__ + _STRUCT_BYTES
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            inner = field.array_of
            within = _program_of(inner, inner.data_class, version, flexible)
            fields.append(_Field(_STRUCT_ARRAY, within=within))
        elif field.is_struct():
            within = _program_of(field, field.data_class, version, flexible)
            fields.append(_Field(_STRUCT, int(field.nullable_for_version_q(version)), within=within))
        elif field.is_array():
            size = _SIZES.get(field.array_of.type_str, 0)
            fields.append(_Field(_FIXED_ARRAY, size, _number_bytes(size)) if size else _Field(_STRING_ARRAY))
        elif (size := _SIZES.get(field.type_str, 0)) > 0:
            cost += _BITFIELD_BYTES if field.type_str == "bitfield" else _number_bytes(size)
            if fields and fields[-1].kind == _FIXED:
                size += fields.pop().size
            fields.append(_Field(_FIXED, size))
        else:
            fields.append(_Field(_STRING if field.type_str == "string" else _PAYLOAD))
    return _Program(tuple(fields), cost, flexible)


def _number_bytes(size: int) -> int:
    return _UUID_BYTES if size == _SIZES["uuid"] else _NUMBER_BYTES


class _Walk:
    def __init__(self, frame: bytes | memoryview, max_bytes: int, max_elements: int) -> None:
        # A `Frame` checks each index, which the walk does itself.
        self._frame = bytes(frame) if isinstance(frame, bytes) else frame
        self._length = len(frame)
        self._max_bytes, self._max_elements = max_bytes, max_elements
        self.position = self.decoded_bytes = self.elements = self.payload_bytes = 0

    def structure(self, program: _Program) -> None:
        self.decoded_bytes += program.cost
        compact = program.is_compact
        for field in program.fields:
            kind = field.kind
            if kind == _FIXED:
                self.position += field.size
            elif kind == _STRING:
                length = self._varint() - 1 if compact else self.integer(">h")
                self.sized(length, _STRING_BYTES, _CHARACTER_BYTES)
            elif kind == _PAYLOAD:
                length = max(self._varint() - 1 if compact else self.integer(">i"), 0)
                self.payload_bytes += min(length, self._length - self.position)
                self.sized(length, _BYTES_BYTES, 0)
            elif kind == _STRUCT:
                self._nested(field)
            else:
                self._array(field, compact)
        if compact:
            self.tags()
        if self.position - self.payload_bytes > self._max_bytes:
            raise MalformedRequestError(
                f"a request of {self._length} bytes: expected {self._max_bytes} at most that are not records"
            )

    def _nested(self, field: _Field) -> None:
        assert field.within is not None
        if field.size:  # it may be null
            is_null = self._frame[self.position] == 0xFF
            self.position += 1
            if is_null:
                return
        self.structure(field.within)

    def _array(self, field: _Field, compact: bool) -> None:
        count = self._varint() - 1 if compact else self.integer(">i")
        self.decoded_bytes += _LIST_BYTES
        if field.kind == _FIXED_ARRAY:
            count = max(min(count, (self._length - self.position) // field.size), 0)
            self._count(count, field.cost + _SLOT_BYTES)
            self.position += count * field.size
            return
        for _ in range(count):
            self._count(1, _SLOT_BYTES)
            if field.within is not None:
                self.structure(field.within)
            else:
                length = self._varint() - 1 if compact else self.integer(">h")
                self.sized(length, _STRING_BYTES, _CHARACTER_BYTES)

    def _count(self, elements: int, cost: int) -> None:
        self.elements += elements
        self.decoded_bytes += elements * cost
        if self.elements > self._max_elements:
            raise TooManyElementsError

    def sized(self, length: int, cost: int, each: int) -> None:
        """Skip a string or bytes, and count them. A negative length stands for null."""
        length = max(length, 0)
        self.position += length
        if self.position > self._length:
            raise IndexError("it ends early")
        self.decoded_bytes += cost + each * length

    def tags(self) -> None:
        count = self._varint()
        if count:
            self.decoded_bytes += _TAGGED_STRUCT_BYTES
        for _ in range(count):
            self._varint()
            self.sized(self._varint(), _TAG_BYTES, 2)

    def integer(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._frame, self.position)
        self.position += 2 if layout == ">h" else 4
        return int(value)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._frame[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _VARINT_BITS:
                raise IndexError("a varint of more than 32 bits")
