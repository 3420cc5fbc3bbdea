"""All that the endpoint can be told, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.serve.security.users import Users
    from kafkafmt.serve.topics_file import TopicsFile

LogFormat: TypeAlias = Literal["auto", "json", "text"]
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 9092
KIB, MIB, GIB = 1024, 1024**2, 1024**3


def host_and_port(host: str, port: int) -> str:
    """An address as people write it: `127.0.0.1:9092`, `[::1]:9092`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class TlsOptions:
    """PEM files: the chain of certificates that is shown to clients, its key, and who must have signed theirs.

    client_ca: certificates of authorities; a client must then show a certificate that one of them signed (mutual
    TLS). None: clients show none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class GroupOptions:
    """Limits of consumer groups, by Kafka's names with units apart. Sizes are in bytes, times in seconds.

    max_size: members a group.
    max_metadata_chars: `offset.metadata.max.bytes`, which Kafka counts in characters.
    max_membership_bytes: what all members of all groups may take in memory, and add to the file of offsets.
    max_offsets_bytes: what the committed offsets may take, in their file or in memory.
    """

    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    initial_rebalance_delay: float = 0.0
    max_size: int = 1000
    max_metadata_chars: int = 4096
    max_membership_bytes: int = 64 * MIB
    max_offsets_bytes: int = 16 * MIB


@dataclass(frozen=True)
class ServeOptions:
    """How a log directory is served. Sizes are in bytes, times in seconds.

    advertised: the host and port that clients are told to come back to; None: `host` and the port it listens on.
    state: the folder for committed offsets and who is in which group; None: that is kept in memory.
    downconversion_enable: `log.message.downconversion.enable`, for topics whose configuration does not say otherwise.
    topics_file: what is above the configuration of topics that the directory has; None: nothing.
    zstd_fallback: the codec that zstd batches get for clients that cannot have it; None: an error code.
    max_downconversion_bytes: what all chunks that are being sent may take together.
    max_request_bytes: the largest request that is read, but for Produce.
    allow_produce: whether records may be appended to the logs, and topics be made.
    auto_create_topics: `auto.create.topics.enable`: make topics that producers ask for, of one partition.
    max_produce_bytes: `socket.request.max.bytes`, of Produce, where that is allowed.
    max_produce_memory_bytes: what requests and responses of all connections of a process may take together, beside
        what each connection has of its own.
    memory_bytes: what the limits were divided from (`within_memory`), that processes are kept to; None: nothing.
    max_decompressed_bytes: the most that one batch may decompress to, where that is converted.
    max_open_segments: the most that stay open, with what is known of them; None: as the limit of open files has it.
    from_segment_start: whether records below the log start offset are served; its file is not read then.
    max_connections: of each process; None: as many as the limit of open files leaves.
    tls: None: clients connect in plain text. users: who may connect, by SASL; None: everybody.
    metrics: the host and port that metrics are served on; None: there are none.
    shutdown_timeout: how long responses that are being sent have to end, once the endpoint is told to.
    """

    directory: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    advertised: tuple[str, int] | None = None
    state: Path | None = None
    workers: int = 1
    downconversion_enable: bool = True
    topics_file: TopicsFile | None = None
    zstd_fallback: Codec | None = None
    chunk_bytes: int = 512 * KIB
    max_downconversion_bytes: int = 64 * MIB
    max_connections: int | None = None
    max_request_bytes: int = MIB
    allow_produce: bool = False
    auto_create_topics: bool = False
    max_produce_bytes: int = 100 * MIB
    max_produce_memory_bytes: int = 256 * MIB
    max_fetch_bytes: int = 1024 * MIB
    memory_bytes: int | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    max_open_segments: int | None = None
    from_segment_start: bool = False
    write_timeout: float = 60.0
    request_timeout: float = 60.0
    idle_timeout: float = 600.0
    shutdown_timeout: float = 30.0
    tls: TlsOptions | None = None
    users: Users | None = None
    metrics: tuple[str, int] | None = None
    log_format: LogFormat = "auto"
    log_level: LogLevel = "info"
    groups: GroupOptions = field(default_factory=GroupOptions)

    def read_again(self) -> ServeOptions:
        """These options with the files of topics and users as they are now. Raises IniError and OSError."""
        topics_file = None if self.topics_file is None else self.topics_file.read_again()
        users = None if self.users is None else self.users.read_again()
        return replace(self, topics_file=topics_file, users=users)

    @property
    def largest_request_bytes(self) -> int:
        """The largest request of any API."""
        if not self.allow_produce:
            return self.max_request_bytes
        return max(self.max_request_bytes, self.max_produce_bytes)
