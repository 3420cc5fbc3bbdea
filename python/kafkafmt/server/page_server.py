"""The HTTP server of the metrics port. Its clients cannot take more threads, memory or time than its limits.

A request has a thread. There are `MOST_REQUESTS` of them at a time, and further connections are closed. A request and
its response have `request_timeout` seconds together, and the head of a request `MOST_HEAD_BYTES`.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.client import LineTooLong
from io import BufferedIOBase
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog

from kafkafmt._util.addresses import address_family
from kafkafmt.server.pages import Application

MOST_REQUESTS = 64
MOST_HEAD_BYTES = 32 * 1024

_log = structlog.get_logger()


class PageServer(ThreadingMixIn, WSGIServer):
    """Serves a WSGI application on a port; 0: any free one. `serve_forever` runs it. Raises OSError."""

    daemon_threads = True
    # If the queue is full, as the 5 of the base class soon are, a client connects again after a second.
    request_queue_size = MOST_REQUESTS

    def __init__(self, host: str, port: int, application: Application, request_timeout: float) -> None:
        self.address_family = address_family(host)
        self._request_timeout = request_timeout
        self._free = threading.Semaphore(MOST_REQUESTS)
        super().__init__((host, port), _Handler)
        self.set_app(application)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the thread of a request, or close its connection if there are too many."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request, and end its connection when its time is over."""
        timer = threading.Timer(self._request_timeout, _end, (request,))
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # no thread can be started for the timer
            self.handle_error(request, client_address)
            self.shutdown_request(request)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what the base class prints: clients that disconnect early are not errors."""
        _log.debug("a request of the metrics port failed", client=client_address[0], exc_info=True)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


class _Head(BufferedIOBase):
    """The head of a request, line by line. Raises LineTooLong after `MOST_HEAD_BYTES`."""

    def __init__(self, file: BufferedIOBase) -> None:
        self._file, self._left = file, MOST_HEAD_BYTES

    def readline(self, size: int | None = -1, /) -> bytes:
        if not self._left:
            raise LineTooLong("head")
        line = self._file.readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._file.close()
        super().close()
