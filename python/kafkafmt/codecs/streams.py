"""Payloads decompressed from their start on, as much at a time as is asked for: none need be there as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Piece: TypeAlias = "bytes | bytearray | memoryview"

# Of a piece, where a codec lets its output be cut anywhere.
PIECE_BYTES = 64 * 1024


class PayloadStream:
    """What the pieces hold, end to end. None is made before it is read; reading raises what making it does.

    state_bytes: about what is held between two reads, the rest of a piece included.
    """

    def __init__(self, pieces: Iterator[Piece], state_bytes: int) -> None:
        self.state_bytes = state_bytes
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> memoryview:
        """The next bytes, up to `size` of them; none only at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return self._rest
            self._rest = memoryview(piece)
        read, self._rest = self._rest[:size], self._rest[size:]
        return read

    def skip(self, size: int) -> None:
        """Leave out the next `size` bytes, or all that there are."""
        while size > 0 and (read := len(self.read(size))):
            size -= read
