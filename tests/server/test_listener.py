"""A server of an application that is no endpoint: it hands in its handlers and options, and answers out of nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping

import pytest
from kafka.errors import UnknownError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer import FetchResponse as FetchMessage
from kafka.protocol.metadata import ApiVersionsRequest

from endpoints.raw_client import RawClient
from kafkafmt.convert.fetch_response import FetchResponse
from kafkafmt.server.api_versions import ApiVersionsApi
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.down_conversion_memory import Lease
from kafkafmt.server.listener import Server, listen
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.request import Handler, Request
from kafkafmt.server.service import Service
from kafkafmt.server.wire import encode_fetch_response

SERVED = {ApiKey.ApiVersions: range(5), ApiKey.Fetch: range(13)}


class Refusing:
    """Answers every fetch with an error."""

    async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
        message = FetchMessage[request.version](error_code=UnknownError.errno, responses=[])
        pieces = encode_fetch_response(request.correlation_id, message, [])
        return FetchResponse(pieces), [message.error_code]


def test_server_when_handlers_are_handed_in_then_answers_by_them() -> None:
    async def main() -> None:
        handlers: Mapping[int, Handler] = {ApiKey.ApiVersions: ApiVersionsApi(SERVED).answer}
        work = BatchWork()
        service = Service.within(ServerOptions(), handlers, Refusing(), work, Metrics())
        with listen("127.0.0.1", 0) as listener:
            server = Server(listener, service, None)
            serving = asyncio.create_task(server.serve())
            await asyncio.to_thread(ask, server.address)
            server.drain()
            await serving
        work.close()

    asyncio.run(main())


def ask(address: tuple[str, int]) -> None:
    with RawClient(address) as client:
        versions = client.ask(ApiVersionsRequest(), 0)
        assert {one.api_key for one in versions.api_keys} == set(SERVED)
        fetch = FetchRequest[7](
            max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[], forgotten_topics_data=[]
        )
        assert client.ask(fetch, 7).error_code == UnknownError.errno


@pytest.mark.parametrize("module", ["listener", "workers", "prometheus", "reloading"])
def test_server_when_it_is_imported_then_no_application_is(module: str) -> None:
    program = (
        f"import kafkafmt.server.{module}, sys; print(*(n for n in sys.modules if n.startswith({PREFIXES})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


PREFIXES = ("kafkafmt.serve.", "kafkafmt.cli.", "kafkafmt.mirror.", "kafkafmt.spark.")
