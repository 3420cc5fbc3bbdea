"""The manifest of a generation of a backup: what the backup had when the generation was complete.

A backup is a folder of a storage:

    kafkafmt-backup.json                                   the identity of the backup
    generations/<number, 20 digits>-<8 hex digits>.json.zst    a manifest, written after all that it names
    segments/<topic>/<topic id or "none">/<partition>/<base offset, 20 digits>-<32 hex digits>.log  and .index, ...

Objects are never changed. A manifest names all segments of its generation, also those of earlier generations.

A manifest is JSON, compressed by zstd. Its keys are the names of the fields of the dataclasses here. Bytes are in
base64. A reader ignores keys that it does not know, and refuses a later format version.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from itertools import pairwise
from typing import Any

from kafkafmt import codecs
from kafkafmt.errors import CorruptRecordError, DecompressionLimitError
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.json_fields import Fields, shown
from kafkafmt.types import Codec, TopicPartition

BACKUP_FILE = "kafkafmt-backup.json"
GENERATIONS_FOLDER = "generations"
SEGMENTS_FOLDER = "segments"
FORMAT_VERSION = 1
# The files of a segment, by suffix.
FILE_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPRESSIONS = ("none", "zstd")
# A reader has a chunk in memory twice: as it is stored, and its original bytes.
MOST_CHUNK_BYTES = 64 * 1024 * 1024

_MOST_JSON_BYTES = 1024 * 1024 * 1024
_MAX_INT32 = 2**31 - 1
_MAX_INT16 = 2**15 - 1
_GENERATION = re.compile(r"(?P<number>\d{20})-[0-9a-f]{8}", re.ASCII)
_OBJECT = re.compile(
    rf"{SEGMENTS_FOLDER}/[a-zA-Z0-9._-]{{1,249}}/(?:none|[0-9a-f-]{{36}})/\d{{1,10}}/"
    r"(?P<offset>\d{20})-[0-9a-f]{32}",
    re.ASCII,
)
_TOPIC_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


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
        """Return the manifest as JSON, compressed by zstd. Raises BackupError if `decode` would refuse it."""
        text = json.dumps(vars(self), default=_encoded, separators=(",", ":")).encode("ascii")
        if len(text) > _MOST_JSON_BYTES:
            raise BackupError(
                f"{self.name}: expected a manifest of at most {_MOST_JSON_BYTES} bytes of JSON, found {len(text)}: "
                "begin another backup, with larger segments"
            )
        _manifest(Fields.parse(text, self.name))
        return codecs.compress(Codec.ZSTD, text)

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """Read a manifest. name: of the object, for errors.

        Raises BackupError, which names the object and the field, if the bytes are no manifest of this format.
        """
        try:
            text = bytes(codecs.decompress(Codec.ZSTD, data, limit=_MOST_JSON_BYTES))
        except (CorruptRecordError, DecompressionLimitError) as error:
            raise BackupError(f"{name}: expected a manifest that zstd compressed: {error}") from None
        return _manifest(Fields.parse(text, name))


def is_generation_name(name: str) -> bool:
    """Whether a generation may have this name."""
    return _GENERATION.fullmatch(name) is not None


def _encoded(value: object) -> Any:
    """Return a value for JSON. Nothing is copied: a manifest may have many thousands of segments."""
    if is_dataclass(value):
        return vars(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"expected a value of a manifest, found {type(value).__name__}")


def _manifest(fields: Fields) -> Manifest:
    version = fields.integer("version", 1)
    if version > FORMAT_VERSION:
        fields.refuse("version", f"{FORMAT_VERSION}, the latest format that this version of kafkafmt reads")
    name, number = fields.text("name"), fields.integer("number", 1)
    match = _GENERATION.fullmatch(name)
    if match is None or int(match["number"]) != number:
        fields.refuse("name", f"{number} in 20 digits, a hyphen and 8 hex digits")
    parent = fields.text_or_none("parent")
    if parent is not None and (not is_generation_name(parent) or parent >= name):
        fields.refuse("parent", "the name of an earlier generation")
    topics = tuple(map(_topic, fields.objects("topics")))
    if len({topic.name for topic in topics}) != len(topics):
        fields.refuse("topics", "each topic once")
    return Manifest(
        number=number,
        name=name,
        parent=parent,
        source=fields.text("source"),
        created_ms=fields.integer("created_ms"),
        writer=fields.text("writer"),
        topics=topics,
        groups={group: tuple(map(_group_offset, one)) for group, one in fields.named_lists("groups")},
        groups_at_ms=fields.integer("groups_at_ms"),
        open_transactions=tuple(map(_open_transaction, fields.objects("open_transactions"))),
        version=version,
    )


def _topic(fields: Fields) -> BackedUpTopic:
    name, topic_id = _topic_name(fields, "name"), fields.text_or_none("topic_id")
    if topic_id is not None and not _TOPIC_ID.fullmatch(topic_id):
        fields.refuse("topic_id", "a UUID in hex digits and dashes")
    count = fields.integer("partition_count", 0, _MAX_INT32)
    partitions = tuple(_partition(one, count) for one in fields.objects("partitions"))
    if len({one.partition for one in partitions}) != len(partitions):
        fields.refuse("partitions", "each partition once")
    return BackedUpTopic(name, topic_id, count, fields.texts("configs"), partitions)


def _partition(fields: Fields, count: int) -> BackedUpPartition:
    next_offset = fields.integer("next_offset")
    found = BackedUpPartition(
        partition=fields.integer("partition", 0, count - 1),
        start_offset=fields.integer("start_offset", 0, next_offset),
        next_offset=next_offset,
        segments=tuple(map(_segment, fields.objects("segments"))),
    )
    for before, segment in pairwise(found.segments):
        if segment.base_offset < before.next_offset:
            fields.refuse("segments", f"base offset {segment.base_offset} at {before.next_offset} or later")
    if found.segments and found.segments[-1].next_offset > next_offset:
        fields.refuse("next_offset", f"{found.segments[-1].next_offset} or more, as the last segment ends")
    return found


def _segment(fields: Fields) -> BackedUpSegment:
    name, base_offset = fields.text("object"), fields.integer("base_offset")
    match = _OBJECT.fullmatch(name)
    if match is None or int(match["offset"]) != base_offset:
        fields.refuse("object", f"the path of a segment with base offset {base_offset}")
    compression = fields.text("compression")
    if compression not in COMPRESSIONS:
        fields.refuse("compression", " or ".join(COMPRESSIONS))
    files = dict(_stored_files(fields))
    if ".log" not in files:
        fields.refuse("files", ".log among them")
    key = fields.object_or_none("key")
    if compression != "none" and files[".log"].size and not files[".log"].chunk_bytes:
        fields.refuse("compression", "none, as .log has no chunks")
    if key is not None and any(one.size and not one.chunk_bytes for one in files.values()):
        fields.refuse("key", "null, as a file has no chunks")
    epochs = fields.pairs("leader_epochs")
    if any(one[0] >= other[0] or one[1] > other[1] for one, other in pairwise(epochs)):
        fields.refuse("leader_epochs", "leader epochs and offsets in ascending order")
    return BackedUpSegment(
        object=name,
        base_offset=base_offset,
        next_offset=fields.integer("next_offset", base_offset),
        max_timestamp_ms=fields.integer("max_timestamp_ms", -1),
        files=files,
        leader_epochs=epochs,
        compression=compression,
        key=None if key is None else WrappedKey(key.text("key_id"), _bytes(key, "wrapped")),
    )


def _stored_files(fields: Fields) -> Iterator[tuple[str, StoredFile]]:
    for suffix, file in fields.named_objects("files"):
        if suffix not in FILE_SUFFIXES:
            fields.refuse("files", f"the suffixes {', '.join(FILE_SUFFIXES)}, and not {shown(suffix)},")
        yield suffix, _stored_file(file)


def _stored_file(fields: Fields) -> StoredFile:
    size, stored_size = fields.integer("size"), fields.integer("stored_size")
    sha256 = fields.text("sha256")
    if not _SHA256.fullmatch(sha256):
        fields.refuse("sha256", "64 hex digits")
    chunk_bytes = fields.integer("chunk_bytes", 0, MOST_CHUNK_BYTES)
    chunk_sizes = fields.integers("chunk_sizes", 1, 2 * MOST_CHUNK_BYTES)
    count = -(-size // chunk_bytes) if chunk_bytes else 0
    if len(chunk_sizes) != count:
        fields.refuse("chunk_sizes", f"the sizes of {count} chunks")
    if stored_size != (sum(chunk_sizes) if chunk_bytes else size):
        fields.refuse("stored_size", "the size of all chunks" if chunk_bytes else f"{size}, the size")
    return StoredFile(size, stored_size, sha256, chunk_bytes, chunk_sizes)


def _group_offset(fields: Fields) -> GroupOffset:
    return GroupOffset(
        topic=_topic_name(fields, "topic"),
        partition=fields.integer("partition", 0, _MAX_INT32),
        offset=fields.integer("offset"),
        leader_epoch=fields.integer("leader_epoch", -1, _MAX_INT32),
        metadata=fields.text("metadata"),
    )


def _open_transaction(fields: Fields) -> OpenTransaction:
    return OpenTransaction(
        topic=_topic_name(fields, "topic"),
        partition=fields.integer("partition", 0, _MAX_INT32),
        producer_id=fields.integer("producer_id"),
        producer_epoch=fields.integer("producer_epoch", 0, _MAX_INT16),
        first_offset=fields.integer("first_offset"),
        transactional_id=fields.text_or_none("transactional_id"),
    )


def _topic_name(fields: Fields, name: str) -> str:
    topic = fields.text(name)
    if TopicPartition.from_folder_name(f"{topic}-0") is None:
        fields.refuse(name, "the name of a topic")
    return topic


def _bytes(fields: Fields, name: str) -> bytes:
    try:
        return base64.b64decode(fields.text(name), validate=True)
    except (binascii.Error, ValueError):
        fields.refuse(name, "bytes in base64")
