"""What records are written to: a non-blocking socket, or any object whose write(view) tells what it took."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any, NoReturn, Protocol

COPY_BYTES = 128 * 1024
_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # Linux has it


class Channel(Protocol):
    """A sink that takes what it can: `write` returns how many bytes of the view it took, which may be 0."""

    def write(self, data: memoryview, /) -> int | None: ...


def write_bytes(channel: Channel | socket.socket, data: memoryview, *, is_followed: bool = False) -> int:
    """Offer `data` once; return how many bytes were taken.

    is_followed: more is written at once behind it, so that a plain socket need not send a packet of it alone.
    """
    try:
        if not isinstance(channel, socket.socket):
            taken = channel.write(data)
        elif is_followed and not isinstance(channel, ssl.SSLSocket):
            taken = channel.send(data, _MSG_MORE)
        else:
            taken = channel.send(data)
    except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return 0
    taken = taken or 0
    if not 0 <= taken <= len(data):
        raise ValueError(f"the channel took {taken} of {len(data)} bytes")
    return taken


def write_file(channel: Any, descriptor: int, position: int, length: int) -> int:
    """Offer bytes of a file once; a plain socket gets them by sendfile."""
    if not length:
        return 0
    if isinstance(channel, socket.socket) and not isinstance(channel, ssl.SSLSocket):
        try:
            taken = os.sendfile(channel.fileno(), descriptor, position, length)
        except BlockingIOError:
            return 0
        return taken or raise_truncated(position, length)
    data = os.pread(descriptor, min(length, COPY_BYTES), position)
    return write_bytes(channel, memoryview(data)) if data else raise_truncated(position, length)


def raise_truncated(position: int, length: int) -> NoReturn:
    raise EOFError(f"file truncated: expected {length} bytes at position {position}, found its end")
