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
    OpenSocket = Callable[[str, int], Awaitable[socket.socket]]

REFUSALS = (kafka_errors.SaslAuthenticationFailedError, kafka_errors.UnsupportedSaslMechanismError)
# A broker that says nothing in this time may be one that is starting.
_SECONDS = 5.0


def refusal(
    servers: Iterable[tuple[str, int]], config: Mapping[str, Any], open_socket: OpenSocket
) -> Exception | None:
    """Connect to the servers at once. Return the error of one that refuses the credentials; None without one."""
    with ThreadPoolExecutor(1, "credentials") as executor:  # the thread of the caller may have a loop
        return executor.submit(asyncio.run, _refusal([*servers], config, open_socket)).result()


async def _refusal(
    servers: list[tuple[str, int]], config: Mapping[str, Any], open_socket: OpenSocket
) -> Exception | None:
    io = IoLoop(asyncio.get_running_loop())

    async def outcome(host: str, port: int) -> Exception | None:
        has_changed = asyncio.Event()
        opened = partial(open_socket, host, port)
        connection = BrokerConnection(io, -1, host, config, opened, lambda _: has_changed.set(), logs=False)
        try:
            await asyncio.wait_for(has_changed.wait(), _SECONDS)
        except asyncio.TimeoutError:
            return None
        finally:
            error = connection.error
            connection.close()
        return error

    outcomes = await asyncio.gather(*(outcome(*server) for server in servers))
    return next((error for error in outcomes if isinstance(error, REFUSALS)), None)
