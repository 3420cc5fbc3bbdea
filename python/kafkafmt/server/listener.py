"""A server: accepts connections, serves each in a task of its own, and closes them when it drains."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import structlog

from kafkafmt._util.addresses import address_family, host_and_port
from kafkafmt._util.descriptors import max_connections
from kafkafmt.records.channel import TruncatedFileError
from kafkafmt.server.connection import Connection
from kafkafmt.server.errors import RefusedError, RequestError
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.service import Service
from kafkafmt.server.stream import Stream
from kafkafmt.server.structured_logging import RateLimitedLog, bind_connection

_log = structlog.get_logger()

_BACKLOG = 1024
# OpenSSL's reasons for which the certificate of a client is refused.
_CERTIFICATE_REASONS = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0: any free port. Raises OSError with the address as its file name."""
    try:
        return socket.create_server((host, port), backlog=_BACKLOG, family=address_family(host))
    except OSError as error:
        # The message of create_server includes the address already. The number of a gaierror is not an errno.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise OSError(error.errno, reason, host_and_port(host, port)) from None


class Server:
    """Serves clients on a listening socket, which the caller closes. tls: None: in plain text.

    further: more listening sockets, for the same clients.
    """

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        tls: ssl.SSLContext | None,
        further: Sequence[socket.socket] = (),
    ) -> None:
        self.service = service
        self._listener = listener
        self._listeners = (listener, *further)
        self._tls = tls
        self._max_connections = service.options.max_connections or max_connections()
        self._connections: dict[asyncio.Task[None], Connection | None] = {}
        self._by_host: Counter[str] = Counter()
        self._numbers = itertools.count(1)
        self._accepting: list[asyncio.Task[None]] = []
        self._failures = RateLimitedLog()

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that the server listens on."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def serve(self) -> None:
        """Serve until `drain` was called and the responses in flight are sent, or `shutdown_timeout` is over.

        If the task is cancelled, it does not wait for responses.
        """
        for listener in self._listeners:
            listener.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listener)))
        # `gather` distinguishes the cancellation of those tasks, by `drain`, from a cancellation of this one.
        for end in await asyncio.gather(*self._accepting, return_exceptions=True):
            if isinstance(end, Exception):
                raise end
        if self._connections:
            await asyncio.wait(self._connections, timeout=self.service.options.shutdown_timeout)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def apply(self, options: ServerOptions, tls: ssl.SSLContext | None) -> None:
        """Use other options and certificates for new connections. Open connections are not affected."""
        self._tls = tls
        self.service = replace(self.service, options=options)

    def drain(self) -> None:
        """Accept no more connections, close idle ones, and close the others after their current response."""
        for accepting in self._accepting:
            accepting.cancel()
        for task, connection in self._connections.items():
            if connection is None or not connection.is_busy:
                task.cancel()
            else:
                connection.drain()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        limited = RateLimitedLog()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, for example: other connections may close
                limited.write(_log.error, "failure", "connection not accepted", error=str(error))
                await asyncio.sleep(0.1)
                continue
            host = address[0] if address else ""  # a Unix socket has no address
            if (excess := self._excess(host)) is not None:
                self.service.metrics.connection_refused("limit")  # counted before the client can notice
                sock.close()
                limited.write(_log.warning, "refusal", "too many connections", **excess)
                continue
            task = loop.create_task(self._serve(sock))
            self._connections[task] = None
            self._by_host[host] += 1
            task.add_done_callback(partial(self._forget, host))

    def _excess(self, host: str) -> dict[str, object] | None:
        """Return the limit that one more connection of a host would exceed; None if it may connect."""
        if len(self._connections) >= self._max_connections:
            return {"most": self._max_connections}
        most = self.service.options.max_connections_per_ip
        if most is not None and self._by_host[host] >= most:
            return {"host": host, "most_per_ip": most}
        return None

    def _forget(self, host: str, task: asyncio.Task[None]) -> None:
        del self._connections[task]
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    async def _serve(self, sock: socket.socket) -> None:
        self.service.metrics.connection_opened()
        stream = None
        try:
            stream = Stream(sock)
            bind_connection(next(self._numbers), f"{stream.host}:{stream.port}")
            await self._serve_stream(stream)
        except ssl.SSLError as error:
            self.service.metrics.connection_refused("tls")
            self._log_tls(error, stream)
        except TruncatedFileError as error:  # an EOFError of the served data, not of the connection
            _log.error("connection failed", error=str(error))
        except (ConnectionError, TimeoutError, EOFError) as error:
            _log.debug("connection ended", error=str(error))
        except (RefusedError, RequestError) as error:
            self.service.metrics.connection_refused(
                error.reason if isinstance(error, RefusedError) else "request"
            )
            _log.warning("connection closed", error=str(error))
        except OSError as error:
            _log.error("connection failed", error=str(error))
        except Exception:
            _log.exception("connection failed")
        finally:
            (stream or sock).close()
            self.service.metrics.connection_closed()

    def _log_tls(self, error: ssl.SSLError, stream: Stream | None) -> None:
        """Log a failed handshake: a certificate that is refused, or that is missing, as a warning."""
        reason = error.reason or str(error)
        log = _log.warning if reason in _CERTIFICATE_REASONS else _log.info
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"{reason}: {error.verify_message}"
        host = None if stream is None else stream.host
        self._failures.write(log, (host, reason), "TLS failed", error=reason)

    async def _serve_stream(self, stream: Stream) -> None:
        if stream.socket.family != socket.AF_UNIX:
            stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.keep_alive()
        if self._tls is not None:
            await stream.start_tls(self._tls, self.service.options.request_timeout)
        connection = Connection(stream, self.service)
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = connection
        await connection.serve()
