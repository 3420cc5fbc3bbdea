"""All that the endpoint can be told, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt.types import Codec

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 9092
KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class TopicOptions:
    """What a topics file says of one topic; None: as the endpoint's own option."""

    downconversion_enable: bool | None = None


@dataclass(frozen=True)
class ServeOptions:
    """How a log directory is served. Sizes are in bytes, times in seconds.

    advertised: the host and port that clients are told to come back to; None: those it listens on.
    state: the folder for committed offsets; None: they are kept in memory.
    downconversion_enable: `log.message.downconversion.enable`, and `topics` says otherwise for single topics.
    zstd_fallback: the codec that zstd batches get for clients that cannot have it; None: an error code.
    max_downconversion_bytes: what all chunks that are being sent may take together.
    """

    directory: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    advertised: tuple[str, int] | None = None
    state: Path | None = None
    workers: int = 1
    downconversion_enable: bool = True
    topics: Mapping[str, TopicOptions] = field(default_factory=dict)
    zstd_fallback: Codec | None = None
    chunk_bytes: int = 512 * KIB
    max_downconversion_bytes: int = 64 * MIB
    max_request_bytes: int = MIB
    max_fetch_bytes: int = 55 * MIB
    write_timeout: float = 60.0
    request_timeout: float = 60.0
    idle_timeout: float = 600.0
