"""How framing names the Protobuf message of a payload: Confluent's and AWS Glue's indexes, Apicurio's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.decode.payloads import Message

Lengths: TypeAlias = "Callable[[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]"

_MAX_DEPTH = 32  # of nested messages; protoc allows about as many
_MAX_VARINT_BYTES = 5
_MAX_NAME_BYTES = 125  # so that the length of a `Ref` takes one byte
_REF_NAME_TAG = 0x0A  # field 1, length-delimited


class MessageNames(NamedTuple):
    """A way to name messages.

    lengths: returns the bytes of each name, given the bytes of all rows, and where each row's name starts and its bytes
        end. Returns 0 if a row has no whole name.
    read: returns a name, given its bytes. Raises ValueError if it is damaged.
    """

    what: str
    lengths: Lengths
    read: Callable[[bytes], Message]


def _bytes_at(
    data: NDArray[np.uint8], positions: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the byte at each position, or -1 if it is at the end."""
    found = np.full(len(positions), -1, np.int64)
    inside = positions < ends
    found[inside] = data[positions[inside]]
    return found


def _index_lengths(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    first = _bytes_at(data, starts, ends)
    lengths: NDArray[np.int64] = (first == 0).astype(np.int64)
    # A count is a zigzag varint: 2 is one index. Counts that are negative or take two bytes are not valid.
    rows = np.flatnonzero((first > 0) & (first % 2 == 0) & (first <= 2 * _MAX_DEPTH))
    left = first[rows] // 2
    places = starts[rows] + 1
    for _ in range(_MAX_DEPTH * _MAX_VARINT_BYTES):
        if not len(rows):
            break
        byte = _bytes_at(data, places, ends[rows])
        left = left - ((byte >= 0) & (byte < 0x80))
        places = places + 1
        whole = left == 0
        lengths[rows[whole]] = (places - starts[rows])[whole]
        going = ~whole & (byte >= 0)
        rows, left, places = rows[going], left[going], places[going]
    return lengths


def _read_indexes(name: bytes) -> tuple[int, ...]:
    if name == b"\0":
        return (0,)
    found: list[int] = []
    value = shift = 0
    for byte in name[1:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if value & 1 or shift > 7 * _MAX_VARINT_BYTES:
                raise ValueError(f"expected message indexes of 0 or more; found {name.hex()}")
            found.append(value >> 1)
            value = shift = 0
    return tuple(found)


def _ref_lengths(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    length = _bytes_at(data, starts, ends)
    whole = (length > 0) & (length < 0x80) & (starts + 1 + length <= ends)
    lengths: NDArray[np.int64] = np.where(whole, length + 1, 0)
    return lengths


def _read_ref(name: bytes) -> str:
    if name[1] != _REF_NAME_TAG or len(name) < 3 or name[2] != len(name) - 3:
        raise ValueError(f"expected a Ref with the name of a message; found {name.hex()}")
    try:
        return name[3:].decode()
    except UnicodeDecodeError:
        raise ValueError(f"expected a name in UTF-8; found {name[3:].hex()}") from None


def _varint_lengths(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    lengths = np.zeros(len(starts), np.int64)
    for length in range(_MAX_VARINT_BYTES, 0, -1):
        byte = _bytes_at(data, starts + length - 1, ends)
        lengths[(byte >= 0) & (byte < 0x80)] = length
    return lengths


def _read_varint(name: bytes) -> int:
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(name))


def ref_of(name: str) -> bytes:
    """Return the `Ref` with a name of at most 125 bytes, with its length before it."""
    text = name.encode()
    return bytes([len(text) + 2, _REF_NAME_TAG, len(text)]) + text


def _whole_lengths(
    data: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = np.where(ends - starts <= _MAX_NAME_BYTES, ends - starts, 0)
    return lengths


def _read_whole(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ValueError(f"expected a name in UTF-8; found {name.hex()}") from None


MESSAGE_INDEXES = MessageNames("message indexes", _index_lengths, _read_indexes)
APICURIO_REFS = MessageNames("a Ref with the name of the message", _ref_lengths, _read_ref)
WHOLE_NAMES = MessageNames("the name of the message", _whole_lengths, _read_whole)
GLUE_INDEXES = MessageNames("a message index", _varint_lengths, _read_varint)
