"""A connection of a gateway to one broker: requests, responses, and the errors of requests without a response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kafka import errors

from kafkafmt._util.sizes import MIB
from kafkafmt.client.sent_requests import new_memory
from kafkafmt.gateway.errors import (
    UnsupportedUpstreamError,
    UpstreamAuthenticationError,
    UpstreamError,
    UpstreamTimeoutError,
)
from kafkafmt.gateway.held import HeldResponse
from kafkafmt.server.frames import measure_response
from kafkafmt.server.wire import api_name, decode_response, encode_request_frame, response_class_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.server.request import Message
    from kafkafmt.server.request_memory import RequestLease

# The errors of connections whose credentials a broker has refused.
REFUSALS = (errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
# The fields of requests that state how long a broker may wait before it answers.
_WAITS_MS = ("rebalance_timeout_ms", "session_timeout_ms", "timeout_ms")
# The bytes of a response are held as they are received, and as the frame that is decoded. Later they are held encoded.
_DECODED_COPIES = 2
# The most bytes of a response that is held whole and is not counted. It is small: it has no records, and is not a
# client's.
_MOST_UNCOUNTED_BYTES = 64 * MIB
# Decoding a larger response takes more than 10 ms.
_LARGE_RESPONSE_BYTES = 64 * 1024

_Result = TypeVar("_Result")


class Upstream:
    """A connection to one broker that is ready. Callbacks and tasks of the event loop use it."""

    def __init__(
        self,
        connection: BrokerConnection,
        can_send: Callable[[BrokerConnection], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        self.connection = connection
        self._can_send = can_send
        self._timeout_s = timeout_s

    def version(self, api_key: int, newest: int) -> int:
        """Return the newest version of an API that the broker takes, up to `newest`.

        Raises UnsupportedUpstreamError.
        """
        versions = self.connection.versions
        assert versions is not None
        least, most = versions.api_versions.get(api_key, (0, -1))
        if not least <= min(most, newest):
            raise UnsupportedUpstreamError(
                f"{api_name(api_key)}: expected a broker that takes version {newest} or less, found {least} to {most}"
            )
        return int(min(most, newest))

    def versions(self) -> dict[int, range]:
        """Return the versions of each API that the broker takes. Kafka 4 lists Produce 0 to 2, but refuses them."""
        assert self.connection.versions is not None
        return {
            key: range(least, most + 1)
            for key, (least, most) in self.connection.versions.api_versions.items()
        }

    async def wait_free(self) -> None:
        """Wait until the connection takes a request. Raises UpstreamError."""
        await self._can_send(self.connection)

    def next_correlation_id(self) -> int:
        """Return the correlation id of the next request that the gateway makes."""
        return self.connection.next_correlation_id()

    async def request(
        self, pieces: Sequence[Buffer], correlation_id: int, broker_waits_s: float = 0.0
    ) -> memoryview:
        """Send a request, and return its response without the size. Raises UpstreamError.

        broker_waits_s: how long the broker itself may wait before it answers.
        """
        answered: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def on_response(response: memoryview | UpstreamError) -> None:
            if answered.done():
                return
            if isinstance(response, UpstreamError):
                answered.set_exception(response)
            else:
                answered.set_result(response)

        await self.begin(pieces, correlation_id, on_response, broker_waits_s)
        return await answered

    async def begin(
        self,
        pieces: Sequence[Buffer],
        correlation_id: int,
        on_response: Callable[[memoryview | UpstreamError], None],
        broker_waits_s: float = 0.0,
    ) -> None:
        """Send a request as `request` does, but do not wait for its response. Raises UpstreamError.

        on_response: called with the response without the size, or with the reason why there is none.
        """
        await self._can_send(self.connection)

        def take(response: memoryview | None, error: Exception | None) -> None:
            on_response(upstream_error(self.connection, error) if response is None else response)

        timeout_s = self._timeout_s + broker_waits_s
        self.connection.send(pieces, correlation_id, take, uncounted_memory, timeout_s)

    async def request_held(
        self,
        pieces: Sequence[Buffer],
        correlation_id: int,
        memory: RequestLease,
        broker_waits_s: float = 0.0,
        *,
        copies: int = 1,
    ) -> memoryview:
        """Send a request, and return its response, which is read once there is memory for it. Raises RequestError.

        copies: how many times the bytes of the response are held.
        """
        await self._can_send(self.connection)
        response = HeldResponse(self.connection, memory, copies)
        timeout_s = self._timeout_s + broker_waits_s
        self.connection.send_passing(pieces, correlation_id, response, timeout_s)
        try:
            return await response.wait()
        except errors.KafkaError as error:
            raise upstream_error(self.connection, error) from None

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Send a request that has no response. Raises UpstreamError."""
        await self._can_send(self.connection)
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_sent(error: Exception | None) -> None:
            if sent.done():
                return
            if error is not None or self.connection.is_closed:
                sent.set_exception(upstream_error(self.connection, error))
            else:
                sent.set_result(None)

        self.connection.send_unanswered(pieces, on_sent)
        await sent

    async def ask(
        self, message: Message, client_id: str | None = None, memory: RequestLease | None = None
    ) -> Message:
        """Send a message of kafka-python, and return the response. Raises RequestError.

        memory: takes the memory of the response before it is read, and that of its objects before it is decoded.
        """
        correlation_id = self.next_correlation_id()
        frame = encode_request_frame(message, correlation_id, client_id)
        waits_s = max(getattr(message, name, 0) or 0 for name in _WAITS_MS) / 1000
        if memory is None:
            response = await self.request([frame], correlation_id, waits_s)
        else:
            response = await self.request_held(
                [frame], correlation_id, memory, waits_s, copies=_DECODED_COPIES
            )
            response_class = response_class_of(message.API_KEY, message.API_VERSION)
            measure = partial(measure_response, response, response_class, message.API_VERSION)
            measured = await _call(measure, len(response))
            await memory.take(measured.decoded_bytes + measured.payload_bytes)
        decode = partial(decode_response, response, message.API_KEY, message.API_VERSION)
        return await _call(decode, len(response))


def uncounted_memory(size: int) -> memoryview:
    """Return memory for a response that is not counted. Raises KafkaProtocolError if it is too large."""
    if size > _MOST_UNCOUNTED_BYTES:
        raise errors.KafkaProtocolError(
            f"a response of {size} bytes: expected {_MOST_UNCOUNTED_BYTES} at most, without records"
        )
    return new_memory(size)


async def _call(function: Callable[[], _Result], size: int) -> _Result:
    """Call a function that reads a response of this size; in a thread if it takes long."""
    return await asyncio.to_thread(function) if size > _LARGE_RESPONSE_BYTES else function()


def upstream_error(connection: BrokerConnection, error: Exception | None) -> UpstreamError:
    """Return the error for a request that gets no response, for the reason that its connection gives."""
    reason = f"{connection}: closed" if error is None else str(error) or type(error).__name__
    if isinstance(error, errors.RequestTimedOutError):
        return UpstreamTimeoutError(reason)
    if isinstance(error, REFUSALS):
        return UpstreamAuthenticationError(f"{connection}: {reason}")
    return UpstreamError(reason)
