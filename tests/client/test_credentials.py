"""Connections that ask whether brokers refuse the credentials of a client."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import SaslAuthenticationFailedError

from kafkafmt.client.credentials import find_refusal

CONFIG: dict[str, Any] = {
    **KafkaProducer.DEFAULT_CONFIG,
    "ssl_context": None,
    "socket_connection_setup_timeout_ms": 10_000,
}
# With these options a connection is ready without any message.
READY_AT_ONCE = {**CONFIG, "api_version": (0, 9)}


@pytest.fixture
def new_link() -> Iterator[Callable[[], socket.socket]]:
    """Makes connected sockets, whose peers say nothing."""
    peers: list[socket.socket] = []

    def connected() -> socket.socket:
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        peers.append(peer)
        return ours

    yield connected
    for peer in peers:
        peer.close()


def test_refusal_when_a_server_says_nothing_then_none_after_the_timeout(
    new_link: Callable[[], socket.socket],
) -> None:
    async def opened(host: str, port: int) -> socket.socket:
        return new_link()

    assert find_refusal([("silent", 9092)], CONFIG, opened, timeout_s=0.01) is None


def test_refusal_when_no_server_can_be_reached_then_none_at_once() -> None:
    async def opened(host: str, port: int) -> socket.socket:
        raise ConnectionRefusedError

    began = time.monotonic()
    assert find_refusal([("gone", 9092), ("gone", 9093)], CONFIG, opened) is None
    assert time.monotonic() - began < 4


def test_refusal_when_one_server_accepts_and_another_says_nothing_then_none_at_once(
    new_link: Callable[[], socket.socket],
) -> None:
    async def opened(host: str, port: int) -> socket.socket:
        if host == "silent":
            await asyncio.Event().wait()
        return new_link()

    began = time.monotonic()
    assert find_refusal([("silent", 9092), ("ready", 9092)], READY_AT_ONCE, opened) is None
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("hosts", [("refusing", "ready"), ("ready", "refusing")])
def test_refusal_when_one_server_refuses_and_another_accepts_then_none(
    hosts: tuple[str, str], new_link: Callable[[], socket.socket]
) -> None:
    async def opened(host: str, port: int) -> socket.socket:
        if host == "refusing":
            raise SaslAuthenticationFailedError("unknown user")
        await asyncio.sleep(0)
        return new_link()

    assert find_refusal([(one, 9092) for one in hosts], READY_AT_ONCE, opened) is None


@pytest.mark.parametrize("other", ["refusing", "gone", "silent"])
def test_refusal_when_one_server_refuses_and_none_accepts_then_is_its_error(
    other: str, new_link: Callable[[], socket.socket]
) -> None:
    async def opened(host: str, port: int) -> socket.socket:
        if host == "refusing":
            raise SaslAuthenticationFailedError("unknown user")
        if host == "gone":
            raise ConnectionRefusedError
        return new_link()

    error = find_refusal([("refusing", 9092), (other, 9093)], CONFIG, opened, timeout_s=0.05)
    assert isinstance(error, SaslAuthenticationFailedError)
