"""An S3 server on loopback behind a proxy that fails as real stores fail: errors, lost connections, lagging listings.

    with faulty_s3() as store:
        path = Storages(store.options).locate(f"s3://{BUCKET}/logs")
        store.fail("GET", "00.log", how="503", times=2)
        ...
        assert store.requests_of("00.log")

`store.options` reach the proxy, and `store.direct_options` reach the server without faults. The bucket exists.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import unquote
from xml.sax.saxutils import unescape

from file_systems import BUCKET, LOOPBACK, s3_server

# 500, 503 and other numbers: the server answers with that status and an error of S3.
# held: as 503, but the answer comes when the store is healed.
# reset: the connection is reset before an answer, and the server does not see the request.
# lost: the server carries out the request, but the connection is closed before its answer.
# truncated: the connection is closed after `after_bytes` bytes of the body.
# short: the body has only its first `after_bytes` bytes, and the header says so.
# cut: the server stores only the first `after_bytes` bytes of the object, and reports success.
# silent: nothing is answered, until the client closes the connection.
# stall: after the header and `after_bytes` bytes of the body nothing comes, until the client closes the connection.
How = Literal[
    "500", "503", "403", "404", "held", "reset", "lost", "truncated", "short", "cut", "silent", "stall"
]
_CODES = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied", "404": "NoSuchKey"}
_CONTENTS = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)
_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect", "host")


@dataclass
class Fault:
    """A fault of requests. hits: how many requests it has failed. healed: set when held requests are answered."""

    method: str | None
    path: str
    how: How
    times: int | None
    skip: int
    after_bytes: int
    hits: int = 0
    healed: threading.Event = field(default_factory=threading.Event)

    def applies(self, method: str, path: str) -> bool:
        """Whether this request fails, which is counted."""
        if self.method not in (None, method) or self.path not in path or self.times == self.hits:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.hits += 1
        return True


@dataclass
class FaultyStore:
    """The store, and its faults. requests: method and path with query, percent-decoded, of each request so far."""

    options: dict[str, str] = field(default_factory=dict)
    direct_options: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _hidden: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def fail(
        self,
        method: str | None = None,
        path: str = "",
        *,
        how: How,
        times: int | None = 1,
        skip: int = 0,
        after_bytes: int = 0,
    ) -> Fault:
        """Fail the next `times` requests (None: all) of a method whose path or query contains a text.

        skip: how many of those requests succeed before. Earlier faults come first.
        """
        fault = Fault(method, path, how, times, skip, after_bytes)
        with self._lock:
            self._faults.append(fault)
        return fault

    def hide(self, text: str) -> None:
        """Leave objects whose keys contain a text out of all listings, as if they were too new."""
        self._hidden.append(text)

    def heal(self) -> None:
        """Remove all faults, answer held requests, show all objects, and forget the requests."""
        with self._lock:
            self._release()
            self._faults.clear()
            self._hidden.clear()
            self.requests.clear()

    def requests_of(self, text: str) -> list[str]:
        """Return the requests whose method, path or query contains a text."""
        return [one for one in list(self.requests) if text in one]

    def fault_of(self, method: str, path: str) -> Fault | None:
        """Note a request, and return its fault."""
        with self._lock:
            self.requests.append(f"{method} {path}")
            return next((fault for fault in self._faults if fault.applies(method, path)), None)

    def shown(self, body: bytes) -> bytes:
        """Return the answer to a listing without what is hidden."""

        def keep(found: re.Match[bytes]) -> bytes:
            key = unescape(unquote(found[1].decode()))
            return b"" if any(text in key for text in self._hidden) else found[0]

        return _CONTENTS.sub(keep, body)

    def cut(self, path: str, authorization: str, size: int) -> None:
        """Truncate the object of a percent-encoded path."""
        headers = {"authorization": authorization}
        server = http.client.HTTPConnection(self.direct_options["endpoint_override"], timeout=60)
        server.request("GET", path, headers=headers | {"range": f"bytes=0-{size - 1}"})
        data = server.getresponse().read()
        server.request("PUT", path, data, headers)
        assert server.getresponse().status == 200
        server.close()

    def wait_until_stopped(self, seconds: float) -> bool:
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        self._stopped.set()
        self._release()

    def _release(self) -> None:
        for fault in self._faults:
            fault.healed.set()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # header and body in one packet
    store: FaultyStore
    upstream: str

    def log_message(self, *arguments: object) -> None:
        pass

    def handle_expect_100(self) -> bool:
        continues = super().handle_expect_100()
        self.wfile.flush()  # or the client waits for a second
        return continues

    def answer(self) -> None:
        body = self._request_body()
        fault = self.store.fault_of(self.command, unquote(self.path))
        if fault is not None and fault.how == "reset":
            self._reset()
        elif fault is not None and fault.how in _CODES:
            self._refuse(fault.how)
        elif fault is not None and fault.how == "held":
            fault.healed.wait()
            self._refuse("503")
        elif fault is not None and fault.how == "silent":
            self._stall()
        else:
            self._forward(body, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    def _request_body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _refuse(self, status: str) -> None:
        body = f"<Error><Code>{_CODES[status]}</Code><Message>{_CODES[status]}</Message></Error>".encode()
        self.send_response(int(status))
        self.send_header("content-type", "application/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        server = http.client.HTTPConnection(self.upstream, timeout=60)
        try:
            headers = {
                name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS
            }
            server.request(self.command, self.path, body, headers)
            answer = server.getresponse()
            content = answer.read()
        finally:
            server.close()
        if fault is not None and fault.how == "cut":
            self.store.cut(self.path.partition("?")[0], self.headers["authorization"], fault.after_bytes)
            fault = None
        if self.command == "GET" and b"<ListBucketResult" in content[:512]:
            content = self.store.shown(content)
        how, sent = (None, content) if fault is None else (fault.how, content[: fault.after_bytes])
        if how == "lost":
            self._reset()
            return
        length = len(content) if self.command != "HEAD" else answer.getheader("content-length") or 0
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        self.send_header("content-length", str(len(sent) if how == "short" else length))
        self.end_headers()
        self.wfile.write(sent)
        self.wfile.flush()
        if how == "truncated":
            self.close_connection = True
        elif how == "stall":
            self._stall()

    def _stall(self) -> None:
        self.connection.settimeout(0.1)
        while not self.store.wait_until_stopped(0):
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self.close_connection = True

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that gave up closed the connection


@contextmanager
def faulty_s3(direct_options: Mapping[str, str] | None = None) -> Iterator[FaultyStore]:
    """Start the proxy, and a server; or use the server of `direct_options`, which `s3_server` yielded."""
    if direct_options is None:
        with s3_server() as options, faulty_s3(options) as store:
            yield store
        return
    from pyarrow.fs import S3FileSystem

    S3FileSystem(**direct_options, allow_bucket_creation=True).create_dir(BUCKET)
    store = FaultyStore(direct_options=dict(direct_options))
    handler = type("Handler", (_Handler,), {"store": store, "upstream": direct_options["endpoint_override"]})
    server = _Server((LOOPBACK, 0), handler)
    store.options = {**direct_options, "endpoint_override": f"{LOOPBACK}:{server.server_port}"}
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.stop()
        server.shutdown()
        server.server_close()
        thread.join()
