"""The server's end of a connection: what it leaves to the system, and how writing by the event loop ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import pytest

from kafkafmt._util.sizes import KIB
from kafkafmt.server.stream import StalledError, Stream

DATA = bytes(KIB) * 8 * KIB
LONG, SHORT = 3600.0, 0.05
# Linux doubles a limit, for its own data.
MOST_BUFFERED_BYTES = 512 * KIB


def run(scenario: Callable[[Stream, socket.socket], Awaitable[None]]) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = socket.create_connection(listening.getsockname())
            stream = Stream(listening.accept()[0])
            client.setblocking(False)
            with client:
                try:
                    await scenario(stream, client)
                finally:
                    stream.close()

    asyncio.run(main())


class Writer:
    """Writes `DATA`, as much at a time as the socket takes."""

    def __init__(self, stream: Stream) -> None:
        self._socket, self._left = stream.socket, memoryview(DATA)

    def __call__(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            self._left = self._left[self._socket.send(self._left) :]
        return not self._left


async def received(client: socket.socket) -> int:
    loop, size = asyncio.get_running_loop(), 0
    while size < len(DATA):
        size += len(await loop.sock_recv(client, 64 * KIB))
    return size


def test_writes_are_repeated_until_all_is_written() -> None:
    async def scenario(stream: Stream, client: socket.socket) -> None:
        _, size = await asyncio.gather(stream.write_all(Writer(stream), LONG), received(client))
        assert size == len(DATA)

    run(scenario)


def test_write_that_the_client_does_not_take_when_its_time_is_over_then_ends() -> None:
    async def scenario(stream: Stream, client: socket.socket) -> None:
        with pytest.raises(StalledError, match="waited too long"):
            await stream.write_all(Writer(stream), SHORT)

    run(scenario)


def test_error_of_a_write_when_the_event_loop_calls_it_then_is_raised() -> None:
    async def scenario(stream: Stream, client: socket.socket) -> None:
        calls = iter([False, False])

        def write() -> bool:
            try:
                return next(calls)
            except StopIteration:
                raise EOFError("shorter than before") from None

        with pytest.raises(EOFError, match="shorter"):
            await stream.write_all(write, LONG)

    run(scenario)


def test_limit_of_the_send_buffer_is_kept_by_the_system() -> None:
    async def scenario(stream: Stream, client: socket.socket) -> None:
        stream.limit_send_buffer()
        found = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert found <= MOST_BUFFERED_BYTES

    run(scenario)
