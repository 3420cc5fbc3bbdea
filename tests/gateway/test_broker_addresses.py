"""Brokers whose names have several addresses."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from endpoints.endpoint_process import HOST
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.upstreams import Upstreams

SETUP_MS = 2000
SILENT = ("192.0.2.1", 9092)


def test_broker_when_its_first_address_does_not_answer_then_the_next_one_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        connect, has_connected = loop.sock_connect, loop.create_future()

        async def found(*_: object, **__: object) -> list[Any]:
            kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
            return [(*kind, SILENT), (*kind, server.sockets[0].getsockname())]

        async def connected(opened: socket.socket, address: Any) -> None:
            if address == SILENT:
                await asyncio.sleep(10 * SETUP_MS / 1000)
            await connect(opened, address)

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            has_connected.set_result(True)
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        monkeypatch.setattr(loop, "getaddrinfo", found)
        monkeypatch.setattr(loop, "sock_connect", connected)
        config = cluster_config({"socket_connection_setup_timeout_ms": SETUP_MS})
        upstreams = Upstreams(IoLoop(loop), ClusterView(), (Address("broker.example.org", 9092),), config)
        asking = loop.create_task(upstreams.any())
        await asyncio.wait([asking, has_connected], return_when=asyncio.FIRST_COMPLETED)
        assert has_connected.done()
        upstreams.close()
        await asyncio.gather(asking, return_exceptions=True)
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
