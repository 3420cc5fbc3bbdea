"""Frames of Produce before they are decoded: most of a large one must be records, which cost no more than they are."""

from __future__ import annotations

import struct
from contextlib import suppress

from kafkafmt.serve.wire import MalformedRequestError

_FIRST_FLEXIBLE_VERSION = 9
_FIRST_VERSION_WITH_TRANSACTIONS = 3
_FIRST_VERSION_BY_TOPIC_ID = 13
_UUID_BYTES = 16
_VARINT_BITS = 32
_ACKS_AND_TIMEOUT_BYTES, _INDEX_BYTES = 6, 4
_API_KEY_AND_CORRELATION_BYTES = 8


def ensure_mostly_records(frame: bytes, most_bytes: int) -> None:
    """Raise MalformedRequestError where more than `most_bytes` of a frame are something else than records.

    A frame that is no request is left to who decodes it.
    """
    with suppress(struct.error, IndexError):
        _Walk(frame, most_bytes).pass_records()


class _Walk:
    """A walk over the fields of a request (ProduceRequest.json), from size field to size field."""

    def __init__(self, frame: bytes, most_bytes: int) -> None:
        self._frame = frame
        (self._version,) = struct.unpack_from(">h", frame, 2)
        self._is_flexible = self._version >= _FIRST_FLEXIBLE_VERSION
        self._position = _API_KEY_AND_CORRELATION_BYTES
        self._most_bytes = most_bytes
        self._records_bytes = 0

    def pass_records(self) -> None:
        self._skip(self._integer(">h"))  # the client ID, which is never compact
        self._tags()
        if self._version >= _FIRST_VERSION_WITH_TRANSACTIONS:
            self._string()
        self._skip(_ACKS_AND_TIMEOUT_BYTES)
        for _ in range(self._size()):
            if self._version >= _FIRST_VERSION_BY_TOPIC_ID:
                self._skip(_UUID_BYTES)
            else:
                self._string()
            for _ in range(self._size()):
                self._skip(_INDEX_BYTES)
                size = max(self._size(), 0)
                self._position += size
                self._records_bytes += size
                self._tags()
            self._tags()

    def _skip(self, size: int) -> None:
        """Pass over a field; a negative size is that of null."""
        self._position += max(size, 0)
        if self._position - self._records_bytes > self._most_bytes:
            message = f"Produce of {len(self._frame)} bytes: expected {self._most_bytes} at most that are not records"
            raise MalformedRequestError(message)

    def _integer(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._frame, self._position)
        self._position += struct.calcsize(layout)
        return int(value)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._frame[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > _VARINT_BITS:
                raise IndexError("a varint of more than 32 bits")

    def _size(self) -> int:
        """Of an array, or of records; -1 for null."""
        return self._varint() - 1 if self._is_flexible else self._integer(">i")

    def _string(self) -> None:
        self._skip(self._varint() - 1 if self._is_flexible else self._integer(">h"))

    def _tags(self) -> None:
        if self._is_flexible:
            for _ in range(self._varint()):
                self._varint()
                self._skip(self._varint())
