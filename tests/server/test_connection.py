"""One connection at a time: order, limits of time, and how it ends when the endpoint does."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

import kafkafmt as kf
from endpoints.endpoint_here import SECONDS, Client, Here, serving
from endpoints.fetched import FOREVER_MS, partitions, read
from endpoints.raw_client import SIZE, frame
from endpoints.requests import MIB, Wanted, fetch, metadata
from kafkafmt.server.options import TlsOptions
from kafkafmt.server.security.users import MECHANISMS, Users, read_users
from kafkafmt.server.wire import decode_request
from log.samples import batches, put_segment
from server.security.certificates import make_certificates
from server.yielding import made_yielding

OLD, NEW = 3, 12
SHORT, LONG = 0.05, 3600.0


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """More than the buffers of sockets take in."""
    put_segment(tmp_path / "t-0", 0, batches(0, 4000, size=4000))
    return tmp_path


@pytest.fixture
def users(tmp_path: Path) -> Users:
    file = tmp_path / "users.ini"
    file.write_text("[alice]\npassword = wonderland\n")
    file.chmod(0o600)
    return read_users(file, MECHANISMS)


LARGE = fetch(Wanted("t", 0, 0, 16 * MIB))


def run(directory: Path, scenario: Callable[[Here], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(directory, **options) as here:
            await scenario(here)
            await here.told.until(lambda told: told.connections == 0)
            assert (here.told.held, here.told.waiting) == (0, 0)

    asyncio.run(main())


def test_requests_that_are_pipelined_are_answered_in_order(logs: Path) -> None:
    asked = [(fetch(Wanted("t", 0, number)), (0, OLD, 4, NEW)[number % 4]) for number in range(20)]

    async def scenario(here: Here) -> None:
        with await here.client() as client:
            for request, version in asked:
                await client.send(request, version)
            for number, (request, version) in enumerate(asked):
                found = partitions(await client.answer(request, version))["t", 0]
                assert read(found)[0] == number

    run(logs, scenario)


def test_request_that_comes_byte_by_byte_is_answered(logs: Path) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as client:
            request = fetch(Wanted("t"))
            for byte in frame(request, NEW, 1):
                client.socket.send(bytes([byte]))
                await asyncio.sleep(0)
            assert read(partitions(await client.answer(request, NEW))["t", 0])[0] == 0

    run(logs, scenario)


@pytest.mark.parametrize("version", [0, OLD, 4, NEW])
@pytest.mark.parametrize("receive_buffer_bytes", [2048, None])
def test_response_that_is_larger_than_all_buffers_arrives_whole(
    logs: Path, version: int, receive_buffer_bytes: int | None
) -> None:
    async def scenario(here: Here) -> None:
        with await here.client(receive_buffer_bytes) as client:
            request = fetch(Wanted("t", 0, 0, 3 * MIB))
            found = partitions(await client.ask(request, version))["t", 0]
            assert read(found) == list(range(len(read(found))))
            assert len(found.records) >= 3 * MIB - 5000

    run(logs, scenario)


# Limits of time


def test_connection_that_asks_for_nothing_is_closed(logs: Path) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as silent:
            assert await silent.is_closed()
        while True:  # until one is in time
            with await here.client() as served, suppress(ConnectionError):
                await served.ask(ApiVersionsRequest(), 0)
                assert await served.is_closed()
                break

    run(logs, scenario, idle_timeout=SHORT, request_timeout=LONG)


@pytest.mark.parametrize("part", [4, 10])
def test_half_a_request_closes_its_connection_and_no_other(logs: Path, part: int) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as half, await here.client() as other:
            half.socket.send(frame(metadata(["t"]), 9, 1)[:part])
            assert await half.is_closed()
            assert (await other.ask(metadata(["t"]), 9)).topics[0].name == "t"

    run(logs, scenario, request_timeout=SHORT, idle_timeout=LONG)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03"], ids=["nothing", "a part"])
def test_client_that_does_not_end_its_tls_handshake_is_closed_in_time(
    logs: Path, tmp_path: Path, sent: bytes
) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    files = make_certificates(folder)

    async def scenario(here: Here) -> None:
        with await here.client() as client:
            client.socket.send(sent)
            assert await client.is_closed()

    tls = TlsOptions(files.server, files.server_key)
    run(logs, scenario, tls=tls, request_timeout=SHORT, idle_timeout=LONG)


def test_client_that_asks_and_does_not_authenticate_is_closed_in_time(logs: Path, users: Users) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as client, pytest.raises(ConnectionError):
            await ask_versions(client, SECONDS)

    run(logs, scenario, users=users, request_timeout=0.5, idle_timeout=LONG)


async def ask_versions(client: Client, seconds: float) -> None:
    """Ask again and again, for so long."""
    began = time.monotonic()
    while time.monotonic() < began + seconds:
        await client.ask(ApiVersionsRequest(), 0)


def test_client_that_has_authenticated_is_served_for_longer(logs: Path, users: Users) -> None:
    async def scenario(here: Here) -> None:
        while True:  # until one authenticates in time
            with await here.client() as client:
                try:
                    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
                    token = SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland")
                    assert (await client.ask(token, 1)).error_code == 0
                except ConnectionError:
                    continue
                await asyncio.sleep(1.0)
                assert (await client.ask(metadata(["t"]), 9)).topics[0].name == "t"
                break

    run(logs, scenario, users=users, request_timeout=0.5, idle_timeout=LONG)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_client_that_takes_nothing_loses_its_connection_and_its_memory(logs: Path, version: int) -> None:
    async def scenario(here: Here) -> None:
        with await here.client(4096) as client:
            await client.send(LARGE, version)
            await here.told.until(lambda told: told.connections == 1)
            await here.told.until(lambda told: told.connections == 0)  # without a byte being read
            with pytest.raises(ConnectionError):
                await client.read(16 * MIB)

    run(logs, scenario, write_timeout=SHORT)


def test_long_poll_is_no_idle_connection(logs: Path) -> None:
    async def scenario(here: Here) -> None:
        request = fetch(Wanted("t", 0, 4000), max_wait_ms=int(6 * SHORT * 1000))
        while True:  # until one asks before it counts as idle
            with await here.client() as client:
                answer = asyncio.create_task(client.ask(request, NEW))
                try:
                    await here.until_waiting(answer)
                except AssertionError:
                    with suppress(ConnectionError):
                        await answer
                    continue
                found = partitions(await answer)["t", 0]
                assert (found.error_code, found.high_watermark) == (0, 4000)
                break

    run(logs, scenario, idle_timeout=SHORT, request_timeout=SHORT, write_timeout=SHORT)


# Frames


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1001, 2**31 - 1])
def test_frame_of_a_size_that_cannot_be_closes_the_connection(logs: Path, size: int) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as client, await here.client() as other:
            client.socket.send(struct.pack(">i", size))
            assert await client.is_closed()
            await other.ask(ApiVersionsRequest(), 0)

    run(logs, scenario, max_request_bytes=1000)


@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.Fetch, 99), (ApiKey.StopReplica, 0), (ApiKey.Fetch, 12)]
)
def test_request_that_may_not_be_asked_for_closes_the_connection_when_its_first_bytes_have_come(
    logs: Path, users: Users, api_key: int, version: int
) -> None:
    """Nothing of its body is read, let alone decoded."""
    of_version = users if version == 12 else None

    async def scenario(here: Here) -> None:
        with await here.client() as client:
            client.socket.send(struct.pack(">ihh", 10_000, api_key, version))
            assert await client.is_closed()

    run(logs, scenario, users=of_version, request_timeout=LONG, idle_timeout=LONG)


# What takes long


def threads(name: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(name)}


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.ZSTD, kf.Codec.LZ4])
def test_batch_that_decompresses_to_much_is_converted_beside_the_loop(
    tmp_path: Path, codec: kf.Codec
) -> None:
    builder = kf.RecordBatchBuilder(codec=codec, batch_size=64 * MIB)
    for _ in range(8):
        builder.append(0, None, bytes(MIB))
    put_segment(tmp_path / "t-0", 0, [builder.build()])
    put_segment(tmp_path / "small-0", 0, batches(0, 1))

    async def scenario(here: Here) -> None:
        before = threads("conversion")
        with await here.client() as client:
            found = partitions(await client.ask(fetch(Wanted("small")), OLD))["small", 0]
            assert (found.error_code, threads("conversion") - before) == (0, set())
            found = partitions(await client.ask(fetch(Wanted("t")), OLD))["t", 0]
            assert len(threads("conversion") - before) == 1

    run(tmp_path, scenario, zstd_fallback=kf.Codec.LZ4)


@pytest.mark.parametrize("version", [pytest.param(0, marks=pytest.mark.full), OLD, NEW])
def test_fetch_of_many_topics_that_are_not_there_leaves_others_their_turn(logs: Path, version: int) -> None:
    async def scenario(here: Here) -> None:
        service = here.endpoint.server.service
        request = fetch(*(Wanted(str(number)) for number in range(20_000)))
        received = decode_request(frame(request, version, 1)[SIZE.size :], "")
        response, codes = await made_yielding(service.fetching.answer(received, service.memory.lease()))
        assert len(codes) == 20_000
        assert not response.converts

    run(logs, scenario)


# The endpoint's end


@pytest.mark.parametrize("version", [OLD, NEW])
def test_drain_lets_a_response_in_flight_end_and_then_closes(logs: Path, version: int) -> None:
    async def scenario(here: Here) -> None:
        with await here.client(4096) as client:
            await client.send(LARGE, version)
            head = await client.read(1000)
            here.endpoint.drain()
            size = SIZE.unpack(head[:4])[0]
            await client.read(size - 1000 + 4)
            assert await client.is_closed()
            await asyncio.wait_for(here.serving, SECONDS)

    run(logs, scenario)


def test_drain_closes_idle_connections_and_those_in_half_a_request_at_once(logs: Path) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as idle, await here.client() as used, await here.client() as half:
            await used.ask(ApiVersionsRequest(), 0)
            half.socket.send(b"\0\0")
            await here.told.until(lambda told: told.connections == 3)
            here.endpoint.drain()
            assert [await client.is_closed() for client in (idle, used, half)] == [True] * 3
            await asyncio.wait_for(here.serving, SECONDS)

    run(logs, scenario)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_drain_answers_long_polls_with_what_is_there(logs: Path, version: int) -> None:
    async def scenario(here: Here) -> None:
        with await here.client() as client, await here.client() as other:
            request = fetch(Wanted("t", 0, 4000), max_wait_ms=FOREVER_MS)
            answer = asyncio.create_task(client.ask(request, version))
            much = fetch(Wanted("t", 0, 3999), max_wait_ms=FOREVER_MS, min_bytes=MIB)
            await here.until_waiting(answer)
            second = asyncio.create_task(other.ask(much, version))
            partition = next(iter(here.endpoint._growth._waiting))
            while len(here.endpoint._growth._waiting[partition]) < 2:
                await asyncio.sleep(0)
            here.endpoint.drain()
            assert partitions(await answer)["t", 0].high_watermark == 4000
            assert read(partitions(await second)["t", 0]) == [3999]
            assert await client.is_closed()
            await asyncio.wait_for(here.serving, SECONDS)

    run(logs, scenario)


def test_drain_ends_what_nobody_takes_when_its_time_is_over(logs: Path) -> None:
    async def scenario(here: Here) -> None:
        with await here.client(4096) as client, await here.client() as waiting:
            await client.send(LARGE, OLD)
            await client.read(1000)
            await here.told.until(lambda told: told.held > 0)
            await waiting.send(LARGE, OLD)
            here.endpoint.drain()
            await asyncio.wait_for(here.serving, SECONDS)

    run(logs, scenario, shutdown_timeout=SHORT, max_downconversion_bytes=1)
