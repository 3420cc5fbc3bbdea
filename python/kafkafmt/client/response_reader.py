"""Divides the bytes that a connection receives into responses, and gives each to its request.

A small response is copied. A large one is received into memory that its receiver chooses. A response with a sink is
passed on while it arrives, and is never whole here.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import kafka.errors as kafka_errors

from kafkafmt.client.sent_requests import AnsweredRequest, ResponseSink

_SIZE = struct.Struct(">i")
_SIZE_AND_ID = struct.Struct(">ii")
_ID_BYTES = 4
# A response that is passed on is read in pieces of this size, into memory that all connections of a thread share.
_PASSED_BYTES = 256 * 1024
# A response that is arriving has time again after so many bytes, so a peer cannot keep a request with single bytes.
_PROGRESS_BYTES = 4096


class _Connection(Protocol):
    """The connection whose responses are read."""

    is_closed: bool

    def on_response_end(self) -> None:
        """Is called after the request of a response has left the queue."""

    def close(self, error: Exception | None = None) -> None:
        """Close the connection."""


class ResponseReader:
    """The responses of one connection, in the order of its requests.

    in_flight: the requests that wait; the first one is removed once its response is whole.
    received: the memory for responses that fit into it, with their sizes.
    shared_memory: returns memory of a size for bytes that are passed on at once.

    is_paused: whether nothing more is given to requests.
    missing_bytes: of the large response that is being received; 0 if there is none.
    progress_at: the monotonic time in seconds when the last 4 KiB were complete; minus infinity before.
    """

    def __init__(
        self,
        in_flight: deque[AnsweredRequest],
        received: memoryview,
        max_frame_bytes: int,
        shared_memory: Callable[[int], memoryview],
        connection: _Connection,
    ) -> None:
        self.is_paused = False
        self.missing_bytes = 0
        self.progress_at = float("-inf")
        self._progress_bytes = 0
        self._in_flight = in_flight
        self._received = received
        self._max_frame_bytes = max_frame_bytes
        self._shared_memory = shared_memory
        self._connection = connection
        self._start = self._end = 0  # of the received bytes that are not parsed
        self._frame: memoryview | None = None  # a large response without a sink
        self._passed: memoryview | None = None  # the memory of the bytes of a sink

    def target(self) -> memoryview:
        """Return the memory for the next bytes."""
        if not self.missing_bytes:
            return self._received[self._end :]
        if self._frame is not None:
            return self._frame[-self.missing_bytes :]
        memory = self._sink().memory  # what was received before is passed on
        self._passed = (self._shared_memory(_PASSED_BYTES) if memory is None else memory)[
            : self.missing_bytes
        ]
        return self._passed

    def take(self, count: int) -> None:
        """Handle so many bytes that were read into the memory of `target`. Raises KafkaProtocolError."""
        self._progress_bytes += count
        if self._progress_bytes >= _PROGRESS_BYTES:
            self._progress_bytes, self.progress_at = 0, time.monotonic()
        if not self.missing_bytes:
            self._end += count
            self._take_frames()
        elif self._frame is None:
            passed, self._passed = self._passed, None
            assert passed is not None
            self._pass_on(passed[:count])
        else:
            self.missing_bytes -= count
            if not self.missing_bytes:
                frame, self._frame = self._frame, None
                self._respond(frame)

    def take_unread(self, count: int) -> bytes:
        """Return so many bytes that were read into the memory of `target`, which are no responses of `in_flight`."""
        return bytes(self._received[self._end : self._end + count])

    def take_left(self) -> None:
        """Handle the bytes that were received before a pause. Raises KafkaProtocolError."""
        self._pass_received()
        if not self.missing_bytes:
            self._take_frames()

    def close(self) -> None:
        """Give up the response that is being received."""
        self._frame, self._passed, self.missing_bytes = None, None, 0

    def _take_frames(self) -> None:
        """Return each response that is whole to its request. Read a large one into memory of its own."""
        while self._end - self._start >= _SIZE_AND_ID.size and not (
            self._connection.is_closed or self.is_paused
        ):
            size, correlation_id = _SIZE_AND_ID.unpack_from(self._received, self._start)
            self._ensure_expected(size, correlation_id)
            first = self._start + _SIZE.size
            request = self._in_flight[0]
            if request.sink is not None:
                self._start, self.missing_bytes = first, size
                request.sink.begin(size)
                self._pass_received()
                if self.missing_bytes:
                    break
            elif self._end - first >= size:
                self._start = first + size
                self._respond(memoryview(bytes(self._received[first : self._start])))
            elif _SIZE.size + size <= len(self._received):
                break
            else:
                count = self._end - first
                self._frame, self.missing_bytes = request.memory(size), size - count
                self._frame[:count] = self._received[first : self._end]
                self._start = self._end = 0
                return
        if self._start:
            left = self._end - self._start
            self._received[:left] = bytes(self._received[self._start : self._end])
            self._start, self._end = 0, left

    def _ensure_expected(self, size: int, correlation_id: int) -> None:
        if not _ID_BYTES <= size <= self._max_frame_bytes:
            raise kafka_errors.KafkaProtocolError(
                f"{self._connection}: a response of {size} bytes: expected {_ID_BYTES} to {self._max_frame_bytes} "
                "(receive_message_max_bytes)"
            )
        if not self._in_flight or self._in_flight[0].correlation_id != correlation_id:
            expected = self._in_flight[0].correlation_id if self._in_flight else "none"
            raise kafka_errors.CorrelationIdError(
                f"{self._connection}: a response with correlation id {correlation_id}: expected {expected}"
            )

    def _respond(self, frame: memoryview) -> None:
        request = self._in_flight.popleft()
        self._connection.on_response_end()
        request.on_response(frame, None)

    def _sink(self) -> ResponseSink:
        sink = self._in_flight[0].sink
        assert sink is not None
        return sink

    def _pass_received(self) -> None:
        """Pass on what was received of a response for a sink."""
        count = min(self.missing_bytes, self._end - self._start)
        if count and not self.is_paused:
            first = self._start
            self._start += count
            if self._start == self._end:
                self._start = self._end = 0
            self._pass_on(self._received[first : first + count])

    def _pass_on(self, data: memoryview) -> None:
        self.missing_bytes -= len(data)
        sink = self._sink()
        try:
            sink.take(data)
        except Exception as error:  # of bytes that it cannot read
            self._close_malformed(f"{error}")
        if self.missing_bytes or self._connection.is_closed:
            return
        self._in_flight.popleft()
        self._connection.on_response_end()
        try:
            sink.end(None)
        except Exception as error:
            sink.end(self._close_malformed(f"{error!r}"))  # its request is not in flight any more

    def _close_malformed(self, problem: str) -> Exception:
        malformed: Exception = kafka_errors.KafkaProtocolError(
            f"{self._connection}: a malformed response: {problem}"
        )
        self._connection.close(malformed)
        return malformed
