"""A non-blocking socket, plain or TLS, which one task reads and writes. Each wait has a time limit."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from kafkafmt._util.sizes import KIB

_Watch: TypeAlias = Callable[[int, Callable[[], None]], Any]
_Unwatch: TypeAlias = Callable[[int], Any]

_RECEIVE_BYTES = 64 * 1024
# The most that is read of what a client sends while it waits for an answer.
_WATCHED_BYTES = 4 * 1024
_UNWATCHED_SECONDS = 0.1
_TAKING, _SENDING = "the client to take more", "more of a request"
# Of a large request the selector reports so many bytes at once.
_AWAITED_BYTES = 64 * KIB
# Brokers have 100 KiB by default (`socket.send.buffer.bytes`).
_SEND_BUFFER_BYTES = 256 * KIB
# Socket options by their names on Linux, set if the system has them: seconds, seconds, number of probes.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


class ClosedByPeerError(ConnectionError):
    """The client has closed the connection: between two frames, or in the middle of one."""


class StalledError(ConnectionError):
    """The client has sent or read nothing for longer than it may."""


class Stream:
    """The server's end of a connection. host, port: the client's address; empty and 0 for a Unix socket.

    Raises ClosedByPeerError if the client has already closed it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        name = _peer_name(sock) if sock.family != socket.AF_UNIX else ("", 0)
        self.host, self.port = str(name[0]), int(name[1])
        self._received = bytearray()
        self._has_limit = False
        self._loop = asyncio.get_running_loop()

    def keep_alive(self) -> None:
        """Enable TCP keep-alive, which detects in about two minutes that a client has vanished."""
        if self.socket.family != socket.AF_UNIX:
            keep_alive(self.socket)

    def limit_send_buffer(self) -> None:
        """Let the system keep at most 256 KiB to send, once and for all.

        A buffer that grows to megabytes costs a third more system time per byte on a fast network.
        """
        if not self._has_limit and self.socket.family != socket.AF_UNIX:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._has_limit = True

    async def start_tls(self, context: ssl.SSLContext, seconds: float) -> None:
        """Do the TLS handshake. Raises ssl.SSLError if the client does not meet the context, StalledError, OSError."""
        secured = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.socket = secured
        deadline = self._loop.time() + seconds
        while True:
            try:
                secured.do_handshake()
                return
            except ssl.SSLWantReadError:
                await self._wait(self._loop.add_reader, self._loop.remove_reader, deadline, "TLS handshake")
            except ssl.SSLWantWriteError:
                await self._wait(self._loop.add_writer, self._loop.remove_writer, deadline, "TLS handshake")

    async def read(self, size: int, seconds: float) -> bytes:
        """Return exactly `size` bytes. Raises ClosedByPeerError, StalledError after `seconds`, and OSError."""
        await self._receive(size, seconds)
        with memoryview(self._received) as received:
            taken = bytes(received[:size])
        del self._received[:size]
        return taken

    async def peek(self, size: int, seconds: float) -> bytes:
        """Return the next `size` bytes, which `read` returns again. Raises as `read`."""
        await self._receive(size, seconds)
        return bytes(self._received[:size])

    async def receive_into(self, target: memoryview, seconds: float) -> int:
        """Write what has arrived to `target`. Return the number of bytes, at least one. Raises as `read`."""
        if self._received:
            count = min(len(target), len(self._received))
            with memoryview(self._received) as received:
                target[:count] = received[:count]
            del self._received[:count]
            return count
        deadline = self._loop.time() + seconds
        while True:
            try:
                count = self.socket.recv_into(target)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait_for_much(len(target), deadline)
                continue
            if not count:
                raise ClosedByPeerError("closed by the client in the middle of a request")
            return count

    async def _wait_for_much(self, wanted: int, deadline: float) -> None:
        """Wait until so many bytes have arrived, or until the deadline if some have. Raises StalledError for none."""
        awaited = 1 if isinstance(self.socket, ssl.SSLSocket) else min(wanted, _AWAITED_BYTES)
        if awaited == 1:
            await self._wait(self._loop.add_reader, self._loop.remove_reader, deadline, _SENDING)
            return
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)
        try:
            await self._wait(self._loop.add_reader, self._loop.remove_reader, deadline, _SENDING)
        except StalledError:
            try:
                self.socket.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                raise _stalled(_SENDING) from None
        finally:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    async def _receive(self, size: int, seconds: float) -> None:
        """Wait until `size` unread bytes have arrived."""
        deadline = self._loop.time() + seconds
        while len(self._received) < size:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                await self._wait(self._loop.add_reader, self._loop.remove_reader, deadline, f"{size} bytes")
                continue
            if not data:
                part = f" with {len(self._received)} of {size} bytes sent" if self._received else ""
                raise ClosedByPeerError(f"closed by the client{part}")
            self._received += data

    async def wait_writable(self, seconds: float) -> None:
        """Wait until the client reads more. Raises StalledError after `seconds`."""
        deadline = self._loop.time() + seconds
        await self._wait(self._loop.add_writer, self._loop.remove_writer, deadline, _TAKING)

    async def write_all(self, write: Callable[[], bool], seconds: float) -> None:
        """Call `write` whenever the client can take more, until it returns True. It writes what the client takes.

        Waking this task for each call instead would cost as much as the call. Raises StalledError if the client takes
        nothing for `seconds`, and what `write` raises.
        """
        if write():
            return
        loop, descriptor = self._loop, self.socket.fileno()
        written: asyncio.Future[None] = loop.create_future()
        called_at = loop.time()
        timer: asyncio.TimerHandle

        def resume() -> None:
            nonlocal called_at
            called_at = loop.time()
            try:
                if not written.done() and write():
                    written.set_result(None)
            except Exception as error:
                written.set_exception(error)

        def expire() -> None:
            nonlocal timer
            if called_at + seconds > loop.time():
                timer = loop.call_at(called_at + seconds, expire)
            elif not written.done():
                written.set_exception(_stalled(_TAKING))

        loop.add_writer(descriptor, resume)
        timer = loop.call_at(called_at + seconds, expire)
        try:
            await written
        finally:
            timer.cancel()
            loop.remove_writer(descriptor)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Cancel the waits of this task in the block when the client disconnects, and raise ClosedByPeerError.

        The watch begins after a delay, so that quick answers cost almost nothing. It ends once `_WATCHED_BYTES` of
        later requests have arrived: no more is read ahead.
        """
        task = asyncio.current_task()
        assert task is not None
        descriptor = self.socket.fileno()
        is_gone = is_watching = False

        def watch() -> None:
            nonlocal is_watching
            is_watching = True
            self._loop.add_reader(descriptor, look)

        def look() -> None:
            nonlocal is_gone
            try:
                data = self.socket.recv(_WATCHED_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except OSError:
                data = b""
            self._received += data
            if not data:
                is_gone = True
                task.cancel()
            if is_gone or len(self._received) >= _WATCHED_BYTES:
                self._loop.remove_reader(descriptor)

        timer = self._loop.call_later(_UNWATCHED_SECONDS, watch)
        try:
            yield
        except asyncio.CancelledError:
            if is_gone:
                raise ClosedByPeerError("closed by the client before it was answered") from None
            raise
        finally:
            timer.cancel()
            if is_watching:
                self._loop.remove_reader(descriptor)

    async def _wait(self, watch: _Watch, unwatch: _Unwatch, deadline: float, what: str) -> None:
        descriptor = self.socket.fileno()
        woken: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        def expire() -> None:
            if not woken.done():
                woken.set_exception(_stalled(what))

        watch(descriptor, wake)
        timer = self._loop.call_at(deadline, expire)
        try:
            await woken
        finally:
            timer.cancel()
            unwatch(descriptor)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


def keep_alive(sock: socket.socket) -> None:
    """Enable TCP keep-alive, which detects in about two minutes that the peer has vanished."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _stalled(what: str) -> StalledError:
    return StalledError(f"waited too long for {what}")


def _peer_name(sock: socket.socket) -> tuple[Any, ...]:
    try:
        name: tuple[Any, ...] = sock.getpeername()
    except OSError as error:
        raise ClosedByPeerError("closed by the client at once") from error
    return name
