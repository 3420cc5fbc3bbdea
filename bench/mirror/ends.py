"""The two ends of the floor: a source that sends a segment again and again, and a target that receives all.

They run by themselves, until standard input ends: `python -m bench.mirror.ends SEGMENT` prints the port of the source
and that of the target. The source sends out of the page cache, as brokers do. Each serves one connection at a time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import ROOT
from bench.mirror.floor import HOST, SIZE, SMALL_BYTES, receive


def main(segment: str) -> None:
    with Path(segment).open("rb") as file:
        source, target = socket.create_server((HOST, 0)), socket.create_server((HOST, 0))
        _serve(source, lambda connection: _send_responses(connection, file.fileno()))
        _serve(target, _receive_requests)
        print(source.getsockname()[1], target.getsockname()[1], flush=True)
        sys.stdin.read()


def _serve(server: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    def serve() -> None:
        while True:
            with server.accept()[0] as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()


def _send_responses(connection: socket.socket, file: int) -> None:
    request = memoryview(bytearray(SMALL_BYTES))
    size, position = os.fstat(file).st_size, 0
    while receive(connection, request):
        (left,) = SIZE.unpack_from(request)
        while left:
            sent = os.sendfile(connection.fileno(), file, position, min(left, size - position))
            left -= sent
            position = (position + sent) % size


def _receive_requests(connection: socket.socket) -> None:
    header, memory = memoryview(bytearray(SIZE.size)), memoryview(bytearray())
    while receive(connection, header):
        (size,) = SIZE.unpack(header)
        if size > len(memory):
            memory = memoryview(bytearray(size))
        receive(connection, memory[:size])
        connection.sendall(bytes(SMALL_BYTES))


@contextmanager
def ends(segment: Path) -> Iterator[tuple[str, str]]:
    """The ports of a source that has this segment, and of a target, in a process of their own."""
    command = [sys.executable, "-m", "bench.mirror.ends", str(segment)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        source, target = process.stdout.readline().split()
        yield source, target
        process.communicate()


if __name__ == "__main__":
    main(*sys.argv[1:])
