"""The options of an endpoint, in addition to those of any server."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.sizes import MIB
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.chunks import chunk_memory_bytes
from kafkafmt.server.options import ServerOptions
from kafkafmt.storage import StoragePath, writable_path
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.server.topics_file import TopicsFile


@dataclass(frozen=True)
class GroupOptions:
    """Limits of consumer groups, by Kafka's names without units. Sizes are in bytes, times in seconds.

    max_size: the most members of a group.
    max_metadata_chars: `offset.metadata.max.bytes`, which Kafka counts in characters.
    max_membership_bytes: the limit for the members of all groups in memory, and their room in the file of offsets.
    max_offsets_bytes: the limit for committed offsets, in their file or in memory.
    """

    min_session_timeout: float = 6.0
    max_session_timeout: float = 1800.0
    initial_rebalance_delay: float = 0.0
    max_size: int = 1000
    max_metadata_chars: int = 4096
    max_membership_bytes: int = 64 * MIB
    max_offsets_bytes: int = 16 * MIB


@dataclass(frozen=True)
class ServeOptions(ServerOptions):
    """How a log directory is served. Sizes are in bytes. The options of any server are in `ServerOptions`.

    state: the folder for committed offsets and group members; None: they are kept in memory.
    downconversion_enable: `log.message.downconversion.enable`, for topics whose configuration does not set it.
    topics_file: overrides the configuration of topics in the directory; None: nothing does.
    zstd_fallback: the codec in which clients without zstd support receive zstd batches; None: they get an error code.
    allow_alter_configs: whether AlterConfigs is accepted, which writes `topics.ini`; `allow_produce` includes it.
    auto_create_topics: `auto.create.topics.enable`: create topics that producers ask for, with one partition.
    max_decompressed_bytes: the most that one batch may decompress to when it is converted. It also limits the sum of
        batches above 1 MiB that are read to be sent unchanged; a batch larger than the limit is read alone.
    max_open_segments: the most segments that stay open, with what is known of them; None: the limit of open files.
    from_segment_start: also serve records below the log start offset; its checkpoint is not read then.
    """

    directory: StoragePath
    state: Path | None = None
    downconversion_enable: bool = True
    topics_file: TopicsFile | None = None
    zstd_fallback: Codec | None = None
    allow_alter_configs: bool = False
    auto_create_topics: bool = False
    max_fetch_bytes: int = 1024 * MIB
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    max_open_segments: int | None = None
    from_segment_start: bool = False
    groups: GroupOptions = field(default_factory=GroupOptions)

    @property
    def local_directory(self) -> Path:
        """Return the directory as a path that can be written to. Raises OSError for a remote folder."""
        return writable_path(self.directory)

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes of conversions a connection keeps, beside the first one, until they are sent."""
        return super().kept_bytes if self.zstd_fallback is None else chunk_memory_bytes(self.chunk_bytes)

    @property
    def alters_configs(self) -> bool:
        """Whether clients may change the configuration of topics."""
        return self.allow_produce or self.allow_alter_configs

    def reload(self) -> ServeOptions:
        """Return these options with the topics file and the users file read again. Raises IniError and OSError."""
        topics_file = None if self.topics_file is None else self.topics_file.reload()
        users = None if self.users is None else self.users.reload()
        return replace(self, topics_file=topics_file, users=users)
