"""A SOCKS5 proxy (RFC 1928) on loopback, without authentication, which counts connections and bytes."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
VERSION, NO_AUTHENTICATION, CONNECT, SUCCEEDED = 5, 0, 1, 0
IPV4, NAME = 1, 3
STOP_SECONDS = 60


class SocksProxy:
    """A context manager.

    connected: how many connections clients made through it. received_bytes: what they received.
    """

    def __init__(self) -> None:
        self.connected = self.received_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="socks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, HOST, 0), self._loop)
        self._server = started.result(STOP_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"socks5://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        try:
            server, to_server = await asyncio.open_connection(*await self._target(client, to_client))
            self.connected += 1
            try:
                to_client.write(bytes([VERSION, SUCCEEDED, 0, IPV4]) + bytes(6))
                ways = [_pass_on(client, to_server), _pass_on(server, to_client, self._count)]
                await asyncio.gather(*ways)
            finally:
                to_server.close()
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # how connections end, and how the proxy does
        finally:
            to_client.close()

    def _count(self, size: int) -> None:
        self.received_bytes += size

    async def _target(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> tuple[str, int]:
        """Return the address that a client asks for."""
        _, methods = await client.readexactly(2)
        await client.readexactly(methods)
        to_client.write(bytes([VERSION, NO_AUTHENTICATION]))
        _, command, _, kind = await client.readexactly(4)
        assert command == CONNECT
        if kind == NAME:
            host = (await client.readexactly((await client.readexactly(1))[0])).decode()
        else:
            host = ".".join(map(str, await client.readexactly(4)))
        (port,) = struct.unpack(">H", await client.readexactly(2))
        return host, port


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None] = lambda _: None
) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            count(len(data))
            writer.write(data)
            await writer.drain()
    writer.close()
