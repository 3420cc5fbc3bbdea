"""Passes requests of workers on to the process that answers for all of them, over a socket between the two.

A frame, either way, has a size (int32, big-endian), a kind (int8) and a number (int64), then bytes. A worker gives
each request a number:

    worker                                      the process that answers
    OFFER     the memory that the request takes
                                                GO        there is memory for the request
    REQUEST   that memory, the client's host,
              the request as Kafka encodes it
                                                RESPONSE  as Kafka encodes it, with its size field
    END       the client has the response or
              has disconnected, or the request failed

Requests that fit a connection's own bytes are sent without an offer. Instead of GO or RESPONSE, the answer may be
REFUSED, with the reason, or FAILED. READY says that the worker accepts connections. NOTICE has a message for the
worker. AWAITED says whether requests wait for memory. These three have the number 0.

The process that answers counts the bytes of a request and its response until the client has the response, although the
worker holds it meanwhile. A request waits for memory of the worker first, then of the process that answers, and never
the other way round: so no two requests wait for each other. If either process ends, for any reason, the socket closes.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import structlog

from kafkafmt.server.errors import RequestError
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.request import Handler, Request
from kafkafmt.server.request_memory import OWN_BYTES, RequestLease, RequestMemory
from kafkafmt.server.wire import decode_request, encode_request, encode_response_yielding

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget

_FRAME = struct.Struct(">ibq")
_TAKEN = struct.Struct(">q")
_HOST = struct.Struct(">h")
_CONTROL = 0
# A frame is read in parts of this size: beside the bytes already read, the reader holds no more of it.
_PART_BYTES = 64 * 1024
# Larger requests are encoded and decoded in a thread: in the loop it would take more than 10 ms.
_LARGE_REQUEST_BYTES = 16 * 1024
_GONE = "the process that answers for all workers has ended"

_log = structlog.get_logger()

_P = ParamSpec("_P")
_T = TypeVar("_T")


class RelayError(Exception):
    """The process that answers for all workers has ended, or could not answer."""


class _Kind(IntEnum):
    """The kind of a frame. Workers send the first four."""

    READY, OFFER, REQUEST, END, NOTICE, AWAITED, GO, RESPONSE, REFUSED, FAILED = range(10)


class _Frame(NamedTuple):
    kind: _Kind
    number: int
    data: bytes | bytearray


class _Frames:
    """Frames over a pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, kind: _Kind, number: int, *parts: bytes | bytearray) -> None:
        size = sum(map(len, parts))
        head = _FRAME.pack(size, kind, number)
        if size <= _PART_BYTES:
            self._writer.writelines((head, *parts))
            return
        for part in (head, *parts):  # asyncio joins what `writelines` gets
            self._writer.write(part)

    async def flush(self) -> None:
        await self._writer.drain()

    async def read(self) -> _Frame | None:
        """Return the next frame; None if the other side has closed the socket."""
        try:
            size, kind, number = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
            return _Frame(_Kind(kind), number, await self._read_data(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _read_data(self, size: int) -> bytes | bytearray:
        if size <= _PART_BYTES:
            return await self._reader.readexactly(size)
        data, end = bytearray(size), 0
        while end < size:
            part = await self._reader.readexactly(min(size - end, _PART_BYTES))
            data[end : end + len(part)] = part
            end += len(part)
        return data

    def close(self) -> None:
        self._writer.close()


class Relay:
    """The worker's side: handlers whose requests the other side answers.

    on_notice: called with the messages of `RelayedRequests.notify`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_notice: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._frames = _Frames(reader, writer)
        self._on_notice = on_notice
        self._numbers = itertools.count(_CONTROL + 1)
        self._waiting: dict[int, asyncio.Future[_Frame]] = {}
        self._is_gone = False
        self.is_memory_awaited = False

    def handlers(self, api_keys: Iterable[int]) -> dict[int, Handler]:
        """Return handlers that pass the requests of these API keys to the supervisor."""
        return dict.fromkeys(api_keys, self._relay)

    def announce(self) -> None:
        """Tell the other side that this worker accepts connections."""
        self._frames.write(_Kind.READY, _CONTROL)

    async def run(self) -> None:
        """Hand out responses until the other side closes the socket."""
        try:
            while (frame := await self._frames.read()) is not None:
                self._take(frame)
                del frame  # only the waiting request holds it now
        finally:
            self._is_gone = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(RelayError(_GONE))
            self._frames.close()

    def _take(self, frame: _Frame) -> None:
        if frame.kind is _Kind.NOTICE:
            self._on_notice(bytes(frame.data))
        elif frame.kind is _Kind.AWAITED:
            self.is_memory_awaited = frame.data != b"\0"
        else:
            waiting = self._waiting.get(frame.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)

    def end(self, number: int) -> None:
        """Tell the other side that a request is over: it may release the memory and withdraw the request."""
        if not self._is_gone:
            self._frames.write(_Kind.END, number)

    async def _relay(self, request: Request) -> bytes | bytearray:
        """Return the encoded response. Raises RelayError and RequestError. Cancelling the task ends the request."""
        if self._is_gone:
            raise RelayError(_GONE)
        number = next(self._numbers)
        taken_bytes = 0 if request.memory is None else request.memory.taken_bytes
        taken = _TAKEN.pack(taken_bytes)
        try:
            if taken_bytes > OWN_BYTES:
                answer = self._answer_to(number)
                self._frames.write(_Kind.OFFER, number, taken)
                _ensure_answered(await answer)
            data = await _in_thread_if_large(request.size, encode_request, request)
            host = request.client_host.encode()
            answer = self._answer_to(number)
            self._frames.write(_Kind.REQUEST, number, taken, _HOST.pack(len(host)), host, data)
            del data
            await self._frames.flush()
            request.forget_body()  # the other side counts it from now on
            frame = await answer
            _ensure_answered(frame)
        except ConnectionError:
            raise RelayError(_GONE) from None
        except BaseException:
            self.end(number)
            raise
        finally:
            self._waiting.pop(number, None)
        request.answer_memory = _AnswerMemory(self, number)
        return frame.data

    def _answer_to(self, number: int) -> asyncio.Future[_Frame]:
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        return answer


async def _in_thread_if_large(size: int, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    if size <= _LARGE_REQUEST_BYTES:
        return call(*args, **kwargs)
    return await asyncio.to_thread(call, *args, **kwargs)


def _ensure_answered(frame: _Frame) -> None:
    """Raise RequestError for a request that was refused, and RelayError for one that failed."""
    if frame.kind is _Kind.REFUSED:
        raise RequestError(frame.data.decode())
    if frame.kind is _Kind.FAILED:
        raise RelayError("the request could not be answered")


class _AnswerMemory:
    """The memory of a response in the worker. The other side counts it until it gets END."""

    def __init__(self, relay: Relay, number: int) -> None:
        self._relay, self._number = relay, number
        self.held = 0

    @property
    def is_wanted(self) -> bool:
        """Do requests of any worker wait for what is held here?"""
        return self.held > 0 and self._relay.is_memory_awaited

    def keep(self, size: int) -> None:
        held, self.held = self.held, max(size - OWN_BYTES, 0)
        if held and not self.held:
            self._relay.end(self._number)


class RelayMemory(RequestMemory):
    """The memory of all workers' requests. Tells workers when requests begin to wait for it, and when none waits."""

    def __init__(self, budget: MemoryBudget, *, max_bytes: int | None = None, seconds: float = 60.0) -> None:
        super().__init__(budget, Metrics(), max_bytes=max_bytes, seconds=seconds)
        self.workers: set[RelayedRequests] = set()
        self._was_awaited = False

    def on_change(self) -> None:
        super().on_change()
        if self.is_awaited != self._was_awaited:
            self._was_awaited = self.is_awaited
            for worker in self.workers:
                worker.notify_awaited(self.is_awaited)


class RelayedRequests:
    """The side that answers one worker's requests, each in a task of its own.

    ready: is set once the worker accepts connections. memory: for the requests of all workers.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[int, Handler],
        ready: asyncio.Event,
        memory: RelayMemory,
    ) -> None:
        self._ready = ready
        self._frames = _Frames(reader, writer)
        self._handlers = handlers
        self._memory = memory
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._offered: dict[int, asyncio.Future[bytes | bytearray]] = {}

    async def run(self) -> None:
        """Answer until the worker closes the socket. Its requests are cancelled then."""
        self._memory.workers.add(self)
        self.notify_awaited(self._memory.is_awaited)
        try:
            while (frame := await self._frames.read()) is not None:
                self._take(frame)
                del frame
        finally:
            self._memory.workers.discard(self)
            for task in self._tasks.values():
                task.cancel()
            self._frames.close()

    def _take(self, frame: _Frame) -> None:
        number = frame.number
        if frame.kind is _Kind.READY:
            self._ready.set()
        elif frame.kind is _Kind.END:
            if number in self._tasks:
                self._tasks[number].cancel()
        elif number in self._offered:
            self._offered.pop(number).set_result(frame.data)
        else:
            task = self._tasks[number] = asyncio.create_task(self._answer(frame))
            task.add_done_callback(lambda _: self._tasks.pop(number))  # even if it has never begun

    def notify(self, message: bytes) -> None:
        """Send the worker a message that does not answer a request."""
        self._frames.write(_Kind.NOTICE, _CONTROL, message)

    def notify_awaited(self, is_awaited: bool) -> None:
        """Tell the worker whether requests wait for memory."""
        self._frames.write(_Kind.AWAITED, _CONTROL, bytes([is_awaited]))

    async def _answer(self, frame: _Frame) -> None:
        number, memory = frame.number, self._memory.lease()
        try:
            request = await self._request(frame, memory)
            del frame
            request.memory = memory
            message = await self._handlers[request.api_key](request)
            request.body = None
            response = await encode_response_yielding(request.correlation_id, message)
            del message
            memory.keep(len(response))
            self._frames.write(_Kind.RESPONSE, number, response)
            del response
            await self._frames.flush()
            await self._until_taken(memory)
        except RequestError as error:
            self._frames.write(_Kind.REFUSED, number, str(error).encode())
        except ConnectionError:
            pass  # the worker has closed the socket
        except Exception:
            _log.exception("a request that a worker passed on could not be answered")
            self._frames.write(_Kind.FAILED, number)
        finally:
            memory.keep(0)
            self._offered.pop(number, None)

    async def _request(self, frame: _Frame, memory: RequestLease) -> Request:
        """Return the request in a frame, or the offered one, after taking memory for it. Raises RequestError."""
        data = frame.data
        (taken_bytes,) = _TAKEN.unpack_from(data)
        await memory.take(taken_bytes)
        if frame.kind is _Kind.OFFER:
            offered = self._offered[frame.number] = asyncio.get_running_loop().create_future()
            self._frames.write(_Kind.GO, frame.number)
            data = await offered
        (host_length,) = _HOST.unpack_from(data, _TAKEN.size)
        host_start = _TAKEN.size + _HOST.size
        start = host_start + host_length
        host = bytes(data[host_start:start]).decode()
        return await _in_thread_if_large(len(data), decode_request, memoryview(data)[start:], host)

    async def _until_taken(self, memory: RequestLease) -> None:
        """Wait for END or the end of the worker, which cancel this task. Returns at once if no memory is held."""
        if memory.held:
            await asyncio.get_running_loop().create_future()
