"""Addresses of brokers that do not answer: the gateway tries the others."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsResponse

from endpoints.endpoint_process import HOST
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway import upstreams as module
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.wire import encode_response

SETUP_MS, LONG_MS, SECONDS = 2000, 600_000, 30
SILENT, REFUSING = ("192.0.2.1", 9092), ("192.0.2.2", 9092)
FRAME = struct.Struct(">ihhi")  # the size of a request, its API, version and correlation id


def upstreams_of(*addresses: tuple[str, int], setup_ms: int) -> Upstreams:
    config = cluster_config({"socket_connection_setup_timeout_ms": setup_ms})
    bootstrap = tuple(Address(*one) for one in addresses)
    return Upstreams(IoLoop(asyncio.get_running_loop()), ClusterView(), bootstrap, config)


def replace_connections(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let SILENT never answer, and REFUSING refuse. Returns what is set then."""
    loop, refused = asyncio.get_running_loop(), asyncio.Event()
    connect = loop.sock_connect

    async def connected(opened: socket.socket, address: Any) -> None:
        if address == SILENT:
            await asyncio.Event().wait()
        if address == REFUSING:
            refused.set()
            raise ConnectionRefusedError(REFUSING[0])
        await connect(opened, address)

    monkeypatch.setattr(loop, "sock_connect", connected)
    return refused


def test_broker_when_its_first_address_does_not_answer_then_the_next_one_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        has_connected = loop.create_future()

        async def found(*_: object, **__: object) -> list[Any]:
            kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
            return [(*kind, SILENT), (*kind, server.sockets[0].getsockname())]

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            has_connected.set_result(True)
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        monkeypatch.setattr(loop, "getaddrinfo", found)
        replace_connections(monkeypatch)
        upstreams = upstreams_of(("broker.example.org", 9092), setup_ms=SETUP_MS)
        asking = loop.create_task(upstreams.any())
        await asyncio.wait([asking, has_connected], return_when=asyncio.FIRST_COMPLETED)
        assert has_connected.done()
        upstreams.close()
        await asyncio.gather(asking, return_exceptions=True)
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())


def test_brokers_when_one_is_silent_and_the_last_refuses_then_one_that_is_ready_later_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            size, _, version, correlation_id = FRAME.unpack(await reader.readexactly(FRAME.size))
            await reader.readexactly(size + 4 - FRAME.size)
            await refused.wait()
            await asyncio.sleep(0.1)  # what waits for the refusal goes on first
            writer.write(encode_response(correlation_id, ApiVersionsResponse(version=version, api_keys=[])))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, HOST, 0)
        slow = server.sockets[0].getsockname()
        refused = replace_connections(monkeypatch)
        monkeypatch.setattr(random, "sample", lambda nodes, _: list(nodes))
        monkeypatch.setattr(module, "_NEXT_BROKER_S", 0.1)
        upstreams = upstreams_of(SILENT, slow, REFUSING, setup_ms=LONG_MS)
        upstream = await asyncio.wait_for(upstreams.any(), SECONDS)
        assert upstream.connection.node_id == -2
        upstreams.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
