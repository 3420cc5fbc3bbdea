"""The bytes of requests that the system has not taken yet."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_PIECES = 512  # below IOV_MAX
# TLS encrypts at most so many bytes at a time.
_TLS_RECORD_BYTES = 16 * 1024


class UnsentBytes:
    """A queue of pieces, which are sent without joining them. It is false if it is empty.

    bytes_queued, bytes_sent: all bytes that were appended, and that were sent, since the start.
    """

    def __init__(self) -> None:
        self.bytes_queued = self.bytes_sent = 0
        self._pieces: deque[memoryview] = deque()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Append pieces. Their bytes must not change before they are sent."""
        for piece in pieces:
            view = memoryview(piece).cast("B")
            if view:  # a piece without bytes is never sent, and would be tried again and again
                self._pieces.append(view)
                self.bytes_queued += len(view)

    def send(self, sock: Any) -> None:
        """Send as much as a non-blocking socket takes in one call. Raises OSError."""
        if isinstance(sock, ssl.SSLSocket):
            self._join()
            sent = sock.send(self._pieces[0])
        else:
            sent = sock.sendmsg(islice(self._pieces, _MAX_PIECES))
        self.bytes_sent += sent
        while sent:
            first = self._pieces[0]
            if sent < len(first):
                self._pieces[0] = first[sent:]
                break
            sent -= len(self._pieces.popleft())

    def clear(self) -> None:
        """Drop all pieces."""
        self._pieces.clear()

    def _join(self) -> None:
        """Join small pieces at the start: each call of a TLS socket makes a TLS record of its own."""
        pieces: list[memoryview] = []
        size = 0
        while self._pieces and size < _TLS_RECORD_BYTES and len(pieces) < _MAX_PIECES:
            pieces.append(self._pieces.popleft())
            size += len(pieces[-1])
        self._pieces.appendleft(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))
