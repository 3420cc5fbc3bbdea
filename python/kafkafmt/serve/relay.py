"""Requests that workers pass on to the process that answers for all of them, over a socket that the two share.

Frames, both ways: a size (int32, big-endian) and a number (int64), then bytes. A worker gives each request a number and
sends where it comes from and the request, header included, as Kafka has it; what comes back under that number is the
response as Kafka has it, or nothing where there was a fault. Nothing, from a worker, withdraws a request. Frame 0
says that the worker takes connections; to the worker it has what it is told. The socket is closed when either process
is gone, whatever became of it.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import structlog

from kafkafmt.serve.request import Handler, Message, Request
from kafkafmt.serve.wire import decode_request, encode_response_by_turns

_FRAME = struct.Struct(">iq")
_HOST = struct.Struct(">h")
_SIZE_BYTES = 4
_CONTROL = 0
# Larger responses are decoded in a thread.
_LARGE_RESPONSE_BYTES = 64 * 1024
_GONE = "the process that answers for all workers is gone"

_log = structlog.get_logger()


class RelayError(Exception):
    """The process that answers for all is gone, or could not answer."""


class _Frames:
    """Frames over a pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def write(self, number: int, *parts: bytes | bytearray) -> None:
        self._writer.writelines((_FRAME.pack(sum(map(len, parts)), number), *parts))

    async def flush(self) -> None:
        await self._writer.drain()

    async def read(self) -> tuple[int, bytes] | None:
        """The next frame; None where the other side is gone."""
        try:
            size, number = _FRAME.unpack(await self._reader.readexactly(_FRAME.size))
            return number, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        self._writer.close()


class Relay:
    """The worker's side: handlers that have their requests answered elsewhere.

    on_told: called with what the other side tells by `RelayedRequests.tell`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_told: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._frames = _Frames(reader, writer)
        self._on_told = on_told
        self._numbers = itertools.count(_CONTROL + 1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._is_gone = False

    def handlers(self, api_keys: Iterable[int]) -> dict[int, Handler]:
        return dict.fromkeys(api_keys, self._relay)

    def announce(self) -> None:
        """Tell the other side that this worker takes connections."""
        self._frames.write(_CONTROL)

    async def run(self) -> None:
        """Hand out responses, until the other side is gone."""
        try:
            while (frame := await self._frames.read()) is not None:
                number, response = frame
                if number == _CONTROL:
                    self._on_told(response)
                waiting = self._waiting.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(response)
        finally:
            self._is_gone = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(RelayError(_GONE))
            self._frames.close()

    async def _relay(self, request: Request) -> Message:
        """Raises RelayError; a task that is cancelled withdraws its request."""
        if self._is_gone:
            raise RelayError(_GONE)
        body = request.body
        body.with_header(request.correlation_id, request.client_id)
        number, host = next(self._numbers), request.client_host.encode()
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._frames.write(number, _HOST.pack(len(host)), host, body.encode(header=True))
            await self._frames.flush()
            response = await waiting
        except asyncio.CancelledError:
            self._frames.write(number)
            raise
        except ConnectionError:
            raise RelayError(_GONE) from None
        finally:
            del self._waiting[number]
        if not response:
            raise RelayError("the request could not be answered")
        decode = partial(body.header.get_response_class().decode, response, header=True)
        return decode() if len(response) <= _LARGE_RESPONSE_BYTES else await asyncio.to_thread(decode)


class RelayedRequests:
    """The other side of one worker: its requests, answered as they come, each in a task of its own.

    `ready` is set once the worker takes connections.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handlers: Mapping[int, Handler],
        ready: asyncio.Event,
    ) -> None:
        self._ready = ready
        self._frames = _Frames(reader, writer)
        self._handlers = handlers
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Answer, until the worker is gone; what it asked for is then withdrawn."""
        try:
            while (frame := await self._frames.read()) is not None:
                number, request = frame
                if number == _CONTROL:
                    self._ready.set()
                elif request:
                    self._tasks[number] = asyncio.create_task(self._answer(number, request))
                elif number in self._tasks:
                    self._tasks[number].cancel()
        finally:
            for task in self._tasks.values():
                task.cancel()
            self._frames.close()

    def tell(self, message: bytes) -> None:
        """Tell the worker something that no request of it asked for."""
        self._frames.write(_CONTROL, message)

    async def _answer(self, number: int, frame: bytes) -> None:
        try:
            (host_length,) = _HOST.unpack_from(frame)
            start = _HOST.size + host_length
            request = decode_request(frame[start:], frame[_HOST.size : start].decode())
            message = await self._handlers[request.api_key](request)
            response = await encode_response_by_turns(request.correlation_id, message)
            self._frames.write(number, response[_SIZE_BYTES:])
        except Exception:
            _log.exception("a request that a worker passed on could not be answered")
            self._frames.write(number)
        finally:
            del self._tasks[number]
