"""The fetches of a consumer: what becomes of a response that is malformed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors

from _kafkafmt.server.fetching import FetchedPartition, encode_fetch_response
from client.fetch_config import FETCH_CONFIG
from kafkafmt.client.broker_fetches import BrokerFetches, FetchSettings
from kafkafmt.client.fetch_engine import FetchEngine
from kafkafmt.client.fetch_queue import FetchQueue
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.memory import MemoryBudget

VERSION = 11


class Connection:
    """A connection to a broker that notes why it was closed."""

    node_id = 1

    def __init__(self) -> None:
        self.error: Exception | None = None

    def throttle(self, throttle_time_ms: int) -> None:
        pass

    def close(self, error: Exception) -> None:
        self.error = error


def test_response_when_a_topic_is_not_utf8_then_its_connection_is_closed_and_its_memory_released() -> None:
    row = FetchedPartition(0, 0, 5, 5, 0, None, 0)
    frame = memoryview(b"".join(encode_fetch_response(VERSION, 1, [(b"\xff", [row])])))[4:]
    budget, connection = MemoryBudget(10_000), Connection()
    loop = asyncio.new_event_loop()
    try:
        control: Any = SimpleNamespace(config=FETCH_CONFIG)
        io: Any = IoLoop(loop)
        engine = FetchEngine(io, control, FetchQueue(), budget, lambda seconds: None)
        broker = engine._plan.brokers[1] = BrokerFetches(FetchSettings.of_config(FETCH_CONFIG))
        broker.is_in_flight = True
        reservation = budget.reserve(1000)
        engine._on_answer(connection, broker, VERSION, reservation, 0.0, frame, None)  # type: ignore[arg-type]
    finally:
        loop.close()
    assert isinstance(connection.error, kafka_errors.KafkaProtocolError)
    assert not broker.is_in_flight
    assert budget.held_bytes == 0
