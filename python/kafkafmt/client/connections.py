"""Connect the producer to brokers without waiting for the connection."""

from __future__ import annotations

from typing import Protocol


class Connections(Protocol):
    """The methods of kafka-python's KafkaNetClient that `connection_delay_ms` calls."""

    def is_ready(self, node_id: int | str) -> bool: ...
    def maybe_connect(self, node_id: int | str) -> None: ...
    def connection_delay(self, node_id: int | str) -> float: ...


def connection_delay_ms(client: Connections, node_id: int | str) -> float:
    """Return 0 if a request can be sent to a node now; else start to connect to it.

    Returns then in how many milliseconds to call again. That is infinity while the connection is being made, or takes
    no more requests: the client's poll returns once this has changed.
    """
    if client.is_ready(node_id):
        return 0.0
    client.maybe_connect(node_id)
    return client.connection_delay(node_id) * 1000 or float("inf")
