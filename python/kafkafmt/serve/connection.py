"""One connection: a request is read, answered, and its response sent, before the next one is looked at.

So responses are in the order of their requests, as clients that pipeline want them. What cannot be answered as the
protocol says closes the connection, and no other.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from kafka.protocol.api_key import ApiKey

from kafkafmt.channel import write_bytes
from kafkafmt.serve.fetching import Fetching
from kafkafmt.serve.logs import bind_client_id
from kafkafmt.serve.memory import DownConversionMemory
from kafkafmt.serve.metrics import Metrics, Outcome, Refusal
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.producing.frames import ensure_mostly_records
from kafkafmt.serve.producing.request_memory import RequestMemory
from kafkafmt.serve.request import Handler, Request
from kafkafmt.serve.security.sasl import (
    FAILED_AUTHENTICATION_DELAY,
    MAX_OPEN_FRAME_BYTES,
    SaslSession,
    refusing_handlers,
)
from kafkafmt.serve.stream import StalledError, Stream
from kafkafmt.serve.turns import Turns
from kafkafmt.serve.wire import (
    UnsupportedRequestError,
    api_name,
    decode_request,
    encode_response_by_turns,
)

if TYPE_CHECKING:
    from kafkafmt.fetch_response import FetchSend
    from kafkafmt.serve.memory_line import MemoryLease

_log = structlog.get_logger()

_SIZE, _API_KEY = struct.Struct(">i"), struct.Struct(">h")
# Larger requests are read so many at a time.
_LARGE_FRAME_BYTES, _LARGE_REQUESTS = 64 * 1024, 64
# For so many seconds memory that others wait for is held by a client that takes nothing.
_PATIENCE = 1.0


def _decode_large(frame: bytes, client_host: str, most_bytes: int) -> Request:
    if len(frame) > most_bytes:
        ensure_mostly_records(frame, most_bytes)
    return decode_request(frame, client_host)


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
    memory: DownConversionMemory
    metrics: Metrics
    request_memory: RequestMemory
    large_requests: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LARGE_REQUESTS))


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
        self._is_draining = False
        self.is_busy = False

    async def serve(self) -> None:
        """Raises ConnectionError and OSError where the client has gone or stalls, RefusedError and RequestError."""
        while not self._is_draining:
            size = await self._read_size()
            if self._sasl is not None and self._sasl.expects_bare_token:
                await self._answer_token(self._sasl, await self._read(size))
            else:
                async with self._room_for(size) as room:
                    await self._answer_next(size, room)
            if self._sasl is not None and self._sasl.failure is not None:
                await asyncio.sleep(FAILED_AUTHENTICATION_DELAY)
                raise RefusedError(self._sasl.failure, "sasl")

    async def _answer_next(self, size: int, room: MemoryLease | None) -> None:
        request = await self._read_request(size)
        if room is not None and request.api_key == ApiKey.JoinGroup:
            # Its answer waits for the other members', who may wait for this room; what it says the groups count.
            room.resize(0)
        self.is_busy = True
        try:
            await self._answer(request)
        finally:
            self.is_busy = False

    def _room_for(self, size: int) -> AbstractAsyncContextManager[MemoryLease | None]:
        """Memory for a large request, from when it is read until it is answered; None for a small one."""
        if size <= _LARGE_FRAME_BYTES:
            return nullcontext()
        return self._service.request_memory.held(size)

    def drain(self) -> None:
        """End behind the response that is being made or sent."""
        self._is_draining = True

    async def _read_size(self) -> int:
        (size,) = _SIZE.unpack(await self._stream.read(_SIZE.size, self._options.idle_timeout))
        is_known = self._sasl is None or self._sasl.principal is not None
        most = self._most_bytes() if is_known else MAX_OPEN_FRAME_BYTES
        if not 0 < size <= most:
            raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")
        return int(size)

    def _most_bytes(self) -> int:
        most, options = self._options.max_request_bytes, self._options
        return max(most, options.max_produce_bytes) if options.allow_produce else most

    async def _read(self, size: int) -> bytes:
        return await self._stream.read(size, self._options.request_timeout)

    async def _read_request(self, size: int) -> Request:
        """A large one takes its turn and is decoded beside the loop: it may be made to be slow, and others to wait."""
        if size <= _LARGE_FRAME_BYTES:
            return decode_request(await self._read(size), self._stream.host)
        most = self._options.max_request_bytes
        if size > most:
            (api_key,) = _API_KEY.unpack(
                await self._stream.peek(_API_KEY.size, self._options.request_timeout)
            )
            if api_key != ApiKey.Produce:
                raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")
        async with self._service.large_requests:
            return await asyncio.to_thread(_decode_large, await self._read(size), self._stream.host, most)

    async def _answer_token(self, sasl: SaslSession, token: bytes) -> None:
        answer = sasl.token(token)
        if answer is not None:
            await self._write(_SIZE.pack(len(answer)) + answer)

    async def _answer(self, request: Request) -> None:
        bind_client_id(request.client_id)
        if self._sasl is not None and not self._sasl.allows(request.api_key):
            raise RefusedError(f"{api_name(request.api_key)} before authentication", "sasl")
        outcome: Outcome = "failed"
        try:
            if request.api_key == ApiKey.Fetch:
                await self._answer_fetch(request)
            else:
                # What is produced counts though the client has gone meanwhile, as with acks 0 it may.
                watched = nullcontext() if request.api_key == ApiKey.Produce else self._stream.watched()
                with watched:
                    message = await self._handler(request)(request)
                if message is not None:
                    await self._write(await encode_response_by_turns(request.correlation_id, message))
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
            size, send = response.size_in_bytes, response.to_send(self._service.memory.chunks)
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
                await self._lease.acquire(needed)
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

    async def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            taken = write_bytes(self._stream.socket, view)
            view = view[taken:]
            if not taken:
                await self._stream.wait_writable(self._options.write_timeout)
