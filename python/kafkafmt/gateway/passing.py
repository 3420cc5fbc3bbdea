"""Requests that go through a gateway as they are. Their responses come back in the order of the requests.

Brokers may answer in another order if requests went to several. A connection whose response is not the next one is not
read further, so nothing is held but the bytes that were received already. The same holds for a client that reads
slowly: its brokers wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kafka.errors import KafkaError

from kafkafmt.gateway.errors import UpstreamError
from kafkafmt.records.channel import write_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.server.stream import Stream

SIZE_BYTES = 4


def framed(frame: memoryview) -> list[Buffer]:
    """Return a request with its size before it."""
    return [len(frame).to_bytes(SIZE_BYTES, "big"), frame]


class ExpectedResponse(Protocol):
    """A response that a client waits for, in its turn.

    is_begun: whether some of the response was written.
    """

    is_begun: bool

    def on_turn(self) -> None:
        """Begin to write: the response is the next one."""


class PassedResponses:
    """The responses that a client waits for. on_end: called with the reason if they cannot be completed."""

    def __init__(self, stream: Stream, write_timeout: float, on_end: Callable[[Exception], None]) -> None:
        self._stream = stream
        self._write_timeout = write_timeout
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ExpectedResponse] = deque()
        self._unwritten = bytearray()
        self._paused: set[BrokerConnection] = set()  # until the client reads more
        self._stalled: asyncio.TimerHandle | None = None
        self._changes: list[asyncio.Future[None]] = []
        self._idle_since = self._loop.time()

    @property
    def is_busy(self) -> bool:
        """Whether responses are on their way, or the client has not read all bytes of the last one."""
        return bool(self._waiting or self._unwritten)

    @property
    def idle_seconds(self) -> float:
        """The time since the client got its last response; 0 while it waits for one, or reads one."""
        return 0.0 if self.is_busy else self._loop.time() - self._idle_since

    def expect(self, response: ExpectedResponse) -> None:
        """Expect a response after those that are expected already."""
        self._waiting.append(response)

    async def wait_below(self, count: int) -> None:
        """Wait until fewer requests than `count` wait for their responses; with 1 until all bytes are written."""
        while len(self._waiting) >= count or (count == 1 and self._unwritten):
            changed = self._loop.create_future()
            self._changes.append(changed)
            await changed

    def close(self) -> None:
        """Write no more."""
        if self._unwritten:
            self._loop.remove_writer(self._stream.socket)
        if self._stalled is not None:
            self._stalled.cancel()
        self._waiting.clear()

    def is_next(self, response: ExpectedResponse) -> bool:
        """Return whether a response is the one to be written now."""
        return bool(self._waiting) and self._waiting[0] is response

    def write(self, connection: BrokerConnection | None, data: memoryview) -> None:
        """Write bytes of the next response. What the client does not take is kept; its connection pauses.

        connection: None for bytes that come from no broker.
        """
        taken = 0
        if not self._unwritten:
            try:
                taken = write_bytes(self._stream.socket, data)
            except OSError as error:
                self.fail(error)
                return
        if taken < len(data):
            if not self._unwritten:
                self._loop.add_writer(self._stream.socket, self._flush)
                self._stalled = self._loop.call_later(self._write_timeout, self._expire)
            self._unwritten += data[taken:]
            if connection is not None:
                self._paused.add(connection)
                connection.pause()

    def end(self) -> None:
        """Begin the next response: the current one is complete."""
        self._waiting.popleft()
        if not self._unwritten:
            self._begin_next()

    def fail(self, error: Exception) -> None:
        """Report that the responses cannot be completed."""
        self._on_end(UpstreamError(str(error)) if isinstance(error, KafkaError) else error)

    def _begin_next(self) -> None:
        self._idle_since = self._loop.time()
        if self._waiting:
            try:
                self._waiting[0].on_turn()
            except (
                Exception
            ) as error:  # nothing above a callback of the client's socket would end the connection
                self.fail(UpstreamError(f"a response cannot be written: {error!r}"))
                return
        for changed in self._changes:
            if not changed.done():
                changed.set_result(None)
        self._changes.clear()

    def _flush(self) -> None:
        try:
            taken = write_bytes(self._stream.socket, memoryview(self._unwritten))
        except OSError as error:
            self._loop.remove_writer(self._stream.socket)
            self.fail(error)
            return
        del self._unwritten[:taken]
        if taken and self._stalled is not None:
            self._stalled.cancel()
            self._stalled = self._loop.call_later(self._write_timeout, self._expire)
        if self._unwritten:
            return
        self._loop.remove_writer(self._stream.socket)
        if self._stalled is not None:
            self._stalled.cancel()
        paused, self._paused = self._paused, set()
        is_whole = not self._waiting or not self._waiting[0].is_begun
        for connection in paused:
            connection.resume()
        if is_whole:
            self._begin_next()

    def _expire(self) -> None:
        self.fail(ConnectionError(f"the client read nothing for {self._write_timeout:g} s"))


class PassedResponse:
    """One response on its way from a broker to a client: a `ResponseSink` of the broker's connection."""

    def __init__(self, responses: PassedResponses, connection: BrokerConnection) -> None:
        self.is_begun = False
        self._responses = responses
        self._connection = connection
        self._size: int | None = None

    @property
    def memory(self) -> None:
        """None: bytes are written to the client, or copied, while they are valid."""
        return None

    def begin(self, size: int) -> None:
        self._size = size
        if self._responses.is_next(self):
            self._write_size()
        else:
            self._connection.pause()

    def take(self, data: memoryview) -> None:
        self._responses.write(self._connection, data)

    def end(self, error: Exception | None) -> None:
        if error is None:
            self._responses.end()
        else:
            self._responses.fail(error)

    def on_turn(self) -> None:
        """Begin to write: the response is the next one."""
        if self._size is not None and not self.is_begun:
            self._write_size()
            self._connection.resume()

    def _write_size(self) -> None:
        assert self._size is not None
        self.is_begun = True
        self._responses.write(self._connection, memoryview(self._size.to_bytes(SIZE_BYTES, "big")))


class AlteringResponse(PassedResponse):
    """The response to a request that changes the configuration of topics.

    on_answer: called when the broker has answered, before the client knows.
    """

    def __init__(
        self, responses: PassedResponses, connection: BrokerConnection, on_answer: Callable[[], None]
    ) -> None:
        super().__init__(responses, connection)
        self._on_answer = on_answer

    def begin(self, size: int) -> None:
        self._on_answer()
        super().begin(size)


class MadeResponse:
    """A response that the gateway has made: a frame with its size."""

    def __init__(self, responses: PassedResponses, frame: bytes | bytearray) -> None:
        self.is_begun = False
        self._responses = responses
        self._frame = frame

    def on_turn(self) -> None:
        """Write the response, if it is the next one."""
        if self._responses.is_next(self) and not self.is_begun:
            self.is_begun = True
            self._responses.write(None, memoryview(self._frame))
            self._responses.end()
