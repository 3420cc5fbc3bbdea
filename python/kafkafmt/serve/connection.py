"""One connection: a request is read, answered, and its response sent, before the next one is looked at.

So responses are in the order of their requests, as clients that pipeline want them. What cannot be answered as the
protocol says closes the connection, and no other.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from kafka.protocol.api_key import ApiKey

from kafkafmt.channel import write_bytes
from kafkafmt.serve.batch_work import BatchWork
from kafkafmt.serve.fetching import RECORDS_BYTES, Fetching
from kafkafmt.serve.frames import Measured, TooManyElementsError, measure
from kafkafmt.serve.logs import bind_client_id
from kafkafmt.serve.memory import DownConversionMemory
from kafkafmt.serve.metrics import Metrics, Outcome, Refusal
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.request import Handler, Request
from kafkafmt.serve.request_memory import (
    ANSWER_ELEMENT_BYTES,
    LEAST_MOVED_BYTES,
    OWN_BYTES,
    PATIENCE_SECONDS,
    REQUEST_COPIES,
    RequestLease,
    RequestMemory,
)
from kafkafmt.serve.security.sasl import (
    FAILED_AUTHENTICATION_DELAY,
    MAX_OPEN_FRAME_BYTES,
    SaslSession,
    refusing_handlers,
)
from kafkafmt.serve.stream import StalledError, Stream
from kafkafmt.serve.turns import Turns
from kafkafmt.serve.wire import (
    HEAD_BYTES,
    Frame,
    UnsupportedRequestError,
    api_name,
    decode_request,
    encode_response_by_turns,
    request_class_of,
)

if TYPE_CHECKING:
    from kafkafmt.fetch_response import FetchSend, ResponsePart

_Made = TypeVar("_Made")

_log = structlog.get_logger()

_SIZE = struct.Struct(">i")
# Requests with more elements, and larger ones, are decoded in a thread: in the loop it would take more than 10 ms.
_MANY_ELEMENTS, _LARGE_FRAME_BYTES = 1000, 64 * 1024
# So small a frame takes no more, decoded and answered, than its connection has of its own.
_SMALL_FRAME_BYTES = 256
# For so many seconds memory that others wait for is held by a client that takes nothing.
_PATIENCE = 1.0
_PIECE_BYTES = 128  # of a piece of a response that is sent, beside its bytes


class RefusedError(Exception):
    """The connection is closed for what the client did."""

    def __init__(self, message: str, reason: Refusal = "request") -> None:
        super().__init__(message)
        self.reason: Refusal = reason


@dataclass(frozen=True)
class Service:
    """What the connections of an endpoint share."""

    options: ServeOptions
    handlers: Mapping[int, Handler]
    fetching: Fetching
    work: BatchWork
    memory: DownConversionMemory
    metrics: Metrics
    request_memory: RequestMemory


class Connection:
    """Serves one client until it goes, misbehaves, or is told to go."""

    def __init__(self, stream: Stream, service: Service) -> None:
        self._stream = stream
        self._service = service
        self._options = service.options
        users = service.options.users
        self._sasl = None if users is None else SaslSession(users)
        self._handlers = dict(service.handlers) | (
            refusing_handlers() if self._sasl is None else self._sasl.handlers()
        )
        self._lease = service.memory.lease()
        self._memory = service.request_memory.lease()
        self._is_draining = False
        self.is_busy = False

    async def serve(self) -> None:
        """Raises ConnectionError and OSError where the client has gone or stalls, RefusedError and RequestError."""
        while not self._is_draining:
            size = await self._read_size()
            if self._sasl is not None and self._sasl.expects_bare_token:
                await self._answer_token(self._sasl, await self._read(size))
            else:
                try:
                    await self._answer_next(size)
                finally:
                    self._memory.keep(0)
            if self._sasl is not None and self._sasl.failure is not None:
                await asyncio.sleep(FAILED_AUTHENTICATION_DELAY)
                raise RefusedError(self._sasl.failure, "sasl")

    async def _answer_next(self, size: int) -> None:
        request = await self._read_request(size)
        request.memory = self._memory
        self.is_busy = True
        try:
            await self._answer(request)
        finally:
            self.is_busy = False

    def drain(self) -> None:
        """End behind the response that is being made or sent."""
        self._is_draining = True

    @property
    def _is_known(self) -> bool:
        """Is it known who the client is, if it has to say so?"""
        return self._sasl is None or self._sasl.principal is not None

    async def _read_size(self) -> int:
        timeout = self._options.idle_timeout if self._is_known else self._options.request_timeout
        (size,) = _SIZE.unpack(await self._stream.read(_SIZE.size, timeout))
        most = self._options.largest_request_bytes if self._is_known else MAX_OPEN_FRAME_BYTES
        if not 0 < size <= most:
            raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")
        return int(size)

    async def _read(self, size: int) -> bytes:
        return await self._stream.read(size, self._options.request_timeout)

    async def _read_request(self, size: int) -> Request:
        """A request, of which the API is looked at before its body is read: what a client may not ask for is not."""
        head = await self._stream.peek(min(HEAD_BYTES, size), self._options.request_timeout)
        request_class, version, is_version_known = request_class_of(head)
        self._check_allowed(request_class.API_KEY, size)
        frame = await self._read_frame(size)
        if size > _SMALL_FRAME_BYTES and is_version_known:
            measured = await self._measured(frame, request_class, version)
            await self._take_for(size, measured)
            if size > _LARGE_FRAME_BYTES or measured.elements > _MANY_ELEMENTS:
                return await asyncio.to_thread(decode_request, frame, self._stream.host)
        return decode_request(frame, self._stream.host)

    def _check_allowed(self, api_key: int, size: int) -> None:
        if self._sasl is not None and not self._sasl.allows(api_key):
            raise RefusedError(f"{api_name(api_key)} before authentication", "sasl")
        most = self._options.max_request_bytes
        if size > most and api_key != ApiKey.Produce:
            raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")

    async def _read_frame(self, size: int) -> Frame:
        """A frame, for which memory is taken as it comes, whatever size it claims."""
        if REQUEST_COPIES * size <= OWN_BYTES:
            await self._memory.take(REQUEST_COPIES * size)
            return Frame(await self._read(size))
        loop, received = asyncio.get_running_loop(), bytearray()
        deadline = loop.time() + self._options.request_timeout
        progress = _Progress(self._memory, "send")
        while len(received) < size:
            part = await progress.made(
                partial(self._stream.receive, size - len(received)), deadline - loop.time()
            )
            progress.count(len(part))
            await self._memory.take(REQUEST_COPIES * len(part))
            received += part
        return Frame(received)

    async def _measured(self, frame: Frame, request_class: Any, version: int) -> Measured:
        """What the frame takes once it is decoded. Raises MalformedRequestError if too much of it is no records."""
        walk = partial(measure, frame, request_class, version, most_bytes=self._options.max_request_bytes)
        try:
            return walk(most_elements=_MANY_ELEMENTS)
        except TooManyElementsError:
            return await asyncio.to_thread(walk)

    async def _take_for(self, size: int, measured: Measured) -> None:
        needed = measured.decoded_bytes + measured.elements * ANSWER_ELEMENT_BYTES
        if not self._is_known and REQUEST_COPIES * size + needed > OWN_BYTES:
            raise RefusedError(
                f"a request of {size} bytes takes {needed} bytes before authentication", "sasl"
            )
        await self._memory.take(needed)

    async def _answer_token(self, sasl: SaslSession, token: bytes) -> None:
        answer = sasl.token(token)
        if answer is not None:
            await self._write(_SIZE.pack(len(answer)) + answer)

    async def _answer(self, request: Request) -> None:
        bind_client_id(request.client_id)
        outcome: Outcome = "failed"
        try:
            if request.api_key == ApiKey.Fetch:
                await self._answer_fetch(request)
            else:
                # What is produced counts though the client has gone meanwhile, as with acks 0 it may.
                watched = nullcontext() if request.api_key == ApiKey.Produce else self._stream.watched()
                with watched:
                    message = await self._handler(request)(request)
                request.body = None  # a client may be slow to take the answer
                if message is not None:
                    encoded = await encode_response_by_turns(request.correlation_id, message)
                    del message
                    self._memory.keep(len(encoded))
                    await self._write(encoded)
            outcome = "answered"
        finally:
            self._service.metrics.request_served(request.api_key, request.version, outcome)

    def _handler(self, request: Request) -> Handler:
        handler = self._handlers.get(request.api_key)
        if handler is None:
            raise UnsupportedRequestError(f"{api_name(request.api_key)}: this API is not served")
        return handler

    async def _answer_fetch(self, request: Request) -> None:
        try:
            with self._stream.watched():
                response, error_codes = await self._service.fetching.answer(request, self._lease)
            if response.converts:
                self._lease.begin()
            request.body = None
            size, send = response.size_in_bytes, response.to_send(self._service.memory.chunks)
            self._memory.keep(sum(map(_held_bytes, response.parts)))
            del response  # with what was made beforehand of parts that are sent
            await self._send(send)
        finally:
            self._lease.end()
        for error_code in error_codes:
            self._service.metrics.error_sent(error_code)
        self._note(request, size, send)

    def _note(self, request: Request, size: int, send: FetchSend) -> None:
        stats, metrics = send.stats, self._service.metrics
        metrics.fetch_sent(request.version, stats.unconverted_bytes, stats.converted_bytes)
        metrics.records_converted(stats.conversion.records_converted)
        for error in stats.errors:  # padding went in its place; the client meets it when it comes there
            _log.warning("conversion ended early", error=str(error))
        _log.debug("fetch", version=request.version, size=size)

    async def _send(self, send: FetchSend) -> None:
        channel, turns = self._stream.socket, Turns()
        while not send.completed:
            if needed := send.needed_bytes:
                await self._lease.acquire(needed)  # and the turn to convert, until it is resized
                with self._service.metrics.conversion():
                    taken = send.write_to(channel)
            else:
                taken = send.write_to(channel)
            self._lease.resize(send.held_bytes)
            if not taken and not send.completed:
                await self._wait_writable(send)
                turns = Turns()
            else:
                await turns.give()

    async def _wait_writable(self, send: FetchSend) -> None:
        """While others wait for memory, a chunk that is not taken is given up, to be converted again when it is."""
        left = self._options.write_timeout
        while send.held_bytes and left > _PATIENCE:
            with suppress(StalledError):
                await self._stream.wait_writable(_PATIENCE)
                return
            left -= _PATIENCE
            if self._service.memory.is_awaited:
                send.let_go()
                self._lease.resize(send.held_bytes)
                break
        await self._stream.wait_writable(left)

    async def _write(self, data: bytes | bytearray) -> None:
        view, progress = memoryview(data), _Progress(self._memory, "take")
        while view:
            taken = write_bytes(self._stream.socket, view)
            view = view[taken:]
            progress.count(taken)
            if not taken:
                await progress.made(self._stream.wait_writable, self._options.write_timeout)


class _Progress:
    """Whether a client moves what it holds memory for, while others wait for that.

    way: what the client does, `send` or `take`.
    """

    def __init__(self, memory: RequestLease, way: str) -> None:
        self._memory, self._way = memory, way
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        self._ends_at, self._moved = self._loop.time() + PATIENCE_SECONDS, 0

    def count(self, size: int) -> None:
        self._moved += size

    async def made(self, wait: Callable[[float], Awaitable[_Made]], seconds: float) -> _Made:
        """What is waited for by `wait(seconds)`. Raises StalledError after the time, or if the client is too slow."""
        deadline = self._loop.time() + seconds
        while True:
            now = self._loop.time()
            if now >= self._ends_at:
                if self._memory.is_wanted and self._moved < LEAST_MOVED_BYTES:
                    raise RefusedError(
                        f"others wait for {self._memory.held} bytes of memory: expected a client to {self._way} "
                        f"{LEAST_MOVED_BYTES} bytes in {PATIENCE_SECONDS} s, found {self._moved}",
                        "memory",
                    )
                self._begin()
            try:
                return await wait(min(self._ends_at, deadline) - now)
            except StalledError:
                if self._loop.time() >= deadline:
                    raise


def _held_bytes(part: ResponsePart) -> int:
    """What a part of a response takes until it is sent, beside what is converted."""
    return _PIECE_BYTES + len(part) if isinstance(part, bytes) else RECORDS_BYTES
