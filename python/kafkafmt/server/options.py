"""The options of a server, whatever it serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kafkafmt._util.sizes import KIB, MIB
from kafkafmt.convert.chunks import chunk_memory_bytes

if TYPE_CHECKING:
    from kafkafmt.server.security.users import UncheckedUsers, Users
    from kafkafmt.types import Codec

LogFormat: TypeAlias = Literal["auto", "json", "text"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 9092


@dataclass(frozen=True)
class TlsOptions:
    """PEM files for TLS. certificate: the server's chain of certificates; key: its key.

    client_ca: certificate authorities; a client must show a certificate that one of them signed (mutual TLS). None:
    clients show none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Addresses, limits, timeouts and security of a server. Sizes are in bytes, times in seconds.

    advertised: the host and port that clients are told to connect to; None: `host` and the port it listens on.
    max_downconversion_bytes: the limit for all chunks that are being sent, over all workers.
    downconversion_codec: the codec of records that are converted for consumers; None: each batch keeps its own.
    max_request_bytes: the largest request, except Produce.
    allow_produce: whether Produce is accepted, whose requests may be larger.
    max_produce_bytes: `socket.request.max.bytes` for Produce, if it is accepted.
    max_produce_memory_bytes: the limit for requests and responses of all connections of a process, beyond each
        connection's own bytes.
    memory_bytes: the total that the limits were derived from, and that processes are held to; None: no total.
    max_connections: the most connections of each process; None: as many as the limit of open files allows.
    max_connections_per_ip: the most of them from one IP address; None: no limit.
    tls: None: clients connect in plain text. users: who may connect, by SASL; None: every client.
    metrics: the host and port that metrics are served on; None: no metrics.
    request_timeout: the longest time for a TLS handshake, for authentication, and for the rest of a request to arrive.
    shutdown_timeout: the longest time that responses in flight may take after the server begins to drain.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    advertised: tuple[str, int] | None = None
    workers: int = 1
    chunk_bytes: int = 512 * KIB
    max_downconversion_bytes: int = 64 * MIB
    downconversion_codec: Codec | None = None
    max_connections: int | None = None
    max_connections_per_ip: int | None = None
    max_request_bytes: int = MIB
    allow_produce: bool = False
    max_produce_bytes: int = 100 * MIB
    max_produce_memory_bytes: int = 256 * MIB
    memory_bytes: int | None = None
    write_timeout: float = 60.0
    request_timeout: float = 60.0
    idle_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    tls: TlsOptions | None = None
    users: Users | UncheckedUsers | None = None
    metrics: tuple[str, int] | None = None
    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes of conversions a connection keeps, beside the first one, until they are sent."""
        return 0 if self.downconversion_codec is None else chunk_memory_bytes(self.chunk_bytes)

    @property
    def largest_request_bytes(self) -> int:
        """Return the size of the largest request of any API."""
        if not self.allow_produce:
            return self.max_request_bytes
        return max(self.max_request_bytes, self.max_produce_bytes)
