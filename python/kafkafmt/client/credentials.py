"""Find out whether brokers refuse the credentials of a client.

Brokers close a connection after they have refused it. kafka-python may lose the answer then, and tries again until its
time is over. Connections of our own read the answer first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
    """Connect to the servers at once. Return the error of the first one that answers; None if that accepts.

    timeout_s: how long to wait for an answer, 5 s at most. Returns None if no server answers.
    """
    seconds = min(timeout_s, _ANSWER_SECONDS)
    with ThreadPoolExecutor(1, "credentials") as executor:  # the thread of the caller may have a loop
        return executor.submit(asyncio.run, _find_refusal([*servers], config, open_socket, seconds)).result()


async def _find_refusal(
    servers: list[tuple[str, int]], config: Mapping[str, Any], open_socket: OpenSocketTo, seconds: float
) -> Exception | None:
    loop = asyncio.get_running_loop()
    io = IoLoop(loop)
    answer: asyncio.Future[Exception | None] = loop.create_future()
    connections: list[BrokerConnection] = []

    def on_change(changed: BrokerConnection) -> None:
        is_refused = isinstance(changed.error, REFUSALS)
        is_last = all(one.is_closed for one in connections)
        if (is_refused or changed.is_ready or is_last) and not answer.done():
            answer.set_result(changed.error if is_refused else None)

    for host, port in servers:
        opened = partial(open_socket, host, port)
        connections.append(BrokerConnection(io, -1, host, config, opened, on_change, logs_errors=False))
    try:
        return await asyncio.wait_for(answer, seconds)
    except asyncio.TimeoutError:
        return None
    finally:
        for connection in connections:
            connection.close()
