"""Requests that clients of a gateway should not send: they end their connection, and the log says why."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import GATEWAY, EndpointProcess
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import SIZE, RawClient
from log.samples import batches, put_segment

pytestmark = pytest.mark.slow

PRODUCE, OLD, NEW = 0, 2, 3  # an API, and versions of it


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LoggedEndpoint]:
    put_segment(tmp_path / "t-0", 0, batches(0, 1))
    with (
        EndpointProcess(tmp_path, "--allow-produce") as upstream,
        LoggedEndpoint(f"kafka://{upstream.address}", command=GATEWAY) as running,  # type: ignore[arg-type]
    ):
        yield running


@pytest.fixture
def client(gateway: LoggedEndpoint) -> Iterator[RawClient]:
    with RawClient((gateway.host, gateway.port)) as client:
        yield client


def produce(version: int, topic: bytes) -> bytes:
    """A request without records, up to version 8."""
    transaction = struct.pack(">h", -1) if version >= NEW else b""
    body = struct.pack(">hiih", -1, 1000, 1, len(topic)) + topic + struct.pack(">iii", 1, 0, 0)
    return struct.pack(">hhih", PRODUCE, version, 1, -1) + transaction + body


@pytest.mark.parametrize("version", [OLD, NEW])
def test_produce_when_a_topic_is_not_utf_8_then_the_log_says_so(
    gateway: LoggedEndpoint, client: RawClient, version: int
) -> None:
    frame = produce(version, b"\xff")
    client.socket.sendall(SIZE.pack(len(frame)) + frame)
    assert client.is_closed_by_peer()
    assert gateway.event("connection closed")["error"] == "expected a topic in UTF-8, found b'\\xff'"
