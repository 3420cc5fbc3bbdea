"""What records are written to: a socket, or an object whose `write(view)` returns how many bytes it took.

A channel that takes nothing, for now, returns 0, or raises BlockingIOError. What does not say how many bytes it took
is no channel: the rest would be sent twice, or never. asyncio's StreamWriter is such an object.
"""

from __future__ import annotations

import inspect
import io
import operator
import os
import socket
import ssl
from typing import Any, NoReturn, Protocol

COPY_BYTES = 128 * 1024
_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # Linux has it
_EXPECTED = "channel: expected a socket, or an object whose write(view) returns how many bytes it took"
_FOR_ASYNCIO = "; for asyncio write to an io.BytesIO, and what that took to the StreamWriter"
# Their writers take everything and return nothing.
_ASYNCIO_WRITERS = ("asyncio.streams", "asyncio.transports")


class Channel(Protocol):
    """A sink that takes what it can: `write` returns how many bytes of the view it took, which may be 0.

    A raw file (`io.RawIOBase`) that would block returns None, which counts as 0. The view is valid until `write`
    returns: a channel copies what it keeps.
    """

    def write(self, data: memoryview, /) -> int | None: ...


def write_bytes(channel: Channel | socket.socket, data: memoryview, *, is_followed: bool = False) -> int:
    """Offer `data` once; return how many bytes were taken.

    is_followed: more is written at once behind it, so that a plain socket need not send a packet of it alone.
    Raises TypeError for an object that is no channel.
    """
    try:
        if not isinstance(channel, socket.socket):
            taken = _write(channel, data)
        elif is_followed and not isinstance(channel, ssl.SSLSocket):
            taken = channel.send(data, _MSG_MORE)
        else:
            taken = channel.send(data)
    except BlockingIOError as error:
        taken = getattr(
            error, "characters_written", 0
        )  # what a buffered file has taken before it would block
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return 0
    if not 0 <= taken <= len(data):
        raise ValueError(f"the channel took {taken} of {len(data)} bytes")
    return taken


def _write(channel: Any, data: memoryview) -> int:
    write = getattr(channel, "write", None)
    if not callable(write) or isinstance(channel, (type, io.TextIOBase)) or _takes_without_telling(channel):
        raise _no_channel(channel)
    taken = write(data)
    if taken is None and isinstance(channel, io.RawIOBase):
        return 0
    if inspect.iscoroutine(taken):
        taken.close()  # or Python warns of one that was never awaited
    if isinstance(taken, bool):  # a success, and no number of bytes
        raise _no_channel(channel, taken)
    try:
        return operator.index(taken)
    except TypeError:
        raise _no_channel(channel, taken) from None


def _takes_without_telling(channel: Any) -> bool:
    """Is it a writer of asyncio? Found out before it takes anything, and without an import of asyncio."""
    return any(kind.__module__ in _ASYNCIO_WRITERS for kind in type(channel).__mro__)


def _no_channel(channel: Any, *taken: Any) -> TypeError:
    kind = channel if isinstance(channel, type) else type(channel)
    found = "the class " if isinstance(channel, type) else ""
    found += f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(channel, io.TextIOBase):
        found += ", a file opened as text"
    if taken:
        found += f", whose write returned {type(taken[0]).__name__}"
    return TypeError(f"{_EXPECTED}; found {found}{_FOR_ASYNCIO if _takes_without_telling(channel) else ''}")


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
