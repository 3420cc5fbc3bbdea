"""The floor of a mirror: receives the bytes of a topic from one socket, sends them to another, and does nothing else.

It runs by itself, and ends when the other side has all: `python -m bench.mirror.floor SOURCE TARGET BYTES RESPONSE
REQUEST`, the ports of `bench.mirror.ends`, and sizes in bytes. It asks for a response as a consumer does, receives it
into memory that it uses again, and sends it in requests, each of which is acknowledged. While it sends, the source
prepares the next response.

It is written in Python, because Python's own share is small: for each response and each request it has three calls of
the system, and no call for each batch.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator

HOST = "127.0.0.1"
# Of a fetch of some partitions, and of an answer to Produce. A size stands at their beginning.
SMALL_BYTES = 256
SIZE = struct.Struct(">q")


def receive(connection: socket.socket, memory: memoryview) -> bool:
    """Fill the memory. Returns False if the other side has closed the connection before the first byte."""
    done = 0
    while done < len(memory):
        taken = connection.recv_into(memory[done:], 0, socket.MSG_WAITALL)
        if not taken:
            if done:
                raise ConnectionError(f"closed with {done} of {len(memory)} bytes received")
            return False
        done += taken
    return True


def _send(connection: socket.socket, header: bytes, body: memoryview) -> None:
    sent = connection.sendmsg([header, body])
    if sent < len(header) + len(body):
        connection.sendall(
            (header + bytes(body))[sent:] if sent < len(header) else body[sent - len(header) :]
        )


def _sizes(total: int, most: int) -> Iterator[int]:
    while total:
        size = min(total, most)
        yield size
        total -= size


def main(source_port: str, target_port: str, total: str, response: str, request: str) -> None:
    memories = [memoryview(bytearray(int(response))) for _ in range(2)]
    answer = memoryview(bytearray(SMALL_BYTES))
    sizes = list(_sizes(int(total), int(response)))
    with (
        socket.create_connection((HOST, int(source_port))) as source,
        socket.create_connection((HOST, int(target_port))) as target,
    ):
        for connection in (source, target):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, size in enumerate([*sizes, 0]):
            if size:
                source.sendall(SIZE.pack(size).ljust(SMALL_BYTES, b"\0"))
            if number:  # the response before it
                _forward(target, memories[(number - 1) % 2][: sizes[number - 1]], int(request), answer)
            if not receive(source, memories[number % 2][:size]):
                raise ConnectionError("closed by the source")


def _forward(target: socket.socket, response: memoryview, most: int, answer: memoryview) -> None:
    for at in range(0, len(response), most):
        body = response[at : at + most]
        _send(target, SIZE.pack(len(body)), body)
        if not receive(target, answer):
            raise ConnectionError("closed by the target")


if __name__ == "__main__":
    main(*sys.argv[1:])
