"""Tiered storage (KIP-405) as a log directory.

The keys of all objects are listed, 1,000 a request. The manifests of a partition are read when its folder is first
listed, and not again. Log and indexes are read by ranges, when a reader reads them.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from kafkafmt.log.checkpoints import LEADER_EPOCH_CHECKPOINT, leader_epochs_to_bytes
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.chunks import ChunkCache
from kafkafmt.storage.keys import KeyRing
from kafkafmt.storage.paths import StoragePath, storage_of
from kafkafmt.storage.remote import RemotePath
from kafkafmt.storage.tiered.aiven import SegmentReader, find_partitions
from kafkafmt.storage.tiered.cutting import LostFile, cut_segment
from kafkafmt.storage.tiered.kafka_local import LocalPartition, LocalSegmentReader, find_local_partitions
from kafkafmt.storage.tiered.lineage import CHECKPOINT_SUFFIX, current_lineage, cuts
from kafkafmt.storage.tiered.objects import StoredPartition
from kafkafmt.storage.tiered.segments import RemoteSegment
from kafkafmt.storage.views import BytesFile, ViewFile, ViewFileSystem, ViewTree

_SNAPSHOT_SUFFIX = ".snapshot"


class TieredFileSystem(ViewFileSystem):
    """Tiered storage (KIP-405) as a log directory. base: the folder of all keys, or of a topic or a partition in it.

    The last part of `base` may be the beginning of names: the plugin's prefix of keys need not end with a slash.
    """

    def __init__(self, base: StoragePath, key_ring: KeyRing | None = None) -> None:
        super().__init__()
        self._base, self._key_ring = base, key_ring
        self._cache = ChunkCache()
        self._reader = SegmentReader(key_ring, self._cache)
        self._local_reader = LocalSegmentReader(self._cache)
        self._folders: dict[str, tuple[object, PartitionFolder]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments. A process has one copy for the same arguments, as it keeps manifests."""
        base = self._base
        settings = tuple(sorted(base.storage.settings.items())) if isinstance(base, RemotePath) else ()
        return _reopened, (_Opening(str(base), settings, base, self._key_ring),)

    def limit_cache(self, most_bytes: int) -> None:
        """Limit the memory for decoded chunks."""
        self._cache.max_bytes = most_bytes

    def load(self) -> ViewTree:
        partitions: dict[str, StoredPartition] = {}
        for one in self._partitions():
            folder = f"{one.topic}-{one.partition}"
            other = partitions.setdefault(folder, one)
            if other is not one:
                ids = " and ".join(sorted((one.topic_id, other.topic_id)))
                raise OSError(
                    errno.EEXIST,
                    f"topic {one.topic} has the ids {ids}, as it was created again: "
                    f"expected one of them at the end of the URI, as in .../{one.topic}-{one.topic_id}",
                    str(self._base),
                )
        kept = self._folders
        self._folders = {}
        for name, one in partitions.items():
            stamp = _stamp(one)
            known = kept.get(name)
            if known is None or known[0] != stamp or not known[1].is_current:
                known = stamp, PartitionFolder(self._loader(one))
            self._folders[name] = known
        for opened in (self._reader.opened, self._local_reader.opened):
            opened.keep(partitions.values())
        return {"": {}, **{name: folder for name, (_, folder) in self._folders.items()}}

    def log_start_offset(self, folder: str) -> int:
        """Return the offset below which the records in a partition's folder are deleted. Raises OSError."""
        found = self._current().get(folder)
        return found.loaded().start_offset if isinstance(found, PartitionFolder) else 0

    def _loader(self, stored: StoredPartition) -> Callable[[], list[RemoteSegment]]:
        reader = self._local_reader if isinstance(stored, LocalPartition) else self._reader
        return partial(reader.segments, stored)

    def _partitions(self) -> list[StoredPartition]:
        found = dict(storage_of(self._base).walk(self._base))
        if partitions := find_partitions(self._base, found) + find_local_partitions(self._base, found):
            return partitions
        if not found:
            above, beginning = self._base.parent, self._base.name
            if beginning and above != self._base and (partitions := find_prefixed(above, beginning)):
                return partitions
        # Not FileNotFoundError: commands take that for an empty log directory.
        raise StoredObjectError(
            self._base,
            "no segments of tiered storage here: expected objects named "
            "<topic>-<topic id>/<partition>/<offset>-<segment id>.rsm-manifest, or files of Kafka's LocalTieredStorage "
            "named <topic>-<partition>-<topic id>/<offset>-<segment id>.log",
        )


@dataclass(frozen=True)
class _Opening:
    """What a view is opened with. Two are equal if they open the same view."""

    uri: str
    settings: tuple[tuple[str, str], ...] = field(repr=False)
    base: StoragePath = field(compare=False)
    key_ring: KeyRing | None = field(compare=False)
    key_ring_path: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_ring_path", "" if self.key_ring is None else str(self.key_ring.path))


@lru_cache(maxsize=8)
def _reopened(opening: _Opening) -> TieredFileSystem:
    return TieredFileSystem(opening.base, opening.key_ring)


def find_prefixed(above: StoragePath, beginning: str) -> list[StoredPartition]:
    """Return the partitions of keys whose first name below `above` begins with `beginning`, which is no part of it."""
    found = {name: status for name, status in storage_of(above).walk(above) if name.startswith(beginning)}
    partitions = find_partitions(above, found)
    for one in partitions:
        one.topic = one.topic.removeprefix(beginning)
    return partitions


def _stamp(stored: StoredPartition) -> dict[str, tuple[int, int]]:
    """Return the sizes and times of all objects of a partition."""
    return {
        str(path): (status.st_size, status.st_mtime_ns)
        for objects in stored.objects.values()
        for path, status in objects.paths.values()
    }


class PartitionFolder(Mapping[str, ViewFile]):
    """The files of a partition's folder, which are those of its segments. `load` is called at the first use."""

    def __init__(self, load: Callable[[], list[RemoteSegment]]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._files: PartitionFiles | None = None

    def __getitem__(self, name: str) -> ViewFile:
        return self.loaded().by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.loaded().by_name)

    def __len__(self) -> int:
        return len(self.loaded().by_name)

    def loaded(self) -> PartitionFiles:
        """Return the files. Raises OSError."""
        with self._lock:
            if self._files is None:
                self._files = partition_files(self._load())
            return self._files

    @property
    def is_current(self) -> bool:
        """Whether the files stay valid while the objects do not change."""
        return self._files is None or not self._files.has_lost


@dataclass(frozen=True)
class PartitionFiles:
    """The files of a partition's folder, as a broker would have them.

    start_offset: the records below it are deleted, although the first batch may have them.
    has_lost: a part of a segment could not be read. Later it may be: a key ring may get the key of a segment.
    """

    by_name: Mapping[str, ViewFile]
    start_offset: int
    has_lost: bool


def partition_files(segments: list[RemoteSegment]) -> PartitionFiles:
    """Return the files of a partition's folder. Raises StoredObjectError if the leader epochs cannot be read."""
    files: dict[str, ViewFile] = {}
    lineage = current_lineage(segments)
    chosen = cuts(segments, lineage)
    for cut in chosen:
        part = cut_segment(cut)
        if not cut.is_whole and not part.files[".log"].size:
            continue
        for suffix, file in part.files.items():
            if suffix == _SNAPSHOT_SUFFIX and cut.segment.end_offset >= 0:
                # The copy of a segment has the state of producers after it. A log directory has the state before the
                # segment of that name.
                files[f"{cut.segment.end_offset + 1:020d}{suffix}"] = file
            elif suffix not in (CHECKPOINT_SUFFIX, _SNAPSHOT_SUFFIX):
                files[f"{part.base_offset:020d}{suffix}"] = file
    has_lost = any(isinstance(file, LostFile) for file in files.values())
    if chosen:
        topic_id = chosen[0].segment.topic_id
        if topic_id:
            files["partition.metadata"] = BytesFile(f"version: 0\ntopic_id: {topic_id}\n".encode())
        if lineage:
            files[LEADER_EPOCH_CHECKPOINT] = BytesFile(leader_epochs_to_bytes(lineage))
    return PartitionFiles(files, chosen[0].first_offset if chosen else 0, has_lost)
