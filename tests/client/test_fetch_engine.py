"""The fetches of a consumer: responses that are malformed, and those that ask the client to wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest

from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from client.fetch_config import FETCH_CONFIG
from kafkafmt.client.broker_fetches import BrokerFetches, FetchSettings
from kafkafmt.client.fetch_engine import FetchEngine
from kafkafmt.client.fetch_queue import FetchQueue
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.memory import MemoryBudget

VERSION = 11


class Connection:
    """A connection to a broker that notes why it was closed, and how long it waits."""

    node_id = 1

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.throttled_ms = 0

    def throttle(self, throttle_time_ms: int) -> None:
        self.throttled_ms = throttle_time_ms

    def close(self, error: Exception) -> None:
        self.error = error


def answer(connection: Connection, budget: MemoryBudget, frame: bytes, version: int) -> BrokerFetches:
    """Let an engine receive this response. Return the fetches of its broker."""
    loop = asyncio.new_event_loop()
    try:
        control: Any = SimpleNamespace(config=FETCH_CONFIG)
        io: Any = IoLoop(loop)
        engine = FetchEngine(io, control, FetchQueue(), budget, lambda seconds: None)
        broker = engine._plan.brokers[1] = BrokerFetches(FetchSettings.of_config(FETCH_CONFIG))
        broker.is_in_flight = True
        reservation = budget.reserve(1000)
        engine._on_answer(connection, broker, version, reservation, 0.0, memoryview(frame), None)  # type: ignore[arg-type]
    finally:
        loop.close()
    return broker


def test_response_when_a_topic_is_not_utf8_then_its_connection_is_closed_and_its_memory_released() -> None:
    row = FetchedPartition(0, 0, 5, 5, 0, None, 0)
    frame = b"".join(encode_fetch_response(VERSION, 1, [(b"\xff", [row])]))[4:]
    budget, connection = MemoryBudget(10_000), Connection()
    broker = answer(connection, budget, frame, VERSION)
    assert isinstance(connection.error, kafka_errors.KafkaProtocolError)
    assert not broker.is_in_flight
    assert budget.held_bytes == 0


@pytest.mark.parametrize(("version", "throttled_ms"), [(7, 0), (8, 9)])
def test_response_when_the_broker_has_waited_itself_then_the_client_does_not_wait_again(
    version: int, throttled_ms: int
) -> None:
    """KIP-219"""
    frame = bytearray(b"".join(encode_fetch_response(version, 1, []))[4:])
    frame[4:8] = (9).to_bytes(4, "big")  # throttle_time_ms
    connection = Connection()
    answer(connection, MemoryBudget(10_000), bytes(frame), version)
    assert (connection.throttled_ms, connection.error) == (throttled_ms, None)
