"""The header of a request, read from the start of its frame. The rest is not decoded."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_key import ApiKey

from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.wire import api_name

_HEADER = struct.Struct(">hhih")
_NULL = -1
# Tagged fields of a header that a client may send: more are refused.
_MAX_TAGS = 16
# Newer APIs than those are flexible in all versions.
_LAST_INFLEXIBLE = ApiKey.DescribeProducers


class Head(NamedTuple):
    """The header of a request. body: the position of the fields after it. client_id: None for null."""

    api_key: int
    version: int
    correlation_id: int
    client_id: bytes | None
    body: int
    is_flexible: bool


@cache
def _first_flexible() -> Mapping[int, int]:
    """Return the first flexible version of each API that kafka-python knows."""
    found = {}
    for module in (admin, consumer, metadata, producer, sasl):
        for name in vars(module):
            message = getattr(module, name)
            if name.endswith("Request") and getattr(message, "API_KEY", None) is not None:
                versions = range(message.max_version + 1)
                found[int(message.API_KEY)] = next(
                    (version for version in versions if message.flexible_version_q(version)), len(versions)
                )
    return found


def is_flexible(api_key: int, version: int) -> bool:
    """Return whether a version of an API has compact fields and tags (KIP-482)."""
    first = _first_flexible().get(api_key)
    return api_key > _LAST_INFLEXIBLE if first is None else version >= first


def read_head(frame: bytes | bytearray | memoryview) -> Head:
    """Read the header of a frame without its size field. Raises MalformedRequestError."""
    if len(frame) < _HEADER.size:
        raise MalformedRequestError(f"a request of {len(frame)} bytes: no room for its header")
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    position = _HEADER.size + max(size, 0)
    if size < _NULL or position > len(frame):
        raise MalformedRequestError(
            f"{api_name(api_key)} v{version}: client id at byte {_HEADER.size}: "
            f"expected at most {len(frame) - _HEADER.size} bytes, found {size}"
        )
    client_id = None if size == _NULL else bytes(frame[_HEADER.size : position])
    flexible = is_flexible(api_key, version)
    if flexible:
        position = _skip_tags(frame, position)
    return Head(api_key, version, correlation_id, client_id, position, flexible)


def read_varint(frame: bytes | bytearray | memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            break
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRequestError(f"byte {position}: expected a varint, found one that does not end")


def _skip_tags(frame: bytes | bytearray | memoryview, position: int) -> int:
    count, position = read_varint(frame, position)
    if count > _MAX_TAGS:
        raise MalformedRequestError(f"header: expected at most {_MAX_TAGS} tagged fields, found {count}")
    for _ in range(count):
        _, position = read_varint(frame, position)
        size, position = read_varint(frame, position)
        position += size
        if position > len(frame):
            raise MalformedRequestError(f"header: a tagged field of {size} bytes reaches beyond the frame")
    return position
