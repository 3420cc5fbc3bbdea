"""Target: what a client sends: a request's frame, decoded and answered.

Input: the frame, without its size field. Whatever the bytes are:

- decoding gives a request, or raises the documented error, as answering it may;
- what was decoded, encoded again, decodes to the same;
- the kernel and kafka-python find the same in a Fetch request that both understand;
- an endpoint answers it: the response encodes at the request's version, and decodes.

Groups are left out: their answers wait for other members.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from typing import Any

from kafka.protocol.api_key import ApiKey

from data.real_logs import LOGS
from kafkafmt.memory import MemoryBudget
from kafkafmt.serve import apis
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.fetching import Fetching
from kafkafmt.serve.growth import GrowthWatch
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.down_conversion_memory import DownConversionMemory
from kafkafmt.server.errors import RequestError
from kafkafmt.server.frames import measure_fetch_request
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.node import Node
from kafkafmt.server.request import Request
from kafkafmt.server.wire import SUPPORTED, Frame, decode_fetch_request, decode_request, encode_response
from server.messages import frame, response_class

OPTIONS_LENGTH = 0
CLIENT_HOST = "127.0.0.1"
SIZE_FIELD = 4  # bytes
TOPIC_ID_VERSION = 13
MIB = 1024 * 1024


def check(data: bytes) -> None:
    native = decode_fetch_request(Frame(data), CLIENT_HOST)
    assert measure_fetch_request(data).elements <= len(data)
    if native is not None:
        asyncio.run(_check_answer(native))
    with suppress(RequestError):
        request = decode_request(data, CLIENT_HOST)
        if request.api_key not in SUPPORTED:  # only a gateway answers it
            _check_decoding(request)
            return
        if request.version in SUPPORTED[request.api_key]:
            _check_decoding(request)
        if native is None:
            asyncio.run(_check_answer(request))
        else:
            assert _wanted(native) == _wanted(request)


def _wanted(request: Request) -> Any:
    """What an endpoint reads of a Fetch request."""
    body = request.body
    settings = [body.max_wait_ms, body.min_bytes, body.max_bytes, body.isolation_level]
    session = [body.session_id, body.session_epoch]
    topics = [
        (
            topic.topic_id if request.version >= TOPIC_ID_VERSION else topic.topic,
            [
                (one.partition, one.fetch_offset, one.current_leader_epoch, one.partition_max_bytes)
                for one in topic.partitions
            ],
        )
        for topic in body.topics
    ]
    return request.version, request.correlation_id, request.client_id, settings, session, topics


def _check_decoding(request: Request) -> None:
    again = decode_request(frame(request.body), CLIENT_HOST)
    assert (again.api_key, again.version) == (request.api_key, request.version)
    assert again.body.to_dict(json=False) == request.body.to_dict(json=False)


async def _check_answer(request: Request) -> None:
    known = request.version in SUPPORTED[request.api_key]
    version = request.version if known else 0
    if request.api_key == ApiKey.Fetch:
        answered = await _fetched(request)
    else:
        handler = _handlers().get(request.api_key)
        if handler is None:
            return
        answered = encode_response(request.correlation_id, await handler(request))
    decoded = response_class(request.api_key).decode(answered[SIZE_FIELD:], version=version, header=True)
    assert decoded.header.correlation_id == request.correlation_id


async def _fetched(request: Request) -> bytes:
    lease = DownConversionMemory(MemoryBudget(64 * MIB), MIB, Metrics()).lease()
    growth = GrowthWatch()
    growth.wake_all()  # no fetch waits for records
    fetching = Fetching(_catalog(), _options(), TopicConfigs(_options()), growth, _work())
    response, _ = await fetching.answer(request, lease)
    sink, send = Sink(), response.to_send()
    while not send.completed:
        send.write_to(sink)
    assert len(sink.taken) == response.size_in_bytes
    return bytes(sink.taken)


class Sink:
    """A channel that takes all."""

    def __init__(self) -> None:
        self.taken = bytearray()

    def write(self, data: memoryview) -> int:
        self.taken += data
        return len(data)


@cache
def _options() -> ServeOptions:
    return ServeOptions(LOGS)


@cache
def _catalog() -> Catalog:
    return Catalog(LOGS)


@cache
def _work() -> BatchWork:
    return BatchWork()


@cache
def _handlers() -> dict[int, Any]:
    return apis.handlers(
        _catalog(),
        Node("localhost", 9092, _catalog().cluster_id),
        _options(),
        TopicConfigs(_options()),
        _work(),
    )
