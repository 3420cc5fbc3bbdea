"""The server of the metrics port: what a client can take of threads, memory and time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
from prometheus_client import CollectorRegistry

from kafkafmt.server.page_server import MOST_HEAD_BYTES, MOST_REQUESTS, PageServer
from kafkafmt.server.prometheus import metrics_server

pytestmark = pytest.mark.slow

SECONDS = 60.0
SHORT = 0.5
GET = b"GET /metrics HTTP/1.0\r\n"


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with metrics_server(CollectorRegistry(), "127.0.0.1", 0, SECONDS) as port:
        yield "127.0.0.1", port


def answer(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    found = b""
    with suppress(ConnectionError):
        while data := connection.recv(65536):
            found += data
    return found


def test_request_when_it_comes_byte_by_byte_then_its_connection_ends_in_time() -> None:
    with (
        metrics_server(CollectorRegistry(), "127.0.0.1", 0, SHORT) as port,
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as slow,
    ):
        slow.sendall(GET + b"X-Slow: ")
        slow.settimeout(SHORT / 10)
        began = time.monotonic()
        while time.monotonic() < began + SECONDS:
            try:
                slow.sendall(b"x")
                assert slow.recv(1) == b""
                break
            except TimeoutError:  # open
                continue
            except ConnectionError:
                break
        assert time.monotonic() < began + SECONDS


@pytest.mark.parametrize(
    ("size", "is_answered"), [(MOST_HEAD_BYTES // 2, True), (2 * MOST_HEAD_BYTES, False)]
)
def test_request_when_its_head_is_too_large_then_is_refused(
    address: tuple[str, int], size: int, is_answered: bool
) -> None:
    line = b"X-Large: " + b"x" * 1000 + b"\r\n"
    with socket.create_connection(address, timeout=SECONDS) as client:
        with suppress(ConnectionError):
            client.sendall(GET + line * (size // len(line)) + b"\r\n")
        assert (b" 200 " in answer(client)[:20]) is is_answered


def test_connections_when_they_are_many_then_more_are_closed_until_one_has_gone(
    address: tuple[str, int],
) -> None:
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(address, timeout=SECONDS))
            for _ in range(MOST_REQUESTS)
        ]
        with socket.create_connection(address, timeout=SECONDS) as further:
            assert further.recv(1) == b""
        crowd[0].close()
        deadline = time.monotonic() + SECONDS
        while True:  # the server may not know yet that one has gone
            with socket.create_connection(address, timeout=SECONDS) as later:
                with suppress(ConnectionError):
                    later.sendall(GET + b"\r\n")
                if answer(later).startswith(b"HTTP/1.0 200 "):
                    return
            assert time.monotonic() < deadline


def test_connections_when_they_come_at_once_then_none_has_to_connect_again() -> None:
    """If the queue of a socket is full, the system drops what connects, and the client tries it again after a second.

    This server takes nothing from its queue.
    """
    unused = lambda environ, start_response: []  # noqa: E731
    with PageServer("127.0.0.1", 0, unused, SECONDS) as server, ExitStack() as stack:
        for _ in range(MOST_REQUESTS):
            stack.enter_context(socket.create_connection(server.server_address[:2], timeout=SECONDS))


def test_requests_when_there_are_no_threads_for_a_moment_then_later_ones_are_answered(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Timer, "start", start)
        for _ in range(MOST_REQUESTS):
            with socket.create_connection(address, timeout=SECONDS) as refused:
                assert answer(refused) == b""
    with socket.create_connection(address, timeout=SECONDS) as later:
        later.sendall(GET + b"\r\n")
        assert answer(later).startswith(b"HTTP/1.0 200 ")
