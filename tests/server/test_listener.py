"""A server of an application that is no endpoint: it hands in its handlers and options, and answers out of nothing."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import structlog
from kafka.errors import UnknownError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.consumer import FetchResponse as FetchMessage
from kafka.protocol.metadata import ApiVersionsRequest

from endpoints.raw_client import SECONDS, RawClient
from kafkafmt.convert.fetch_response import FetchResponse
from kafkafmt.records.file import FileRecords
from kafkafmt.server.api_versions import ApiVersionsApi
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.down_conversion_memory import Lease
from kafkafmt.server.listener import Server, listen
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.options import ServerOptions, TlsOptions
from kafkafmt.server.request import Handler, Request
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.service import Service
from kafkafmt.server.wire import encode_fetch_response
from server.security.certificates import make_certificates

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


def test_client_when_its_certificate_is_refused_then_the_reason_is_a_warning_once(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    strange = ssl.create_default_context(cafile=files.server_ca)
    strange.load_cert_chain(files.server, files.server_key)
    tls = tls_context(TlsOptions(files.server, files.server_key, files.client_ca))

    def shake_hands(address: tuple[str, int]) -> None:
        with (
            suppress(OSError),
            socket.create_connection(address, SECONDS) as plain,
            strange.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            secured.recv(1)

    async def main() -> None:
        work = BatchWork()
        service = Service.within(ServerOptions(), {}, Refusing(), work, Metrics())
        with listen("127.0.0.1", 0) as listener:
            server = Server(listener, service, tls)
            serving = asyncio.create_task(server.serve())
            for _ in range(2):
                await asyncio.to_thread(shake_hands, server.address)
            server.drain()
            await serving
        work.close()

    with structlog.testing.capture_logs() as events:
        asyncio.run(main())
    (event,) = (one for one in events if one["event"] == "TLS failed")
    assert event["log_level"] == "warning"
    assert event["error"].startswith("CERTIFICATE_VERIFY_FAILED: self-signed certificate")


def test_server_when_a_file_of_records_is_truncated_then_logs_an_error_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(bytes(100))

    class Truncated:
        """Begins to send a file that has become shorter since it was opened."""

        async def answer(self, request: Request, lease: Lease) -> tuple[FetchResponse, list[int]]:
            message = FetchMessage[request.version](error_code=0, responses=[])
            pieces = encode_fetch_response(request.correlation_id, message, [])
            with FileRecords(path) as records:
                os.truncate(path, 0)
                records.write_to(io.BytesIO())
            return FetchResponse(pieces), [0]

    def fetch(address: tuple[str, int]) -> None:
        with RawClient(address) as client, pytest.raises(ConnectionError):
            client.ask(FetchRequest[7](max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[]), 7)

    async def main() -> None:
        work = BatchWork()
        service = Service.within(ServerOptions(), {}, Truncated(), work, Metrics())
        with listen("127.0.0.1", 0) as listener:
            server = Server(listener, service, None)
            serving = asyncio.create_task(server.serve())
            await asyncio.to_thread(fetch, server.address)
            server.drain()
            await serving
        work.close()

    with structlog.testing.capture_logs() as events:
        asyncio.run(main())
    (event,) = (one for one in events if one["log_level"] == "error")
    message = f"{path}: file truncated: expected 100 bytes at position 0, found its end"
    assert (event["event"], event["error"]) == ("connection failed", message)


def ask(address: tuple[str, int]) -> None:
    with RawClient(address) as client:
        versions = client.ask(ApiVersionsRequest(), 0)
        assert {one.api_key for one in versions.api_keys} == set(SERVED)
        fetch = FetchRequest[7](
            max_wait_ms=0, min_bytes=0, session_epoch=-1, topics=[], forgotten_topics_data=[]
        )
        assert client.ask(fetch, 7).error_code == UnknownError.errno


@pytest.mark.parametrize(("most", "served"), [(2, 2), (None, 5)])
def test_connections_of_one_address_when_they_are_limited_then_more_are_closed_until_one_has_gone(
    most: int | None, served: int
) -> None:
    async def main() -> None:
        handlers: Mapping[int, Handler] = {ApiKey.ApiVersions: ApiVersionsApi(SERVED).answer}
        work = BatchWork()
        options = ServerOptions(max_connections_per_ip=most)
        service = Service.within(options, handlers, Refusing(), work, Metrics())
        with listen("127.0.0.1", 0) as listener:
            server = Server(listener, service, None)
            serving = asyncio.create_task(server.serve())
            await asyncio.to_thread(connect_five, server.address, served)
            server.drain()
            await serving
        work.close()

    asyncio.run(main())


def connect_five(address: tuple[str, int], served: int) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(address)) for _ in range(5)]
        assert [is_served(client) for client in clients] == [number < served for number in range(5)]
        clients[0].socket.close()
        deadline = time.monotonic() + SECONDS
        while True:  # the server may not know yet that one has gone
            with RawClient(address) as later:
                if is_served(later):
                    return
            assert time.monotonic() < deadline


def is_served(client: RawClient) -> bool:
    try:
        return bool(client.ask(ApiVersionsRequest(), 0).api_keys)
    except ConnectionError:
        return False


@pytest.mark.parametrize("module", ["listener", "workers", "prometheus", "reloading"])
def test_server_when_it_is_imported_then_no_application_is(module: str) -> None:
    program = (
        f"import kafkafmt.server.{module}, sys; print(*(n for n in sys.modules if n.startswith({PREFIXES})))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


PREFIXES = ("kafkafmt.serve.", "kafkafmt.cli.", "kafkafmt.mirror.", "kafkafmt.spark.")
