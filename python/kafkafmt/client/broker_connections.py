"""The connections of our own of one client: at most one for each broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt.client.broker_connection import RECEIVE_BYTES, BrokerConnection

if TYPE_CHECKING:
    import asyncio
    import socket

    from kafkafmt.client.io_thread import IoLoop


class Brokers(Protocol):
    """The brokers of a cluster, and how to connect to them. config: the options of a client of kafka-python."""

    @property
    def config(self) -> Mapping[str, Any]: ...

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the host and port of a broker; None if it is not known."""

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it."""

    async def open_socket(self, host: str, port: int) -> socket.socket:
        """Return a connected, non-blocking socket."""


class BrokerConnections:
    """Connections by node, made when they are first asked for. Only callbacks in the I/O thread call it.

    After a failure the next attempt waits for `reconnect_backoff_ms`, which doubles with each failure up to
    `reconnect_backoff_max_ms` (KIP-144).

    on_change: called when a connection becomes ready, takes requests again or is closed, and when an attempt is due.
    receive_bytes: of the memory of each connection for what is received.
    """

    def __init__(
        self,
        io: IoLoop,
        brokers: Brokers,
        on_change: Callable[[BrokerConnection | None], None],
        receive_bytes: int = RECEIVE_BYTES,
    ) -> None:
        self._io = io
        self._receive_bytes = receive_bytes
        self._brokers = brokers
        self._on_change = on_change
        self._connections: dict[int, BrokerConnection] = {}
        self._failures: dict[int, int] = {}
        self._next_attempt: dict[int, float] = {}
        # Cancelled with their connections: a timer of ten minutes would keep the closed client of a gateway in memory.
        self._idle_timers: dict[BrokerConnection, asyncio.TimerHandle] = {}
        self._is_closed = False
        self._max_idle_s = brokers.config["connections_max_idle_ms"] / 1000

    def get(self, node_id: int) -> BrokerConnection | None:
        """Return the connection to a node, which may not be ready yet; None while no attempt is due."""
        connection = self._connections.get(node_id)
        if connection is not None:
            return connection
        if self._is_closed or time.monotonic() < self._next_attempt.get(node_id, 0):
            return None
        address = self._brokers.address_of(node_id)
        if address is None:
            self._brokers.request_metadata()
            return None
        host, port = address
        connection = BrokerConnection(
            self._io,
            node_id,
            host,
            self._brokers.config,
            partial(self._brokers.open_socket, host, port),
            self._changed,
            self._receive_bytes,
        )
        self._connections[node_id] = connection
        self._close_if_idle_in(self._max_idle_s, connection)
        return connection

    def ready(self, node_id: int) -> BrokerConnection | None:
        """Return the connection to a node if it takes a request now; else None. Connects to the node if needed."""
        connection = self.get(node_id)
        return connection if connection is not None and connection.can_send else None

    def all(self) -> list[BrokerConnection]:
        """Return the connections that are open or being made."""
        return list(self._connections.values())

    def close(self) -> None:
        """Close all connections. No more are made."""
        self._is_closed = True
        for connection in self.all():
            connection.close()

    def _close_if_idle_in(self, seconds: float, connection: BrokerConnection) -> None:
        self._idle_timers[connection] = self._io.call_later(seconds, self._close_idle, connection)

    def _close_idle(self, connection: BrokerConnection) -> None:
        """Close a connection that was not used for `connections_max_idle_ms`."""
        idle_s = time.monotonic() - connection.last_activity
        if idle_s >= self._max_idle_s and not connection.in_flight_count:
            connection.close()
        else:
            self._close_if_idle_in(max(self._max_idle_s - idle_s, 1), connection)

    def _changed(self, connection: BrokerConnection) -> None:
        node_id = connection.node_id
        if connection.is_ready:
            self._failures.pop(node_id, None)
            self._next_attempt.pop(node_id, None)
        if connection.is_closed:
            if (timer := self._idle_timers.pop(connection, None)) is not None:
                timer.cancel()
            if self._connections.get(node_id) is connection:
                del self._connections[node_id]
            if connection.error is not None and not self._is_closed:
                self._delay(node_id)
                self._brokers.request_metadata()
        self._on_change(connection)

    def _delay(self, node_id: int) -> None:
        failures = self._failures[node_id] = self._failures.get(node_id, 0) + 1
        config = self._brokers.config
        backoff_ms = min(
            config["reconnect_backoff_ms"] * 2 ** min(failures - 1, 32), config["reconnect_backoff_max_ms"]
        )
        delay_s = backoff_ms * random.uniform(0.8, 1.2) / 1000
        self._next_attempt[node_id] = time.monotonic() + delay_s
        self._io.call_later(delay_s, self._on_change, None)
