"""Requests that clients of a gateway should not send: they end their connection, and the log says why."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import GATEWAY, EndpointProcess
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import SIZE, RawClient
from kafkafmt import Codec
from log.samples import batches, put_segment
from serve.produced import batch, error_code
from serve.produced import produce as produced

pytestmark = pytest.mark.slow

PRODUCE, OLD, NEW = 0, 2, 3  # an API, and versions of it
CORRUPT = 2
KIB, MIB = 1024, 1024 * 1024
# So a request may take at most 2 MiB beyond the bytes of its connection.
MEMORY = ("--max-produce-size", MIB, "--max-produce-memory", MIB, "--max-request-size", MIB)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[EndpointProcess]:
    put_segment(tmp_path / "t-0", 0, batches(0, 1))
    with EndpointProcess(tmp_path, "--allow-produce") as upstream:
        yield upstream


@pytest.fixture
def gateway(upstream: EndpointProcess) -> Iterator[LoggedEndpoint]:
    with LoggedEndpoint(f"kafka://{upstream.address}", command=GATEWAY) as running:  # type: ignore[arg-type]
        yield running


@pytest.fixture
def client(gateway: LoggedEndpoint) -> Iterator[RawClient]:
    with RawClient((gateway.host, gateway.port)) as client:
        yield client


def produce(version: int, topic: bytes, topics: int = 1, record_bytes: int = 0) -> bytes:
    """A request that names a topic so many times, each with bytes that are no records, up to version 8."""
    transaction = struct.pack(">h", -1) if version >= NEW else b""
    asked = struct.pack(">h", len(topic)) + topic + struct.pack(">iii", 1, 0, record_bytes)
    body = struct.pack(">hii", -1, 1000, topics) + (asked + bytes(record_bytes)) * topics
    return struct.pack(">hhih", PRODUCE, version, 1, -1) + transaction + body


@pytest.mark.parametrize("version", [OLD, NEW])
def test_produce_when_a_topic_is_not_utf_8_then_the_log_says_so(
    gateway: LoggedEndpoint, client: RawClient, version: int
) -> None:
    frame = produce(version, b"\xff")
    client.socket.sendall(SIZE.pack(len(frame)) + frame)
    assert client.is_closed_by_peer()
    assert gateway.event("connection closed")["error"] == "expected a topic in UTF-8, found b'\\xff'"


@pytest.mark.parametrize("version", [OLD, NEW])
def test_produce_when_more_than_a_request_may_have_is_not_records_then_is_not_decoded(
    gateway: LoggedEndpoint, client: RawClient, version: int
) -> None:
    frame = produce(version, b"t", topics=MIB // 15 + 100)
    client.socket.sendall(SIZE.pack(len(frame)) + frame)
    assert client.is_closed_by_peer()
    expected = f"a request of {len(frame)} bytes: expected {MIB} at most that are not records"
    assert gateway.event("connection closed")["error"] == expected


@pytest.mark.parametrize("version", [OLD, NEW])
def test_produce_when_it_takes_more_memory_than_a_request_may_then_is_not_decoded(
    upstream: EndpointProcess, version: int
) -> None:
    """16 bytes of a frame name a topic, whose answer takes several hundred."""
    frame = produce(version, b"t", topics=16 * KIB)
    uri = f"kafka://{upstream.address}"
    with (
        LoggedEndpoint(uri, *MEMORY, command=GATEWAY) as gateway,  # type: ignore[arg-type]
        RawClient((gateway.host, gateway.port)) as client,
    ):
        client.socket.sendall(SIZE.pack(len(frame)) + frame)
        assert client.is_closed_by_peer()
        error = gateway.event("connection closed")["error"]
        assert error.startswith("a request that takes ")
        assert error.endswith(f"expected at most {2 * MIB + 64 * KIB}")


@pytest.mark.parametrize("version", [OLD, NEW])
def test_produce_when_much_of_it_is_for_few_partitions_then_is_answered(
    gateway: LoggedEndpoint, client: RawClient, version: int
) -> None:
    """Records take no memory but their own, however large they are."""
    frame = produce(version, b"t", record_bytes=2 * MIB)
    client.socket.sendall(SIZE.pack(len(frame)) + frame)
    (correlation_id,) = SIZE.unpack(client.receive_frame()[: SIZE.size])
    assert correlation_id == 1


def test_produce_when_a_batch_of_an_old_producer_decompresses_to_very_much_then_is_refused(
    client: RawClient,
) -> None:
    """The limit is that of `kafkafmt serve`: 64 MiB."""
    for size, expected in ((63 * MIB, 0), (64 * MIB, CORRUPT)):
        data = batch(1, magic=1, codec=Codec.GZIP, size=size)
        assert len(data) < MIB
        assert error_code(client, produced(data), OLD) == expected
