"""A large response over a slow link: the time of a request counts from the last bytes that arrived."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer

from kafkafmt.client import broker_connection, response_reader
from kafkafmt.client.broker_connection import BrokerConnection
from kafkafmt.client.io_thread import IoLoop

SIZE = 1_000_000
TIMEOUT_S = 30


class Clock:
    """The time of the connection, which tests set."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class KeptTimers(IoLoop):
    """A loop whose timers run when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._kept: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        handle = self.loop.call_later(3600, lambda: None)
        self._kept.append((handle, partial(callback, *args)))
        return handle

    def run_timers(self) -> None:
        kept, self._kept = self._kept, []
        for handle, callback in kept:
            if not handle.cancelled():
                handle.cancel()
                callback()


class Link:
    """A connection with one request, whose response the test sends in parts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.outcome: list[tuple[int | None, str]] = []
        ours, self.broker = socket.socketpair()
        ours.setblocking(False)

        async def opened() -> socket.socket:
            return ours

        config = {
            **KafkaProducer.DEFAULT_CONFIG,
            "api_version": (0, 9),  # no messages before the request
            "ssl_context": None,
            "request_timeout_ms": TIMEOUT_S * 1000,
            "socket_connection_setup_timeout_ms": 10_000,
        }
        self._has_changed = asyncio.Event()
        self._io = KeptTimers(asyncio.get_running_loop())
        self.connection = BrokerConnection(
            self._io, 1, "slow", config, opened, lambda _: self._has_changed.set()
        )

    async def request(self) -> None:
        await self._has_changed.wait()
        assert self.connection.is_ready
        self.connection.send([b"request"], 7, self._end)

    def _end(self, frame: memoryview | None, error: Exception | None) -> None:
        self.outcome.append((None if frame is None else len(frame), str(error)))

    async def send(self, data: bytes) -> None:
        """Send a part of the response. The connection reads what the selector reports."""
        self.broker.sendall(data)
        for _ in range(3):
            await asyncio.sleep(0)

    def pass_time(self) -> None:
        """Let the time of a request pass, and the connection check it."""
        self._clock.seconds += TIMEOUT_S - 1
        self._io.run_timers()
        self._clock.seconds += 2

    def close(self) -> None:
        self.connection.close()
        self.broker.close()


@pytest.fixture
def on_link(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Link], Any]], None]:
    clock = Clock()
    for module in (broker_connection, response_reader):
        monkeypatch.setattr(module, "time", clock)

    def run(scenario: Callable[[Link], Any]) -> None:
        async def whole() -> None:
            link = Link(clock)
            try:
                await link.request()
                await scenario(link)
            finally:
                link.close()

        asyncio.run(whole())

    return run


HEAD = struct.pack(">ii", SIZE, 7)


def test_response_when_it_takes_many_timeouts_and_bytes_arrive_in_each_then_it_is_taken(on_link: Any) -> None:
    async def scenario(link: Link) -> None:
        await link.send(HEAD + bytes(40_000))  # more than fits into the memory for small responses
        for _ in range(12):
            await link.send(bytes(5_000))  # less than the selector reports
            link.pass_time()
            assert not link.connection.is_closed
        left = SIZE - 4 - 40_000 - 12 * 5_000
        while left:
            await link.send(bytes(min(left, 50_000)))
            link.pass_time()
            left -= min(left, 50_000)
        assert link.outcome == [(SIZE, "None")]

    on_link(scenario)


@pytest.mark.parametrize("trickled", [0, 3])
def test_response_when_it_stops_or_only_trickles_then_the_connection_is_closed(
    on_link: Any, trickled: int
) -> None:
    async def scenario(link: Link) -> None:
        await link.send(HEAD + bytes(40_000))
        for _ in range(2):
            await link.send(bytes(trickled))
            link.pass_time()
        missing = SIZE - 4 - 40_000 - 2 * trickled
        text = f"fewer than 4 KiB of a response arrived, {missing} bytes are missing, within 30 s"
        ((size, error),) = link.outcome
        assert size is None
        assert text in error
        assert isinstance(link.connection.error, kafka.errors.RequestTimedOutError)

    on_link(scenario)
