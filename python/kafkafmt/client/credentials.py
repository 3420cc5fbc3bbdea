"""Find out whether brokers refuse the credentials of a client.

Brokers close a connection after they have refused it. kafka-python may lose the answer then, and tries again until its
time is over. Connections of our own read the answer first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from kafkafmt.client.broker_connection import BrokerConnection
from kafkafmt.client.io_thread import IoLoop

if TYPE_CHECKING:
    import socket

    # Connects to a host and port.
    OpenSocketTo = Callable[[str, int], Awaitable[socket.socket]]

REFUSALS = (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
# A broker that says nothing in this time may be one that is starting.
_ANSWER_SECONDS = 5.0


def find_refusal(
    servers: Iterable[tuple[str, int]],
    config: Mapping[str, Any],
    open_socket: OpenSocketTo,
    timeout_s: float = _ANSWER_SECONDS,
) -> Exception | None:
    """Connect to the servers at once. Return the error of one that refuses, unless another one accepts.

    One may refuse what the others accept, as while a new user reaches the brokers. timeout_s: how long to wait for
    their answers, 5 s at most. Returns None if no server answers.
    """
    seconds = min(timeout_s, _ANSWER_SECONDS)
    with ThreadPoolExecutor(1, "credentials") as executor:  # the thread of the caller may have a loop
        return executor.submit(asyncio.run, _find_refusal([*servers], config, open_socket, seconds)).result()


async def _find_refusal(
    servers: list[tuple[str, int]], config: Mapping[str, Any], open_socket: OpenSocketTo, seconds: float
) -> Exception | None:
    io = IoLoop(asyncio.get_running_loop())
    is_decided = asyncio.Event()
    connections: list[BrokerConnection] = []

    def on_change(changed: BrokerConnection) -> None:
        if changed.is_ready or all(one.is_closed for one in connections):
            is_decided.set()

    for host, port in servers:
        opened = partial(open_socket, host, port)
        connections.append(BrokerConnection(io, -1, host, config, opened, on_change, logs_errors=False))
    try:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(is_decided.wait(), seconds)
        if any(one.is_ready for one in connections):
            return None
        return next((one.error for one in connections if isinstance(one.error, REFUSALS)), None)
    finally:
        for connection in connections:
            connection.close()
