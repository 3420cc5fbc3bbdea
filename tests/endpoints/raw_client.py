"""A client that is nothing but a socket and kafka-python's messages, to ask any version of any API by hand."""

from __future__ import annotations

import socket
import struct
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

SECONDS = 60
CLIENT_ID = "raw-client"
SIZE = struct.Struct(">i")


class RawClient:
    """One connection to `address`. A context manager that closes it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=SECONDS)
        self._correlation_ids = count(1000)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, request: Any, version: int) -> Any:
        """The response, decoded at that version; asserts that it is the one to this request and decodes whole."""
        correlation_id = self.send(request, version)
        return self.receive(request, version, correlation_id)

    def send(self, request: Any, version: int) -> int:
        """The correlation id that the request goes out with."""
        correlation_id = next(self._correlation_ids)
        self.socket.sendall(frame(request, version, correlation_id))
        return correlation_id

    def receive(self, request: Any, version: int, correlation_id: int) -> Any:
        data = self.receive_frame()
        response_class = request.header.get_response_class()
        response = response_class.decode(data, version=version, header=True)
        assert response.header.correlation_id == correlation_id
        return response

    def receive_frame(self) -> bytes:
        """Raises ConnectionError where the connection ends first."""
        (size,) = SIZE.unpack(self._receive(SIZE.size))
        return self._receive(size)

    def is_closed_by_peer(self) -> bool:
        """Whether the connection ends without another byte; waits for either."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError(f"the connection ended behind {len(data)} of {size} bytes")
            data += part
        return bytes(data)


def frame(request: Any, version: int, correlation_id: int) -> bytes:
    """A request as it goes over the wire, size field included."""
    request.API_VERSION = version
    request.with_header(correlation_id=correlation_id, client_id=CLIENT_ID)
    return bytes(request.encode(version=version, header=True, framed=True))


def plain(message: Any) -> dict[str, Any]:
    """A message as dictionaries and lists; records and topic ids as they are."""
    told: dict[str, Any] = message.to_dict(json=False)
    return told
