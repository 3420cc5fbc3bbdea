"""One connection: each request is read and answered, and its response sent, before the next one is read.

So responses are in the order of their requests, as clients that pipeline expect. The session of a client may write
responses later, in the same order. A request that the protocol has no answer for closes its connection, and no other.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import structlog
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from kafkafmt.convert.lazy import LazyDownConvertRecords
from kafkafmt.records.base import MemoryRecords
from kafkafmt.records.channel import write_bytes
from kafkafmt.server.client_progress import ClientProgress
from kafkafmt.server.errors import RefusedError, UnsupportedRequestError
from kafkafmt.server.frames import (
    Measured,
    TooManyElementsError,
    measure,
    measure_fetch_request,
    measure_produce_request,
)
from kafkafmt.server.heads import read_head
from kafkafmt.server.metrics import Conversions, Outcome
from kafkafmt.server.request import AnswerMemory, Request
from kafkafmt.server.request_memory import (
    ANSWER_ELEMENT_BYTES,
    OWN_BYTES,
    RECORDS_BYTES,
    REQUEST_COPIES,
)
from kafkafmt.server.security.sasl import (
    FAILED_AUTHENTICATION_DELAY,
    MAX_OPEN_FRAME_BYTES,
    SaslSession,
    refusing_handlers,
)
from kafkafmt.server.service import Service, Session
from kafkafmt.server.stream import StalledError, Stream
from kafkafmt.server.structured_logging import bind_client_id
from kafkafmt.server.wire import (
    HEAD_BYTES,
    Frame,
    api_name,
    api_of,
    decode_fetch_request,
    decode_request,
    encode_response_yielding,
    request_class_of,
)
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.convert.fetch_response import FetchSend, ResponsePart

_log = structlog.get_logger()

_SIZE = struct.Struct(">i")
# Requests with more elements, and larger ones, are decoded in a thread: in the loop it would take more than 10 ms.
_MANY_ELEMENTS, _LARGE_FRAME_BYTES = 1000, 64 * 1024
# A frame of at most this size takes no more, decoded and answered, than the connection's own bytes.
_SMALL_FRAME_BYTES = 256
# Of a large request. Memory for them is taken after they were read.
_RECEIVED_AT_ONCE = 128 * 1024
# Seconds for which a client that reads nothing may hold memory that others wait for.
_PATIENCE = 1.0
_PIECE_BYTES = 128  # of a piece of a response in memory, beside its bytes


class Connection:
    """Serves one client until it disconnects, is refused, or the server drains."""

    def __init__(self, stream: Stream, service: Service) -> None:
        self._stream = stream
        self._service = service
        self._options = service.options
        self._handlers = dict(service.handlers)
        self._session: Session | None = None
        self._fetching = service.fetching
        self._failure: Exception | None = None
        accept = None
        if service.open_session is not None:
            self._session = service.open_session(stream, self._fail)
            self._handlers |= self._session.handlers()
            self._fetching = self._session.fetching
            if service.accept is not None:
                accept = partial(service.accept, self._session)
        users = service.options.users
        self._sasl = None if users is None else SaslSession(users, accept)
        self._handlers |= refusing_handlers() if self._sasl is None else self._sasl.handlers()
        self._lease = service.memory.lease()
        self._memory = service.request_memory.lease()
        self._client_id: str | None = None  # as logs have it
        self._client = service.metrics.client(stream.host)
        self._is_draining = False
        self._awaits_request = False
        self._task: asyncio.Task[None] | None = None
        self._is_received = False  # the request: it is answered even if the server drains

    async def serve(self) -> None:
        """Answer requests until `drain`.

        Raises ConnectionError or OSError if the client disconnects or stalls, RefusedError and RequestError.
        """
        try:
            await self._serve()
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            if self._session is not None:
                self._session.close()

    @property
    def is_busy(self) -> bool:
        """Whether a request that was received has no response yet."""
        return self._is_received or (self._session is not None and self._session.is_busy)

    def _fail(self, error: Exception) -> None:
        """End the connection, whose responses cannot be completed."""
        self._failure = self._failure or error
        if self._task is not None:
            self._task.cancel()

    async def _serve(self) -> None:
        self._task = asyncio.current_task()
        authenticating = self._begin_authentication()
        try:
            await self._serve_requests(authenticating)
        finally:
            authenticating.cancel()

    def _begin_authentication(self) -> asyncio.TimerHandle:
        """Start the time in which the client must authenticate, if it must. Its requests do not extend the time."""
        seconds = self._options.request_timeout
        late = RefusedError(f"not authenticated: expected it within {seconds:g} s", "sasl")
        timer = asyncio.get_running_loop().call_later(seconds, self._fail, late)
        if self._is_known:
            timer.cancel()
        return timer

    async def _serve_requests(self, authenticating: asyncio.TimerHandle) -> None:
        while not self._is_draining and (size := await self._next_size()) is not None:
            try:
                if self._sasl is not None and self._sasl.expects_bare_token:
                    await self._answer_token(self._sasl, await self._read(size))
                else:
                    await self._answer_next(size)
            finally:
                self._memory.keep(0)
                self._is_received = False
            if self._is_known:
                authenticating.cancel()
            if self._sasl is not None and self._sasl.failure is not None:
                await asyncio.sleep(FAILED_AUTHENTICATION_DELAY)
                raise RefusedError(self._sasl.failure, "sasl")

        if self._session is not None and self._session.is_busy:
            with self._stream.watched():
                await self._session.wait_idle()

    async def _next_size(self) -> int | None:
        """Return the size of the next request; None if `drain` is called before it comes."""
        self._awaits_request = True
        try:
            return await self._read_size()
        except asyncio.CancelledError:
            if self._is_draining and self._failure is None:
                return None
            raise
        finally:
            self._awaits_request = False

    async def _answer_next(self, size: int) -> None:
        if self._session is not None and await self._passes(self._session, size):
            return
        request = await self._read_request(size)
        request.memory, request.client = self._memory, self._client
        self._client.request_taken(request.api_key, request.version, request.client_id, request.body)
        try:
            await self._answer(request)
        finally:
            if request.answer_memory is not None:
                request.answer_memory.keep(0)

    async def _passes(self, session: Session, size: int) -> bool:
        """Pass the next request on, if it passes unchanged. If not, wait until it may be answered here."""
        head = await self._stream.peek(min(HEAD_BYTES, size), self._options.request_timeout)
        api_key, version = api_of(head)
        self._check_allowed(api_key, size)
        # While brokers are asked, the system may receive all of the request.
        self._is_received = self._is_known
        is_passed = self._is_known and await session.passes(api_key, version)
        self._is_received = False
        if is_passed:
            frame = await self._read_undecoded(api_key, version, size)
            # Produce is passed on after the client has disconnected, which it may do with acks 0.
            with nullcontext() if api_key == ApiKey.Produce else self._stream.watched():
                await session.pass_on(frame)
            del frame
            await session.wait_sent()
            self._client.request_passed(api_key, version)
            self._service.metrics.request_served(api_key, version, "passed")
            return True
        if session.is_busy and not session.keeps_order(api_key):
            with self._stream.watched():
                await session.wait_idle()
        return False

    def drain(self) -> None:
        """End after the responses to the requests that were taken."""
        self._is_draining = True
        if self._awaits_request and self._task is not None:
            self._task.cancel()

    @property
    def _is_known(self) -> bool:
        """Whether the client is authenticated, or need not be."""
        return self._sasl is None or self._sasl.principal is not None

    async def _read_size(self) -> int:
        (size,) = _SIZE.unpack(await self._read_next(_SIZE.size))
        most = self._options.largest_request_bytes if self._is_known else MAX_OPEN_FRAME_BYTES
        if not 0 < size <= most:
            raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")
        return int(size)

    async def _read_next(self, size: int) -> bytes:
        """Read the start of the next request. A client that waits for responses, or reads one slowly, is not idle."""
        timeout = self._options.idle_timeout if self._is_known else self._options.request_timeout
        left = timeout
        while True:
            try:
                return await self._stream.read(size, left)
            except StalledError:
                left = 0.0 if self._session is None else timeout - self._session.idle_seconds
                if left <= 0:
                    raise

    async def _read(self, size: int) -> bytes:
        """Read the rest of a request."""
        data = await self._stream.read(size, self._options.request_timeout)
        self._is_received = True
        return data

    async def _read_request(self, size: int) -> Request:
        """Read a request. Its API is checked before its body is read."""
        head = await self._stream.peek(min(HEAD_BYTES, size), self._options.request_timeout)
        api_key, version = api_of(head)
        if self._session is not None and api_key in self._session.undecoded:
            self._check_allowed(api_key, size)
            undecoded = await self._read_undecoded(api_key, version, size)
            found = read_head(undecoded)
            return Request(
                found.api_key,
                found.version,
                found.correlation_id,
                None if found.client_id is None else found.client_id.decode(errors="replace"),
                body=None,
                client_host=self._stream.host,
                size=size,
                frame=undecoded,
            )
        request_class, version, is_version_known = request_class_of(head)
        self._check_allowed(request_class.API_KEY, size)
        self._check_served(request_class.API_KEY)
        frame = await self._read_frame(size)
        if request_class is FetchRequest and size <= _LARGE_FRAME_BYTES:
            if size > _SMALL_FRAME_BYTES:
                await self._take_for(size, measure_fetch_request(frame))
            request = decode_fetch_request(frame, self._stream.host)
            if request is not None:
                return request
        if size > _SMALL_FRAME_BYTES and is_version_known:
            measured = await self._measured(frame, request_class, version)
            await self._take_for(size, measured)
            if size > _LARGE_FRAME_BYTES or measured.elements > _MANY_ELEMENTS:
                return await asyncio.to_thread(decode_request, frame, self._stream.host)
        return decode_request(frame, self._stream.host)

    def _check_served(self, api_key: int) -> None:
        if api_key not in self._handlers and (api_key != ApiKey.Fetch or self._fetching is None):
            raise UnsupportedRequestError(f"{api_name(api_key)}: this API is not served")

    def _check_allowed(self, api_key: int, size: int) -> None:
        if self._sasl is not None and not self._sasl.allows(api_key):
            raise RefusedError(f"{api_name(api_key)} before authentication", "sasl")
        most = self._options.max_request_bytes
        if size > most and api_key != ApiKey.Produce:
            raise RefusedError(f"a request of {size} bytes: expected 1 to {most}")

    async def _read_frame(self, size: int) -> Frame:
        """Read a frame for kafka-python's decoders."""
        return Frame(await self._read_into_memory(size))

    async def _read_into_memory(self, size: int) -> memoryview:
        """Read a frame. Memory is taken as bytes arrive, not for the size that the frame claims."""
        if REQUEST_COPIES * size <= OWN_BYTES:
            await self._memory.take(REQUEST_COPIES * size)
            return memoryview(await self._read(size))
        # The system gives this memory when it is written to.
        frame, received = np.empty(size, np.uint8).data, 0
        loop, left = asyncio.get_running_loop(), self._options.request_timeout
        progress = ClientProgress(self._memory, "send")
        while received < size:
            began = loop.time()
            target = frame[received : received + _RECEIVED_AT_ONCE]
            count = await progress.wait_for(partial(self._stream.receive_into, target), left)
            left -= loop.time() - began
            progress.count(count)
            received += count
            self._is_received = received == size
            await self._memory.take(REQUEST_COPIES * count)
        return frame

    async def _read_undecoded(self, api_key: int, version: int, size: int) -> memoryview:
        """Read a frame that the session decodes, and take memory for that: to pass it on, or to answer it."""
        frame = await self._read_into_memory(size)
        if size > _SMALL_FRAME_BYTES and api_key == ApiKey.Fetch:
            await self._take_for(size, measure_fetch_request(frame))
        elif size > self._options.max_request_bytes:  # a Produce request, most of which must be records
            await self._take_for(size, await self._measured(frame, ProduceRequest, version))
        elif size > _SMALL_FRAME_BYTES and api_key == ApiKey.Produce:
            await self._take_for(size, measure_produce_request(frame))
        return frame

    async def _measured(self, frame: bytes | memoryview, request_class: Any, version: int) -> Measured:
        """Measure what the decoded frame takes. Raises MalformedRequestError if too much of it is not records."""
        walk = partial(measure, frame, request_class, version, max_bytes=self._options.max_request_bytes)
        try:
            return walk(max_elements=_MANY_ELEMENTS)
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
        answer = await sasl.token(token)
        if answer is not None:
            await self._write(_SIZE.pack(len(answer)) + answer, self._memory)

    async def _answer(self, request: Request) -> None:
        if request.client_id != self._client_id:
            self._client_id = request.client_id
            bind_client_id(request.client_id)
        outcome: Outcome = "failed"
        try:
            if request.api_key == ApiKey.Fetch:
                await self._answer_fetch(request)
            else:
                # Produce continues after the client has disconnected, which it may do with acks 0.
                watched = nullcontext() if request.api_key == ApiKey.Produce else self._stream.watched()
                with watched:
                    message = await self._handlers[request.api_key](request)
                request.body = request.frame = None  # the client may be slow to read the answer
                if message is not None:
                    encoded = await encode_response_yielding(request.correlation_id, message)
                    del message
                    memory = request.answer_memory or self._memory
                    memory.keep(len(encoded))
                    await self._write(encoded, memory)
            outcome = "answered"
        finally:
            self._service.metrics.request_served(request.api_key, request.version, outcome)

    async def _answer_fetch(self, request: Request) -> None:
        if self._fetching is None:
            raise UnsupportedRequestError("Fetch: this API is not served")
        try:
            with self._stream.watched():
                response, error_codes = await self._fetching.answer(request, self._lease)
            converts = response.converts
            if converts:
                self._lease.begin()
            # What the system buffers of chunks takes none of their memory, so its buffer may grow if that is scarce.
            if not converts or self._service.memory.is_ample:
                self._stream.limit_send_buffer()
            request.body = None
            size, send = response.size_in_bytes, response.to_send(self._service.memory.chunks)
            self._memory.keep(sum(map(_held_bytes, response.parts)))
            del response  # it refers to batches converted beforehand, which are released once sent
            if converts or send.is_remote or self._lease.held:
                await self._send(send)
            else:
                write = partial(send.write_stored, self._stream.socket)
                await self._stream.write_all(write, self._options.write_timeout)
        finally:
            self._lease.end()
        for error_code in error_codes:
            self._service.metrics.error_sent(error_code)
        self._record_fetch(request, size, send)

    def _record_fetch(self, request: Request, size: int, send: FetchSend) -> None:
        stats, metrics = send.stats, self._service.metrics
        metrics.fetch_sent(request.version, stats.unconverted_bytes, stats.converted_bytes)
        metrics.records_converted(stats.conversion.records_converted)
        if stats.records_by_topic:
            request.client.converted(
                ApiKey.Fetch, Conversions(stats.records_by_topic, stats.converted_bytes, stats.conversion)
            )
        for error in stats.errors:
            # Padding was sent instead. The client gets the error when it fetches from there.
            _log.warning("conversion ended early", error=str(error))
        _log.debug("fetch", version=request.version, size=size)

    async def _send(self, send: FetchSend) -> None:
        channel, yields, work = self._stream.socket, YieldBudget(), self._service.work
        progress = ClientProgress(self._memory, "take")
        while not send.completed:
            if needed := send.needed_bytes:
                with progress.excused():
                    await self._lease.acquire(needed)  # also takes the turn to convert, until `resize`
                with self._service.metrics.conversion():
                    may_take_long = await work.request(send.read_next) if send.is_remote else send.read_next()
                    if may_take_long or send.is_remote:
                        await work.convert(send.convert_next)
                    else:
                        send.convert_next()
            if send.is_remote:
                taken = await work.request(partial(send.write_to, channel))
            else:
                taken = send.write_to(channel)
            if needed or self._lease.held:
                self._lease.resize(send.held_bytes)
            progress.count(taken)
            if not taken and not send.completed:
                await self._wait_writable(send, progress)
                yields = YieldBudget()
            else:
                await yields.checkpoint()

    async def _wait_writable(self, send: FetchSend, progress: ClientProgress) -> None:
        """Wait until the client reads. If others wait for memory, the chunk is dropped, and converted again later."""
        left = self._options.write_timeout
        while send.held_bytes and left > _PATIENCE:
            with suppress(StalledError):
                await progress.wait_for(self._stream.wait_writable, _PATIENCE)
                return
            left -= _PATIENCE
            if self._service.memory.is_awaited:
                send.release_chunk()
                self._lease.resize(send.held_bytes)
                break
        await progress.wait_for(self._stream.wait_writable, left)

    async def _write(self, data: bytes | bytearray, memory: AnswerMemory) -> None:
        view, progress = memoryview(data), ClientProgress(memory, "take")
        while view:
            taken = write_bytes(self._stream.socket, view)
            view = view[taken:]
            progress.count(taken)
            if not taken:
                await progress.wait_for(self._stream.wait_writable, self._options.write_timeout)


def _held_bytes(part: ResponsePart) -> int:
    """Return the bytes that a part of a response takes until it is sent, beside converted chunks."""
    if isinstance(part, bytes):
        return _PIECE_BYTES + len(part)
    records = part.source if isinstance(part, LazyDownConvertRecords) else part
    return RECORDS_BYTES + (records.size_in_bytes if isinstance(records, MemoryRecords) else 0)
