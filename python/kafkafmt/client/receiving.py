"""kafka-python's network client, changed to receive responses of megabytes in few reads and few copies.

kafka-python reads 4 KiB at a time, and copies a response five times before it decodes it. Here each connection reads
all available bytes into its own buffer, and the response is the only copy of them. kafka-python also registers a socket
again for each read and write, which makes the selector format an error text each time: `DescriptorSelector` avoids it.
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

# Small enough to stay in the processor's cache between the read and the copy after it.
_READ_BYTES = 256 * 1024
_NOTHING_YET = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class DescriptorSelector(selectors.DefaultSelector):
    """The system's default selector, which looks a socket up by its descriptor alone. For the option `selector`.

    The standard library's selectors ask the kernel for both addresses of a socket that is not registered, to write the
    text of a KeyError.
    """

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        descriptor = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if descriptor < 0:  # the socket is closed, and may still be registered
            return super().get_key(fileobj)
        key: selectors.SelectorKey | None = self._fd_to_key.get(descriptor)  # type: ignore[attr-defined]
        if key is None:
            raise KeyError(descriptor)
        return key


class ReceivingClient(KafkaNetClient):  # type: ignore[misc]
    """A KafkaNetClient that receives large responses fast. For the option `kafka_client` of a consumer."""

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
    """Return the bytes available on the socket, valid until the next call, and an error if the connection has ended.

    kafka-python drops bytes that come with an error. So the error is left to the next call if there are bytes.
    """
    sock, filled = transport._sock, 0
    ended: str | OSError | None = None
    try:
        while filled < len(memory):
            count = sock.recv_into(memory[filled:])
            if not count:
                ended = "socket disconnected"
                break
            filled += count
    except _NOTHING_YET:
        pass
    except OSError as error:
        ended = error
    if ended is not None and not filled:
        return b"", kafka_errors.KafkaConnectionError(ended)
    # The selector does not report bytes that TLS has decrypted already.
    if filled == len(memory) and isinstance(sock, ssl.SSLSocket) and sock.pending():
        return bytes(memory) + sock.recv(sock.pending()), None
    return memory[:filled], None


def _process_response(process: Callable[[_Frame], Any], frame: bytearray) -> Any:
    return process(_Frame(frame))


class _Frame:
    """A response for kafka-python's decoder. The bytes after the header are returned as a view, not copied."""

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
