"""A generation of a backup as a log directory.

The folder of each partition has the segments that the manifest names, and no others: not those of other generations,
nor those of a run that was killed. What a broker keeps beside segments is made from the manifest: `topics.ini`,
`partition.metadata`, leader epochs, log start offsets, and an empty segment where a log ends after its last batch.

A manifest is read once. Log and indexes are read by ranges, when a reader reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any
from uuid import UUID

from kafkafmt._util.uuids import uuid_text
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.generations import read_chosen, read_identity
from kafkafmt.storage.backups.manifest import (
    SEGMENTS_FOLDER,
    BackedUpPartition,
    BackedUpSegment,
    BackedUpTopic,
    Manifest,
)
from kafkafmt.storage.backups.sealing import chunked_file, object_path
from kafkafmt.storage.chunks import ChunkCache, ChunkedFile, ChunkIndex
from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.paths import StoragePath, storage_of
from kafkafmt.storage.remote import RemotePath
from kafkafmt.storage.views import BytesFile, ViewFile, ViewFileSystem, ViewTree

_NS_PER_MS = 1_000_000


class BackupFileSystem(ViewFileSystem):
    """A generation of a backup as a log directory.

    generation: as for `choose_generation`. By default the last one; a newer one replaces it within 10 seconds.
    """

    def __init__(
        self, base: StoragePath, key_ring: KeyRing | None = None, generation: str | None = None
    ) -> None:
        super().__init__()
        self._base, self._key_ring = base, key_ring
        self._generation = generation
        self._cache = ChunkCache()
        self._backup_id: str | None = None
        self._loaded: tuple[Manifest, ViewTree] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments. A process has one copy for the same arguments, as it keeps the manifest."""
        base = self._base
        settings = tuple(sorted(base.storage.settings.items())) if isinstance(base, RemotePath) else ()
        return _reopened, (_Opening(str(base), settings, self._generation, base, self._key_ring),)

    def limit_cache(self, most_bytes: int) -> None:
        """Limit the memory for decoded chunks."""
        self._cache.max_bytes = most_bytes

    @property
    def manifest(self) -> Manifest:
        """The manifest of the generation. Raises StoredObjectError if it cannot be read, and OSError."""
        self.load()
        assert self._loaded is not None
        return self._loaded[0]

    def load(self) -> ViewTree:
        try:
            if self._backup_id is None:
                self._backup_id = read_identity(self._base).id
            known = None if self._loaded is None else self._loaded[0]
            manifest = read_chosen(self._base, self._generation, known)
            if known is None:
                self._ensure_objects(manifest)
            if self._loaded is None or manifest is not known:
                self._loaded = manifest, self._tree_of(manifest)
        except BackupError as error:
            place, _, message = str(error).partition(": ")
            raise StoredObjectError(place, message) from None
        return self._loaded[1]

    def _ensure_objects(self, manifest: Manifest) -> None:
        """Raise BackupError if the backup has lost all its objects. Then the location is wrong, or a rule deleted them.

        A single lost object is damage, which readers may skip.
        """
        if not any(one.segments for topic in manifest.topics for one in topic.partitions):
            return
        folder = self._base / SEGMENTS_FOLDER
        with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
            if any(True for _ in entries):
                return
        raise BackupError(f"{folder}: expected the objects of the backup, found none")

    def _tree_of(self, manifest: Manifest) -> ViewTree:
        created_ns = manifest.created_ms * _NS_PER_MS
        tree: dict[str, dict[str, ViewFile]] = {"": _root_files(manifest)}
        for topic in manifest.topics:
            partitions = {one.partition: one for one in topic.partitions}
            for number in range(topic.partition_count):
                partition = partitions.get(number) or BackedUpPartition(number, 0, 0)
                files = dict(self._segment_files(partition))
                end = partition.segments[-1].next_offset if partition.segments else -1
                if partition.next_offset > end:
                    files[f"{partition.next_offset:020d}.log"] = BytesFile(b"", created_ns)
                files |= _made_files(topic, partition, created_ns)
                tree[f"{topic.name}-{number}"] = files
        return tree

    def _segment_files(self, partition: BackedUpPartition) -> Iterator[tuple[str, ViewFile]]:
        for segment in partition.segments:
            opener = _SegmentOpener(self._base, segment, self._backup_id or "", self._key_ring, self._cache)
            for suffix in segment.files:
                yield f"{segment.base_offset:020d}{suffix}", _SegmentFile(opener, suffix)


def manifest_of(path: StoragePath) -> Manifest | None:
    """Return the manifest of the generation that a path is in; None for a path that is in no view of a backup.

    Raises OSError.
    """
    if isinstance(path, RemotePath) and isinstance(path.storage.filesystem, BackupFileSystem):
        return path.storage.filesystem.manifest
    return None


@dataclass(frozen=True)
class _Opening:
    """What a view is opened with. Two are equal if they open the same view."""

    uri: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    generation: str | None
    base: StoragePath = field(compare=False)
    key_ring: KeyRing | None = field(compare=False)
    key_ring_path: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_ring_path", "" if self.key_ring is None else str(self.key_ring.path))


@lru_cache(maxsize=8)
def _reopened(opening: _Opening) -> BackupFileSystem:
    return BackupFileSystem(opening.base, opening.key_ring, opening.generation)


@dataclass
class _SegmentOpener:
    """Opens the files of a segment. The data key is unwrapped at the first read of an encrypted file, and kept."""

    base: StoragePath
    segment: BackedUpSegment
    backup_id: str
    key_ring: KeyRing | None
    cache: ChunkCache
    _data_key: bytes | None = field(default=None, repr=False)

    def open(self, suffix: str) -> ChunkedFile:
        path, file = object_path(self.base, self.segment, suffix), self.segment.files[suffix]
        if not file.chunk_bytes:
            index = ChunkIndex(max(file.size, 1), file.size, (file.size,) if file.size else ())
            return ChunkedFile(path, index, cache=self.cache)
        return chunked_file(
            path,
            self.segment,
            suffix,
            backup_id=self.backup_id,
            key_ring=None if self.key_ring is None else self,
            cache=self.cache,
        )

    def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        if self._data_key is None:
            assert self.key_ring is not None
            self._data_key = self.key_ring.unwrap(key_id, wrapped)
        return self._data_key


class _SegmentFile:
    """A file of a segment, which is opened at its first read."""

    def __init__(self, opener: _SegmentOpener, suffix: str) -> None:
        self._opener, self._suffix = opener, suffix

    @property
    def size(self) -> int:
        return self._opener.segment.files[self._suffix].size

    @property
    def mtime_ns(self) -> int:
        """The time of the last record, and part of the object's random name, so that another object differs."""
        segment = self._opener.segment
        return max(segment.max_timestamp_ms, 0) * _NS_PER_MS + int(segment.object[-8:], 16) % _NS_PER_MS

    @cached_property
    def _file(self) -> ChunkedFile:
        return self._opener.open(self._suffix)

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        return self._file.read_at(position, size)


def _root_files(manifest: Manifest) -> dict[str, ViewFile]:
    created_ns = manifest.created_ms * _NS_PER_MS
    starts: list[str] = []
    ends: list[str] = []
    for topic in manifest.topics:
        for one in topic.partitions:
            starts += [f"{topic.name} {one.partition} {one.start_offset}\n"] if one.start_offset else []
            ends.append(f"{topic.name} {one.partition} {one.next_offset}\n")
    return {
        "topics.ini": BytesFile(_topics_text(manifest).encode(), created_ns),
        "log-start-offset-checkpoint": BytesFile(_checkpoint(starts), created_ns),
        "replication-offset-checkpoint": BytesFile(_checkpoint(ends), created_ns),
    }


def _topics_text(manifest: Manifest) -> str:
    from kafkafmt.log.topic_configs import TopicConfig, topic_configs_text

    topics = {one.name: TopicConfig(one.partition_count or None, one.configs) for one in manifest.topics}
    try:
        return topic_configs_text(topics)
    except ValueError as error:
        raise BackupError(f"{manifest.name}: a configuration has no place in topics.ini: {error}") from None


def _made_files(topic: BackedUpTopic, partition: BackedUpPartition, created_ns: int) -> dict[str, ViewFile]:
    files: dict[str, ViewFile] = {}
    if topic.topic_id is not None:
        text = f"version: 0\ntopic_id: {uuid_text(UUID(topic.topic_id))}\n"
        files["partition.metadata"] = BytesFile(text.encode(), created_ns)
    epochs: list[tuple[int, int]] = []
    for segment in partition.segments:
        epochs += [one for one in segment.leader_epochs if not epochs or one[0] > epochs[-1][0]]
    if epochs:
        lines = [f"{epoch} {offset}\n" for epoch, offset in epochs]
        files["leader-epoch-checkpoint"] = BytesFile(_checkpoint(lines), created_ns)
    return files


def _checkpoint(lines: list[str]) -> bytes:
    return "".join(("0\n", f"{len(lines)}\n", *lines)).encode()
