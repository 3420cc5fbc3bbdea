"""Servers that are no brokers, or not honest ones: they cannot make a gateway take memory."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from endpoints.endpoint_process import HOST
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.routes import Broker
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.wire import encode_response

MIB = 1024 * 1024
FRAME = struct.Struct(">ihhi")  # the size of a request, its API, version and correlation id
# Returns the bytes that a server answers a request with: by its API, version and correlation id.
Answer = Callable[[int, int, int], bytes]


@asynccontextmanager
async def connections_to(answer: Answer) -> AsyncIterator[Upstreams]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size, *head = FRAME.unpack(await reader.readexactly(FRAME.size))
                await reader.readexactly(size + 4 - FRAME.size)
                writer.write(answer(*head))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    address = Address(*server.sockets[0].getsockname()[:2])
    upstreams = Upstreams(IoLoop(asyncio.get_running_loop()), ClusterView(), (address,), cluster_config({}))
    try:
        yield upstreams
    finally:
        upstreams.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    "first",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x03\x00\x02\x02\x46", struct.pack(">i", 8 * MIB)],
    ids=["HTTP", "TLS", "a frame of 8 MiB"],
)
def test_server_when_its_first_bytes_are_no_handshake_then_they_take_no_memory(first: bytes) -> None:
    async def scenario() -> int:
        async with connections_to(lambda *_: first) as upstreams:
            tracemalloc.start()
            with pytest.raises(UpstreamError, match="Invalid frame length"):
                await upstreams.any()
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return peak

    assert asyncio.run(scenario()) < 2 * MIB


def test_broker_when_the_response_to_the_gateway_itself_is_too_large_then_is_not_read() -> None:
    def answer(api_key: int, version: int, correlation_id: int) -> bytes:
        if api_key != ApiKey.ApiVersions:
            return struct.pack(">ii", 65 * MIB, correlation_id)
        taken = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=4)
            for key in (ApiKey.ApiVersions, ApiKey.Metadata)
        ]
        return bytes(encode_response(correlation_id, ApiVersionsResponse(version=version, api_keys=taken)))

    async def scenario() -> int:
        async with connections_to(answer) as upstreams:
            await upstreams.any()
            tracemalloc.start()
            with pytest.raises(UpstreamError, match=f"a response of {65 * MIB} bytes"):
                await upstreams.refresh([])
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return peak

    assert asyncio.run(scenario()) < 2 * MIB


def test_node_when_its_id_is_negative_then_is_not_learned() -> None:
    view, node = ClusterView(), MetadataResponse.MetadataResponseBroker
    view.learn(
        MetadataRequest(version=1),
        MetadataResponse(
            version=1,
            brokers=[node(node_id=one, host=HOST, port=9092, rack=None) for one in (-7, 1)],
            topics=[],
        ),
    )
    coordinator = FindCoordinatorResponse(version=1, error_code=0, node_id=-7, host=HOST, port=9092)
    view.learn(FindCoordinatorRequest(version=1, key="g", key_type=0), coordinator)
    assert view.brokers == {1: Address(HOST, 9092)}
    assert view.coordinator(Broker.GROUP, "g") is None
