"""Streams of decompressed payloads, which need not be in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Chunk: TypeAlias = "bytes | bytearray | memoryview"

# The size of a chunk, if a codec can divide its output anywhere.
CHUNK_BYTES = 64 * 1024


class PayloadStream:
    """A stream of the bytes of several chunks. A chunk is made when it is read; reading raises its errors.

    state_bytes: about how much memory is held between two reads, including the rest of a chunk.
    """

    def __init__(self, chunks: Iterator[Chunk], state_bytes: int) -> None:
        self.state_bytes = state_bytes
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        """Return the next bytes, 1 to `size` of them; none only at the end. Raises ValueError for a size below 1."""
        if size < 1:
            raise ValueError(f"size: expected 1 or more, found {size}")
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return self._rest
            self._rest = memoryview(chunk)
        read, self._rest = self._rest[:size], self._rest[size:]
        return read

    def skip(self, size: int) -> None:
        """Skip the next `size` bytes, or all if fewer are left."""
        while size > 0 and (read := len(self.read(size))):
            size -= read
