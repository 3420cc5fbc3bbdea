"""An endpoint in the test's own event loop, and clients of it that read as much as a test wants, when it wants."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from endpoints.raw_client import SIZE, frame
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.listener import listen
from kafkafmt.server.metrics import Metrics

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
SECONDS = 60


class Told(Metrics):
    """The events of an endpoint, as they stand."""

    def __init__(self) -> None:
        self.held = self.most_held = self.waiting = self.connections = 0
        self.errors: list[int] = []
        self._changed = asyncio.Event()

    async def until(self, holds: Callable[[Told], bool]) -> None:
        """Wait for what is to become true by an event."""

        async def wait() -> None:
            while not holds(self):
                self._changed.clear()
                await self._changed.wait()

        await asyncio.wait_for(wait(), SECONDS)

    def connection_opened(self) -> None:
        self.connections += 1
        self._changed.set()

    def connection_closed(self) -> None:
        self.connections -= 1
        self._changed.set()

    def error_sent(self, error_code: int) -> None:
        self.errors.append(error_code)

    def memory_held(self, size_bytes: int) -> None:
        self.held = size_bytes
        self.most_held = max(self.most_held, size_bytes)
        self._changed.set()

    def memory_awaited(self, conversions: int) -> None:
        self.waiting = conversions
        self._changed.set()


class Here:
    """An endpoint that is being served, what it tells, and its `serve` task."""

    def __init__(self, endpoint: Endpoint, told: Told, serving: asyncio.Task[None]) -> None:
        self.endpoint, self.told, self.serving = endpoint, told, serving

    async def client(self, receive_buffer_bytes: int | None = None) -> Client:
        return await connect(self.endpoint.address, receive_buffer_bytes)

    async def until_waiting(self, answer: asyncio.Future[Any]) -> None:
        """Until a long poll waits; fails where it is answered instead."""
        growth = self.endpoint._growth
        while not growth._waiting:
            assert not answer.done(), "answered, and not waiting"
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(directory: Path, **options: Any) -> AsyncIterator[Here]:
    """`options` are those of ServeOptions."""
    told = Told()
    with listen(HOST, 0) as listener:
        endpoint = Endpoint(ServeOptions(directory, **options), listener, metrics=told)
        task = asyncio.create_task(endpoint.serve())
        try:
            yield Here(endpoint, told, task)
        finally:
            endpoint.drain()
            await asyncio.wait_for(task, SECONDS)


class Client:
    """One connection. A context manager that closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._correlation_ids = count(1)
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    async def ask(self, request: Any, version: int) -> Any:
        await self.send(request, version)
        return await self.answer(request, version)

    async def send(self, request: Any, version: int) -> None:
        await self._loop.sock_sendall(self.socket, frame(request, version, next(self._correlation_ids)))

    async def answer(self, request: Any, version: int) -> Any:
        (size,) = SIZE.unpack(await self.read(SIZE.size))
        data = await self.read(size)
        return request.header.get_response_class().decode(data, version=version, header=True)

    async def read(self, size: int) -> bytes:
        """Raises ConnectionError where the connection ends first."""
        data = bytearray()
        while len(data) < size:
            part = await asyncio.wait_for(self._loop.sock_recv(self.socket, size - len(data)), SECONDS)
            if not part:
                raise ConnectionError(f"closed behind {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    async def is_closed(self) -> bool:
        """Whether the connection ends without another byte."""
        try:
            return await asyncio.wait_for(self._loop.sock_recv(self.socket, 1), SECONDS) == b""
        except ConnectionError:
            return True


async def connect(address: tuple[str, int], receive_buffer_bytes: int | None = None) -> Client:
    connection = socket.socket()
    connection.setblocking(False)
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    await asyncio.get_running_loop().sock_connect(connection, address)
    return Client(connection)
