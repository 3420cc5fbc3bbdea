"""The messages of kafka-python that a connection exchanges before it is ready: requests, each with its response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.parser import KafkaProtocol

# The most bytes of a response before the connection is ready. Memory for it is taken at once, and the first bytes of
# HTTP and of TLS would be sizes of hundreds of megabytes.
_MAX_RESPONSE_BYTES = 1_000_000


class MessageExchange:
    """Sends one request at a time, and returns its response. All methods are called in the thread of the loop.

    name: of the connection, for errors.
    enqueue: sends bytes.

    lost: why the connection has ended; None while it has not.
    """

    def __init__(
        self,
        client_id: str,
        name: str,
        loop: asyncio.AbstractEventLoop,
        enqueue: Callable[[Sequence[bytes]], None],
    ) -> None:
        self.lost: Exception | None = None
        self._parser = KafkaProtocol(client_id=client_id, receive_message_max_bytes=_MAX_RESPONSE_BYTES)
        self._name = name
        self._loop = loop
        self._enqueue = enqueue
        self._response: asyncio.Future[Any] | None = None

    async def ask(self, request: Any) -> Any:
        """Send a request of kafka-python, and return the response. Raises the error of `lose`."""
        if self.lost is not None:
            raise self.lost
        self._parser.send_request(request)
        self._response = self._loop.create_future()
        self._enqueue([self._parser.send_bytes()])
        return await self._response

    def take(self, received: bytes) -> None:
        """Handle received bytes. Raises KafkaProtocolError."""
        try:
            responses = self._parser.receive_bytes(received)
        except kafka_errors.KafkaError:
            raise
        except Exception as error:  # the decoders of some fields raise others
            raise kafka_errors.KafkaProtocolError(f"{self._name}: a malformed response: {error!r}") from error
        for _, response in responses:
            if self._response is None or self._response.done():
                raise kafka_errors.KafkaProtocolError(f"{self._name}: a response that no request waits for")
            self._response.set_result(response)

    def lose(self, error: Exception) -> None:
        """End the exchange, as the connection has ended. Responses that were received before are returned."""
        self.lost = error
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
