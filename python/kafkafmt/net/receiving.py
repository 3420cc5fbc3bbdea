"""kafka-python's network client, receiving responses of megabytes in few reads and few copies.

kafka-python reads 4 KiB at a time, and copies a response five times on its way to the decoder. Here a connection reads
as much as there is into memory of its own, of which the response is the one copy. It also registers a socket anew for
each read and write, and has it described in an error each time. All else is kafka-python's.
"""

from __future__ import annotations

import selectors
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

if TYPE_CHECKING:
    from kafka.net.connection import KafkaConnection
    from kafka.net.transport import KafkaTCPTransport

# What stays in a processor's cache between a read and the copy behind it.
_READ_BYTES = 256 * 1024
_NOTHING_YET = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class DescriptorSelector(selectors.DefaultSelector):
    """The selector of this system, for the option `selector`: it looks a socket up by its descriptor alone.

    The one in the standard library asks the kernel for both addresses of a socket that is not registered, for the text
    of a KeyError.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if descriptor < 0:  # closed; it may be registered all the same
            return super().get_key(fileobj)
        key: selectors.SelectorKey | None = self._fd_to_key.get(descriptor)  # type: ignore[attr-defined]
        if key is None:
            raise KeyError(descriptor)
        return key


class ReceivingClient(KafkaNetClient):  # type: ignore[misc]
    """A KafkaNetClient, for the option `kafka_client` of a consumer."""

    def __init__(self, **configs: Any) -> None:
        net = NetworkSelector(**configs)
        super().__init__(net=net, manager=_ConnectionManager(net, **configs), **configs)


class _ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    async def _build_transport(self, *args: Any, **options: Any) -> KafkaTCPTransport:
        transport = await super()._build_transport(*args, **options)
        transport._sock_recv = partial(_receive, transport, memoryview(bytearray(_READ_BYTES)))
        return transport

    async def _connect(self, node: Any, conn: KafkaConnection, *args: Any, **options: Any) -> None:
        await super()._connect(node, conn, *args, **options)
        if conn.parser is not None:
            conn.parser._process_response = partial(_process_response, conn.parser._process_response)


def _receive(
    transport: KafkaTCPTransport, memory: memoryview
) -> tuple[memoryview | bytes, kafka_errors.KafkaConnectionError | None]:
    """What the socket has, valid until the next call, and an error where the connection is over."""
    sock, filled = transport._sock, 0
    try:
        while filled < len(memory):
            count = sock.recv_into(memory[filled:])
            if not count:
                return b"", kafka_errors.KafkaConnectionError("socket disconnected")
            filled += count
    except _NOTHING_YET:
        pass
    except OSError as error:
        return b"", kafka_errors.KafkaConnectionError(error)
    # What is decrypted already wakes no selector.
    if filled == len(memory) and isinstance(sock, ssl.SSLSocket) and sock.pending():
        return bytes(memory) + sock.recv(sock.pending()), None
    return memory[:filled], None


def _process_response(process: Callable[[_Frame], Any], frame: bytearray) -> Any:
    return process(_Frame(frame))


class _Frame:
    """A response as kafka-python's decoder reads it: what is behind the header is a view, and no copy."""

    def __init__(self, frame: bytearray) -> None:
        self._data = memoryview(frame)
        self._position = 0

    def __len__(self) -> int:
        return len(self._data)

    def read(self, count: int | None = None) -> memoryview | bytes:
        start = self._position
        if count is None:
            self._position = len(self._data)
            return self._data[start:]
        self._position = min(start + count, len(self._data))
        return bytes(self._data[start : self._position])

    def seek(self, position: int) -> None:
        self._position = position

    def tell(self) -> int:
        return self._position
