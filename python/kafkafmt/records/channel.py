"""Channels, which records are written to: a socket, or an object whose `write(view)` returns how many bytes it took.

A channel that can take nothing at present returns 0 or raises BlockingIOError. An object that does not return how many
bytes it took is not a channel: bytes would be sent twice or not at all. asyncio's StreamWriter is such an object.
"""

from __future__ import annotations

import inspect
import io
import operator
import os
import socket
import ssl
from pathlib import PurePath
from typing import Any, NoReturn, Protocol

COPY_BYTES = 128 * 1024
_MSG_MORE = getattr(socket, "MSG_MORE", 0)  # only Linux has it
_EXPECTED = "channel: expected a socket, or an object whose write(view) returns how many bytes it took"
_FOR_ASYNCIO = "; for asyncio, write to an io.BytesIO, and its bytes to the StreamWriter"
# The writers of these modules take all bytes and return None.
_ASYNCIO_WRITERS = ("asyncio.streams", "asyncio.transports")


class Channel(Protocol):
    """An object whose `write` takes some bytes of a view, and returns how many: 0 up to all.

    A raw file (`io.RawIOBase`) that would block returns None, which counts as 0. The view is valid until `write`
    returns: a channel must copy the bytes that it keeps.
    """

    def write(self, data: memoryview, /) -> int | None:
        """Write bytes; return how many were taken, perhaps 0. The view is valid until this returns."""


class TruncatedFileError(OSError, EOFError):
    """A file has become shorter while it was read."""


class SizedSend:
    """Base class of sends: they write a number of bytes that is known beforehand, over several calls."""

    def __init__(self, size_in_bytes: int) -> None:
        self._remaining = size_in_bytes

    @property
    def remaining(self) -> int:
        """The number of bytes that are still to be written."""
        return self._remaining

    @property
    def completed(self) -> bool:
        """Whether all bytes were written."""
        return self._remaining == 0


def write_bytes(channel: Channel | socket.socket, data: memoryview, *, is_followed: bool = False) -> int:
    """Offer `data` to a channel once; return how many bytes it took.

    is_followed: the caller writes more bytes at once, so a plain socket need not send a packet of these alone.
    Raises TypeError for an object that is not a channel, and ValueError if it returns an impossible number.
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
        )  # the bytes that a buffered file took before it would block
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return 0
    if not 0 <= taken <= len(data):
        raise ValueError(f"the channel took {taken} of {len(data)} bytes")
    return taken


def _write(channel: Any, data: memoryview) -> int:
    write = getattr(channel, "write", None)
    if not callable(write) or isinstance(channel, (type, io.TextIOBase)) or _is_asyncio_writer(channel):
        raise _no_channel(channel)
    taken = write(data)
    if taken is None and isinstance(channel, io.RawIOBase):
        return 0
    if inspect.iscoroutine(taken):
        taken.close()  # else Python warns that it was never awaited
    if isinstance(taken, bool):  # True means success here; it is not a number of bytes
        raise _no_channel(channel, taken)
    try:
        return operator.index(taken)
    except TypeError:
        raise _no_channel(channel, taken) from None


def _is_asyncio_writer(channel: Any) -> bool:
    """Return whether this is a writer of asyncio. Nothing is written to it, and asyncio is not imported."""
    return any(kind.__module__ in _ASYNCIO_WRITERS for kind in type(channel).__mro__)


def _no_channel(channel: Any, *taken: Any) -> TypeError:
    kind = channel if isinstance(channel, type) else type(channel)
    found = "the class " if isinstance(channel, type) else ""
    found += f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(channel, io.TextIOBase):
        found += ", a file opened as text"
    if taken:
        found += f", whose write returned {type(taken[0]).__name__}"
    return TypeError(f"{_EXPECTED}; found {found}{_FOR_ASYNCIO if _is_asyncio_writer(channel) else ''}")


def write_file(channel: Any, descriptor: int, position: int, length: int, path: PurePath) -> int:
    """Offer bytes of a file to a channel once; return how many it took. A plain socket gets them by sendfile.

    path: the file, for the error. Raises TruncatedFileError if the file ends at or before `position`.
    """
    if not length:
        return 0
    if isinstance(channel, socket.socket) and not isinstance(channel, ssl.SSLSocket):
        try:
            taken = os.sendfile(channel.fileno(), descriptor, position, length)
        except BlockingIOError:
            return 0
        return taken or raise_truncated(position, length, path)
    data = os.pread(descriptor, min(length, COPY_BYTES), position)
    return write_bytes(channel, memoryview(data)) if data else raise_truncated(position, length, path)


def raise_truncated(position: int, length: int, path: PurePath | None = None) -> NoReturn:
    """Raise TruncatedFileError for a file that ended before `length` bytes from `position` were read."""
    file = "" if path is None else f"{path}: "
    raise TruncatedFileError(
        f"{file}file truncated: expected {length} bytes at position {position}, found its end"
    )
