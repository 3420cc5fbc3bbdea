"""The manifest of a generation of a backup: what the backup had when the generation was complete.

A backup is a folder of a storage:

    kafkafmt-backup.json                                   the identity of the backup
    generations/<number, 20 digits>-<8 hex digits>.json.zst    a manifest, written after all that it names
    segments/<topic>/<topic id or "none">/<partition>/<base offset, 20 digits>-<32 hex digits>.log  and .index, ...

Objects are never changed. A manifest names all segments of its generation, also those of earlier generations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BACKUP_FILE = "kafkafmt-backup.json"
GENERATIONS_FOLDER = "generations"
SEGMENTS_FOLDER = "segments"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class WrappedKey:
    """The data key of a segment, wrapped by the key `key_id` of a key ring."""

    key_id: str
    wrapped: bytes


@dataclass(frozen=True)
class StoredFile:
    """A file of a segment: its original size, and size and SHA-256 (hex) of the object as it is stored.

    chunk_bytes: the original size of its chunks, and `chunk_sizes` their sizes in the store; 0 and empty for a file
    that is stored as it is.
    """

    size: int
    stored_size: int
    sha256: str
    chunk_bytes: int = 0
    chunk_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class BackedUpSegment:
    """A sealed segment. Offsets are the source's.

    object: the path of its `.log` below the backup's folder, without the suffix.
    files: by suffix: `.log`, `.index`, `.timeindex`, `.txnindex`, `.snapshot`.
    leader_epochs: leader epoch and its first offset in this segment.
    compression: "zstd" if the chunks of `.log` are compressed; "none".
    key: the wrapped key if all files of this segment are encrypted.
    """

    object: str
    base_offset: int
    next_offset: int
    max_timestamp_ms: int
    files: Mapping[str, StoredFile]
    leader_epochs: tuple[tuple[int, int], ...] = ()
    compression: str = "none"
    key: WrappedKey | None = None


@dataclass(frozen=True)
class BackedUpPartition:
    """A partition. start_offset: the log start offset at the source. next_offset: where the next run continues."""

    partition: int
    start_offset: int
    next_offset: int
    segments: tuple[BackedUpSegment, ...] = ()


@dataclass(frozen=True)
class BackedUpTopic:
    """A topic. topic_id: as a UUID in hex digits and dashes; None if the source keeps none. configs: set explicitly."""

    name: str
    topic_id: str | None
    partition_count: int
    configs: Mapping[str, str]
    partitions: tuple[BackedUpPartition, ...] = ()


@dataclass(frozen=True)
class GroupOffset:
    """A committed offset of a consumer group."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that was open. transactional_id: None if the source does not tell."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    transactional_id: str | None = None


@dataclass(frozen=True)
class Manifest:
    """A generation. source: the cluster's id, or a folder's path. Times are in milliseconds since the epoch.

    parent: the name of the generation before, without its suffixes; None for the first one.
    writer: a random id of the run that wrote it.
    groups: committed offsets by consumer group, as of `groups_at_ms`.
    """

    number: int
    name: str
    parent: str | None
    source: str
    created_ms: int
    writer: str
    topics: tuple[BackedUpTopic, ...] = ()
    groups: Mapping[str, tuple[GroupOffset, ...]] = field(default_factory=dict)
    groups_at_ms: int = 0
    open_transactions: tuple[OpenTransaction, ...] = ()
    version: int = FORMAT_VERSION

    def encode(self) -> bytes:
        """Return the manifest as JSON, compressed by zstd."""
        raise NotImplementedError

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """Read a manifest. Raises BackupError, which names the field, if the bytes are no manifest of this format."""
        raise NotImplementedError
