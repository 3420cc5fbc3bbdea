"""Connections of the producer to brokers, which are made while other things go on."""

from __future__ import annotations

from typing import Protocol


class Connections(Protocol):
    """What is asked of kafka-python's KafkaNetClient."""

    def is_ready(self, node_id: int | str) -> bool: ...
    def maybe_connect(self, node_id: int | str) -> None: ...
    def connection_delay(self, node_id: int | str) -> float: ...


def connection_delay_ms(client: Connections, node_id: int | str) -> float:
    """0 where a request can go to a node at once; else has it connected to, and says when to ask again, in ms.

    Infinity while it is being connected to, or takes no more requests: what ends that wakes whoever polls the client.
    """
    if client.is_ready(node_id):
        return 0.0
    client.maybe_connect(node_id)
    return client.connection_delay(node_id) * 1000 or float("inf")
