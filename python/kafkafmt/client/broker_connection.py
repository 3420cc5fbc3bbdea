"""A connection of our own to a broker, for the requests that carry records.

Requests are sent as pieces, without joining them, and pipelined. Responses are returned in the order of the requests,
in memory that the receiver of the response may choose. kafka-python's messages are used until the connection is ready.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from kafkafmt.client.errors import connection_error
from kafkafmt.client.handshake import authenticate, negotiate_versions, uses_sasl
from kafkafmt.client.message_exchange import MessageExchange
from kafkafmt.client.response_reader import ResponseReader
from kafkafmt.client.sent_requests import (
    AnsweredRequest,
    OnResponse,
    OnSent,
    ResponseSink,
    UnansweredRequest,
    new_memory,
)
from kafkafmt.client.tls import handshake
from kafkafmt.client.unsent_bytes import UnsentBytes

if TYPE_CHECKING:
    from kafka.protocol.broker_version_data import BrokerVersionData
    from typing_extensions import Buffer

    from kafkafmt.client.io_thread import IoLoop

log = logging.getLogger(__name__)

# Opens a connected, non-blocking socket.
OpenSocket = Callable[[], Awaitable[socket.socket]]

RECEIVE_BYTES = 32 * 1024
# Of a large response the selector reports so many bytes at once, or all that are left.
_AWAITED_BYTES = 256 * 1024
# After so many reads the other connections have their turn.
_MAX_READS = 16
_MAX_CORRELATION_ID = 2**31 - 1
_WAITS = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BrokerConnection:
    """A connection to one broker. Only callbacks in the I/O thread call it.

    node_id, host: of the broker.
    config: the options of a client of kafka-python, with an SSL context if it uses TLS.
    open_socket: connects to the broker.
    on_change: called when the connection becomes ready, takes requests again, or is closed.
    logs_errors: whether the error that closes the connection is logged.
    receive_bytes: of the memory for what is received. Larger responses get memory of their own, or go to their sinks.

    versions: the versions of APIs that the broker knows, once the connection is ready.
    versions_response: the response of kafka-python that has told them; None if the broker was not asked.
    error: why the connection was closed; None while it is not, and after a `close` without an error.
    """

    def __init__(
        self,
        io: IoLoop,
        node_id: int,
        host: str,
        config: Mapping[str, Any],
        open_socket: OpenSocket,
        on_change: Callable[[BrokerConnection], None],
        receive_bytes: int = RECEIVE_BYTES,
        *,
        logs_errors: bool = True,
    ) -> None:
        self.node_id = node_id
        self.versions: BrokerVersionData | None = None
        self.versions_response: Any = None
        self.error: Exception | None = None
        self.is_closed = False
        self.last_activity = time.monotonic()
        self._io, self._logs_errors = io, logs_errors
        self._host = host
        self._config = config
        self._open_socket = open_socket
        self._on_change = on_change
        self._socket: Any = None
        self._is_ready = False
        self._exchange: MessageExchange | None = None  # until the connection is ready
        self._drained: asyncio.Future[None] | None = None
        self._in_flight: deque[AnsweredRequest] = deque()
        self._max_in_flight = config["max_in_flight_requests_per_connection"]
        self._max_frame_bytes = config["receive_message_max_bytes"]
        self._timeout_s: float = config["request_timeout_ms"] / 1000
        self._correlation_id = 0
        self._throttled_until = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._unsent = UnsentBytes()
        self._unanswered: deque[UnansweredRequest] = deque()
        self._is_writer = False
        self._is_corked = False
        self._responses = ResponseReader(
            self._in_flight,
            memoryview(bytearray(receive_bytes)),
            self._max_frame_bytes,
            io.shared_memory,
            self,
        )
        self._resuming: asyncio.Handle | None = None  # ends the pause
        self._awaited_bytes = 1  # before the selector reports the socket as readable
        self._task = io.loop.create_task(self._connect())

    # State

    @property
    def is_ready(self) -> bool:
        """Whether the broker has accepted the connection and its credentials."""
        return self._is_ready

    @property
    def can_send(self) -> bool:
        """Whether a request may be sent now."""
        return (
            self._is_ready
            and self._exchange is None
            and len(self._in_flight) + len(self._unanswered) < self._max_in_flight
            and not (self._throttled_until and time.monotonic() < self._throttled_until)
        )

    @property
    def has_unsent(self) -> bool:
        """Whether the system has not taken all bytes of the requests yet."""
        return bool(self._unsent)

    @property
    def in_flight_count(self) -> int:
        """The number of requests that wait for a response."""
        return len(self._in_flight)

    def throttle(self, throttle_time_ms: int) -> None:
        """Send no request for so many milliseconds, as a response of the broker asked for (KIP-219)."""
        if throttle_time_ms <= 0 or self.is_closed:
            return
        until = time.monotonic() + throttle_time_ms / 1000
        if until > self._throttled_until:
            self._throttled_until = until
            self._set_timer("throttle", throttle_time_ms / 1000, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttled_until = 0.0
        self._on_change(self)

    @property
    def is_receiving(self) -> bool:
        """Whether a large response is arriving."""
        return self._responses.missing_bytes > 0

    # Requests

    def next_correlation_id(self) -> int:
        """Return the correlation id for the header of the next request."""
        self._correlation_id = self._correlation_id + 1 if self._correlation_id < _MAX_CORRELATION_ID else 0
        return self._correlation_id

    def send(
        self,
        pieces: Sequence[Buffer],
        correlation_id: int,
        on_response: OnResponse,
        memory: Callable[[int], memoryview] = new_memory,
        timeout_s: float | None = None,
    ) -> None:
        """Send a request, which waits for a response. `can_send` must be true.

        pieces: the bytes of the request with its size, in order. They must not change before the response.
        memory: returns the memory for a large response. A small one is copied.
        timeout_s: how long to wait for the response instead of `request_timeout_ms`.
        """
        deadline = self._deadline(timeout_s)
        self._in_flight.append(AnsweredRequest(correlation_id, on_response, deadline, memory))
        self._enqueue(pieces)

    def send_passing(
        self,
        pieces: Sequence[Buffer],
        correlation_id: int,
        sink: ResponseSink,
        timeout_s: float | None = None,
    ) -> None:
        """Send a request whose response a sink takes while it arrives. `can_send` must be true.

        No more of a response is read while the connection is paused.
        timeout_s: how long to wait for the response instead of `request_timeout_ms`; infinite for no limit.
        """

        def on_error(_: memoryview | None, error: Exception | None) -> None:
            sink.end(error)

        deadline = self._deadline(timeout_s)
        self._in_flight.append(AnsweredRequest(correlation_id, on_error, deadline, new_memory, sink))
        self._enqueue(pieces)

    def pause(self) -> None:
        """Read no more until `resume`. Responses wait meanwhile; their time does not count."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        elif not self._responses.is_paused and not self.is_closed:
            self._responses.is_paused = True
            self._io.loop.remove_reader(self._socket)

    def resume(self) -> None:
        """Read again. The next responses are handled by the next callback."""
        if self._responses.is_paused and self._resuming is None and not self.is_closed:
            self._resuming = self._io.loop.call_soon(self._take_left)

    def send_unanswered(self, pieces: Sequence[Buffer], on_sent: OnSent) -> None:
        """Send a request that has no response. `on_sent` is called once the system has its bytes, or with an error."""
        self._enqueue(pieces)
        if self.is_closed:
            on_sent(self.error)
        elif self._unsent:
            self._unanswered.append(UnansweredRequest(self._unsent.bytes_queued, on_sent, self._deadline()))
        else:
            on_sent(None)

    def _deadline(self, timeout_s: float | None = None) -> float:
        """Return the time at which a request of now has timed out, and check it then."""
        if "timeout" not in self._timers:
            self._set_timer("timeout", self._timeout_s, self._check_timeout)
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _check_timeout(self) -> None:
        """Close the connection if its oldest request has no response in time, or is not sent in time.

        While a response arrives, the timeout begins again whenever 4 KiB of it have arrived.
        """
        if self.is_receiving and not self._responses.is_paused:
            self._on_readable()  # the selector does not report fewer bytes than `_await_much` says
            if self.is_closed:
                return
        if self._responses.is_paused:
            self._set_timer("timeout", self._timeout_s, self._check_timeout)
            return
        if not (self._in_flight or self._unanswered):
            return
        never, progress_at = float("inf"), self._responses.progress_at
        answered_by = (
            max(self._in_flight[0].deadline, progress_at + self._timeout_s) if self._in_flight else never
        )
        deadline = min(answered_by, self._unanswered[0].deadline if self._unanswered else never)
        left_s = deadline - time.monotonic()
        if left_s > 0:
            # The oldest request may have more time than those after it.
            self._set_timer("timeout", min(left_s, self._timeout_s), self._check_timeout)
        elif self.is_receiving:
            self._time_out(
                f"fewer than 4 KiB of a response arrived, {self._responses.missing_bytes} bytes are missing,"
            )
        else:
            self._time_out("no response" if deadline == answered_by else "not sent")

    def _time_out(self, failure: str) -> None:
        reason = f"{self}: {failure} within {self._timeout_s:g} s (request_timeout_ms)"
        self.close(kafka_errors.RequestTimedOutError(reason))

    # Connect and authenticate

    async def _connect(self) -> None:
        timeout_s = self._config["socket_connection_setup_timeout_ms"] / 1000
        try:
            await asyncio.wait_for(self._open(), timeout_s)
        except asyncio.TimeoutError:
            self.close(kafka_errors.KafkaConnectionError(f"{self}: not connected within {timeout_s:g} s"))
            return
        except Exception as error:
            self.close(connection_error(self, error))
            return
        self._is_ready = True
        self._on_change(self)

    async def _open(self) -> None:
        connected = await self._open_socket()
        context = self._config["ssl_context"]
        if context is not None:
            connected = await handshake(self._io.loop, context, connected, self._host)
        if self.is_closed:  # just after it was connected: this task is not cancelled yet
            connected.close()
            raise kafka_errors.Cancelled(f"{self}: closed")
        self._socket = connected
        self._io.loop.add_reader(self._socket, self._on_readable)
        await self._negotiate()

    async def _negotiate(self) -> None:
        """Exchange the messages that come before the requests of `send`: at first, and when a SASL session ends."""
        exchange = self._exchange = MessageExchange(
            self._config["client_id"], str(self), self._io.loop, self._enqueue
        )
        if self.versions is None:
            self.versions, self.versions_response = await negotiate_versions(exchange.ask, self._config)
        if uses_sasl(self._config):
            again_in_s = await authenticate(exchange.ask, self.versions, self._host, self._config)
            if again_in_s is not None:
                self._set_timer("authenticate", again_in_s, self._begin_authentication)
        self._exchange = None
        if exchange.lost is not None:
            raise exchange.lost

    def _begin_authentication(self) -> None:
        self._task = self._io.loop.create_task(self._authenticate_again())

    async def _authenticate_again(self) -> None:
        """Authenticate once no request is in flight (KIP-368). Requests wait meanwhile."""
        self._is_ready = False
        try:
            if self._in_flight:
                self._drained = self._io.loop.create_future()
                await self._drained
            await asyncio.wait_for(self._negotiate(), self._timeout_s)
        except asyncio.TimeoutError:
            self._time_out("not authenticated again")
            return
        except Exception as error:
            self.close(connection_error(self, error))
            return
        self._is_ready = True
        self._on_change(self)

    # Write

    def _enqueue(self, pieces: Sequence[Buffer]) -> None:
        self._unsent.append(pieces)
        if not self._is_writer and not self._is_corked:
            self._write()

    def cork(self) -> None:
        """Keep what is sent from now on until `uncork`, which writes it together."""
        self._is_corked = True

    def uncork(self) -> None:
        """Write what was kept since `cork`."""
        self._is_corked = False
        if self._unsent and not self._is_writer and not self.is_closed:
            self._write()

    def _write(self) -> None:
        """Write until all is sent, or the socket takes no more."""
        try:
            while self._unsent:
                self._unsent.send(self._socket)
                self.last_activity = time.monotonic()
                while self._unanswered and self._unanswered[0].end <= self._unsent.bytes_sent:
                    self._unanswered.popleft().on_sent(None)
        except _WAITS:
            if not self._is_writer:
                self._is_writer = True
                self._io.loop.add_writer(self._socket, self._write)
            return
        except OSError as error:
            self.close(connection_error(self, error))
            return
        if self._is_writer:
            self._is_writer = False
            self._io.loop.remove_writer(self._socket)

    # Read

    def _on_readable(self) -> None:
        responses = self._responses
        try:
            for _ in range(_MAX_READS):
                target = responses.target()
                count = self._socket.recv_into(target)
                if not count:
                    self._lose(kafka_errors.KafkaConnectionError(f"{self}: the broker closed the connection"))
                    return
                is_large = responses.missing_bytes > 0
                self._take(count)
                if self.is_closed or responses.is_paused:
                    return
                # A large response seldom has bytes after it. The selector reports those.
                is_last = count < len(target) or (is_large and not responses.missing_bytes)
                if is_last and not isinstance(self._socket, ssl.SSLSocket):
                    break
        except _WAITS:
            pass
        except (OSError, kafka_errors.KafkaError) as error:
            self._lose(connection_error(self, error))
            return
        if not isinstance(self._socket, ssl.SSLSocket):
            self._await_much()
        # The selector does not report bytes that TLS has decrypted already.
        elif self._socket.pending():
            self._io.loop.call_soon(self._read_pending)

    def _await_much(self) -> None:
        """Let the selector report a large response only when much of it has arrived, or the connection has ended."""
        awaited = min(self._responses.missing_bytes, _AWAITED_BYTES) or 1
        if awaited != self._awaited_bytes:
            self._awaited_bytes = awaited
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, awaited)

    def _read_pending(self) -> None:
        if not (self.is_closed or self._responses.is_paused):
            self._on_readable()

    def _lose(self, error: Exception) -> None:
        """Close the connection, which the broker has ended.

        While messages are exchanged, their last response may tell why. So it is handled first.
        """
        if self._exchange is None:
            self.close(error)
            return
        self._io.loop.remove_reader(self._socket)
        self._exchange.lose(error)

    def _take(self, count: int) -> None:
        """Handle the bytes that were read into the memory of `ResponseReader.target`."""
        self.last_activity = time.monotonic()
        if self._exchange is not None:
            self._exchange.take(self._responses.take_unread(count))
        else:
            self._responses.take(count)

    def on_response_end(self) -> None:
        """End the wait for the responses of all requests, if this was the last one."""
        if self._drained is not None and not self._in_flight and not self._drained.done():
            self._drained.set_result(None)

    def _take_left(self) -> None:
        """End a pause: handle the bytes that were received before it, then read."""
        self._resuming = None
        if self.is_closed:
            return
        self._responses.is_paused = False
        self._io.loop.add_reader(self._socket, self._on_readable)
        self.last_activity = time.monotonic()
        try:
            self._responses.take_left()
        except kafka_errors.KafkaError as error:
            self._lose(error)
            return
        # What has arrived may be less than the selector reports, and TLS may have decrypted it already.
        self._read_pending()

    # Close

    def close(self, error: Exception | None = None) -> None:
        """Close the connection. Requests without a response get the error, in order."""
        if self.is_closed:
            return
        self.is_closed, self._is_ready, self.error = True, False, error
        if error is not None and self._logs_errors:
            log.warning("connection to %s: %s", self, error)
        for timer in self._timers.values():
            timer.cancel()
        self._task.cancel()
        if self._socket is not None:
            self._io.loop.remove_reader(self._socket)
            self._io.loop.remove_writer(self._socket)
            self._socket.close()
        self._unsent.clear()
        self._responses.close()
        lost = error or kafka_errors.Cancelled(f"{self}: closed")
        while self._in_flight:
            self._in_flight.popleft().on_response(None, lost)
        while self._unanswered:
            self._unanswered.popleft().on_sent(lost)
        self._on_change(self)

    def _set_timer(self, name: str, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` in `seconds`, unless the connection is closed. A timer replaces the one of its name."""

        def run() -> None:
            del self._timers[name]
            callback()

        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._io.call_later(seconds, run)

    def __str__(self) -> str:
        return f"broker {self.node_id} ({self._host})"
