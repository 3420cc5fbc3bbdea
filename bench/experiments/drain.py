"""A consumer that reads and forgets: a process of its own, connected by TCP over loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench import ROOT

_READ_BYTES = 1024 * 1024


@contextmanager
def draining() -> Iterator[socket.socket]:
    """A socket whose other end is read until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        reader = subprocess.Popen([sys.executable, "-m", "bench.experiments.drain", port], cwd=ROOT)
        connection, _ = server.accept()
        with connection:
            yield connection
        if reader.wait():
            raise RuntimeError("the reader failed")


def main(port: str) -> None:
    memory = bytearray(_READ_BYTES)
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        while connection.recv_into(memory):
            pass


if __name__ == "__main__":
    main(sys.argv[1])
