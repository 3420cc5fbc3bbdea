"""Servers that are no brokers, or not honest ones: a gateway takes no memory for them, and its clients do not hang."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import UnknownError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from _kafkafmt.server.producing import decode_produce_request
from endpoints.endpoint_process import HOST
from gateway.test_bad_requests import NEW, OLD, produce
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.convert.options import ConversionStats
from kafkafmt.gateway import producing
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.down_conversion import DownConversionPolicy
from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.gateway.leader_fetch import FetchOptions, LeaderFetch, WantedPartition
from kafkafmt.gateway.routes import Broker
from kafkafmt.gateway.split_produce import MergedProduce
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


class Responses:
    """The responses of a client. error: why they cannot be completed."""

    error: Exception | None = None

    def is_next(self, _: object) -> bool:
        return False

    def fail(self, error: Exception) -> None:
        self.error = error


def produce_response(topics: int = 1, topic: bytes | None = b"t", partitions: int = 1) -> memoryview:
    """A response of version 3. topics, partitions: the counts in it. topic: None for null."""
    name = struct.pack(">h", -1) if topic is None else struct.pack(">h", len(topic)) + topic
    answer = struct.pack(">ihqq", 0, 0, 5, -1)
    return memoryview(
        struct.pack(">ii", 1, topics) + name + struct.pack(">i", partitions) + answer + bytes(4)
    )


def taken_by_translation(response: memoryview) -> tuple[producing._ProduceAnswers, Responses]:
    request, responses = decode_produce_request(produce(OLD, b"t")), Responses()
    assert request is not None
    answers = producing._ProduceAnswers(responses, request)  # type: ignore[arg-type]
    answers.unanswered = 1
    translated = producing.TranslatedProduce(None, responses, None, MIB)  # type: ignore[arg-type]
    part = producing._Part(0, "t", 0, b"", 0, ConversionStats())
    translated._taking([part], NEW, answers)(response)
    return answers, responses


def test_produce_response_when_it_is_malformed_then_the_responses_to_an_old_producer_fail() -> None:
    _, responses = taken_by_translation(produce_response(topics=60))
    assert isinstance(responses.error, UpstreamError)


def test_produce_response_when_a_topic_is_not_utf_8_then_the_old_producer_gets_an_error() -> None:
    answers, responses = taken_by_translation(produce_response(topic=b"\xff"))
    assert (answers.by_number[0].error_code, responses.error) == (UnknownError.errno, None)


@pytest.mark.parametrize(
    "response",
    [
        produce_response(topics=60),
        produce_response(topics=-1),
        produce_response(topic=None),
        produce_response(partitions=-1),
    ],
    ids=["more topics than bytes", "no topics", "no name", "no partitions"],
)
def test_produce_response_when_a_part_is_malformed_then_the_responses_fail(response: memoryview) -> None:
    request, responses = decode_produce_request(produce(NEW, b"t")), Responses()
    assert request is not None
    merged = MergedProduce(responses, request, 2, list)  # type: ignore[arg-type]
    merged.take([request.partitions[0]], response)
    assert isinstance(responses.error, UpstreamError)


def test_fetch_response_when_it_is_malformed_then_it_is_an_error_of_the_cluster() -> None:
    async def held(*_: object) -> memoryview:
        return memoryview(bytes(20))

    upstream: Any = SimpleNamespace(version=lambda *_: 12, next_correlation_id=lambda: 1, request_held=held)
    body = SimpleNamespace(min_bytes=1, max_bytes=MIB)
    request: Any = SimpleNamespace(
        version=OLD, body=body, client_id=None, memory=SimpleNamespace(available_bytes=MIB)
    )
    options = FetchOptions(MIB, MIB, DownConversionPolicy(None))
    leader = LeaderFetch(None, None, options)  # type: ignore[arg-type]
    with pytest.raises(UpstreamError, match="Fetch response"):
        asyncio.run(leader.ask(upstream, request, [WantedPartition("t", 0, 0, MIB)], 0.0, 1))
