"""The connections of one client: what is left of them once they are closed."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from typing import Any

from kafka import KafkaProducer

from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.client.io_thread import IoLoop

NODE = 1


class SilentBrokers:
    """Brokers that never accept a connection."""

    config = KafkaProducer.DEFAULT_CONFIG

    def address_of(self, node_id: int) -> tuple[str, int]:
        return "127.0.0.1", 9092

    def request_metadata(self) -> None:
        pass

    async def open_socket(self, host: str, port: int) -> socket.socket:
        never: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return await never


def test_connections_when_closed_then_no_timer_keeps_them() -> None:
    async def scenario() -> None:
        connections = BrokerConnections(IoLoop(asyncio.get_running_loop()), SilentBrokers(), lambda _: None)
        assert connections.get(NODE) is not None
        await asyncio.sleep(0)
        connections.close()
        kept = weakref.ref(connections)
        del connections
        await asyncio.sleep(0)  # the attempt to connect ends
        gc.collect()
        assert kept() is None

    asyncio.run(scenario())
