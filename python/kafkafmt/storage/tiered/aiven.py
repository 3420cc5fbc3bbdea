"""Segments that the plugin of Aiven stored (`tiered-storage-for-apache-kafka`). The keys of their objects:

    <prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.log
                                                                               .indexes
                                                                               .rsm-manifest

The plugin writes the manifest last. So a segment without a manifest is not complete. Ids are Kafka's text of UUIDs,
which may contain `-`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.base import FileStatus
from kafkafmt.storage.chunks import (
    ENCRYPTION_BYTES,
    ChunkCache,
    ChunkedFile,
    ChunkIndex,
    ChunkTransform,
    DecompressZstd,
    DecryptAesGcm,
)
from kafkafmt.storage.keys import KeyRing, KeyRingError
from kafkafmt.storage.paths import StoragePath, read_file, side_by_side
from kafkafmt.storage.remote import RemotePath
from kafkafmt.storage.tiered.manifest import SegmentManifest, SegmentMetadata
from kafkafmt.storage.tiered.objects import (
    OpenedSegments,
    StoredObjects,
    StoredPartition,
    ensure_none_missing,
    grouped,
)
from kafkafmt.storage.tiered.segments import RemoteSegment
from kafkafmt.storage.views import ViewFile

LOG, INDEXES, MANIFEST = "log", "indexes", "rsm-manifest"
_ID = "[A-Za-z0-9_-]{22}"
_KEY = re.compile(
    rf"(?:.*/)?(?P<topic>[^/]+)-(?P<topic_id>{_ID})/(?P<partition>[0-9]{{1,10}})/"
    rf"(?P<name>(?P<offset>[0-9]{{20}})-(?P<segment_id>{_ID}))\.(?P<suffix>{LOG}|{INDEXES}|{MANIFEST})"
)
# In the Iceberg mode, a segment is a file of statistics of an Iceberg table.
_ICEBERG = re.compile(rf"(?:.*/)?metadata/{_ID}\.puffin")


def find_partitions(root: StoragePath, found: Mapping[str, FileStatus]) -> list[StoredPartition]:
    """Return the partitions whose objects are below `root`. found: the status of each object, by path below it.

    The root may be the folder of a topic, or of a partition. Raises StoredObjectError for objects of the Iceberg mode.
    """
    above = f"{root.parent.name}/{root.name}"
    for name in found:
        if _ICEBERG.fullmatch(name) and not _KEY.fullmatch(f"{above}/{name}"):
            raise StoredObjectError(
                root / name,
                "a segment in the Iceberg mode of tiered storage, which cannot be read: expected the Kafka mode",
            )
    return grouped(root, found, _KEY, above, StoredPartition)


class SegmentReader:
    """Reads the manifests of segments, and opens their files. A manifest is read once.

    opened: the segments whose manifests were read.
    """

    def __init__(self, key_ring: KeyRing | None, cache: ChunkCache) -> None:
        self._key_ring, self._cache = key_ring, cache
        self.opened = OpenedSegments(MANIFEST)

    def segments(self, stored: StoredPartition) -> list[RemoteSegment]:
        """Return the complete segments of a partition, by base offset. Manifests are read side by side.

        A segment without a manifest is left out, also if the manifest was deleted after it was listed. Raises
        StoredObjectError if offsets are missing, as `ensure_none_missing`.
        """
        with_manifest = {name: one for name, one in stored.objects.items() if MANIFEST in one.paths}
        in_parallel = any(isinstance(one.paths[MANIFEST][0], RemotePath) for one in with_manifest.values())
        opened = side_by_side(partial(self._segment, stored), with_manifest.values(), in_parallel=in_parallel)
        found = {name: one for name, one in zip(with_manifest, opened, strict=True) if one is not None}
        segments = sorted(found.values(), key=lambda one: (one.base_offset, one.segment_id))
        incomplete = {name: one for name, one in stored.objects.items() if name not in found}
        message = "the object is missing; the partition has later segments"
        ensure_none_missing(incomplete, segments, MANIFEST, message)
        return segments

    def _segment(self, stored: StoredPartition, objects: StoredObjects) -> RemoteSegment | None:
        """Return a segment; None if its manifest was deleted after it was listed."""
        try:
            return self.opened.get(objects, lambda: self._opened(stored, objects))
        except FileNotFoundError:
            return None

    def _opened(self, stored: StoredPartition, objects: StoredObjects) -> RemoteSegment:
        path, status = objects.paths[MANIFEST]
        manifest = SegmentManifest.decode(read_file(path), str(path))
        metadata = manifest.metadata
        if metadata is not None:
            _check_key(path, stored, objects, metadata)
        return RemoteSegment(
            stored.topic,
            stored.topic_id,
            stored.partition,
            objects.segment_id,
            objects.base_offset,
            -1 if metadata is None else metadata.end_offset,
            () if metadata is None else metadata.leader_epochs,
            _SegmentFiles(manifest, path, status.st_mtime_ns, self._key_ring, self._cache).files(),
            -1 if metadata is None else metadata.event_timestamp_ms,
        )


def _check_key(
    path: StoragePath, stored: StoredPartition, objects: StoredObjects, metadata: SegmentMetadata
) -> None:
    """Raise StoredObjectError if the manifest is one of another segment than the key of its object says."""
    for name, expected, found in (
        ("topicId", stored.topic_id, metadata.topic_id),
        ("topic", stored.topic, metadata.topic),
        ("partition", stored.partition, metadata.partition),
        ("id", objects.segment_id, metadata.segment_id),
        ("startOffset", objects.base_offset, metadata.start_offset),
    ):
        if expected != found:
            hint = ""
            if name == "topic" and stored.topic.endswith(metadata.topic):
                prefix = stored.topic.removesuffix(metadata.topic)
                hint = f"; if {prefix!r} is the prefix of all keys, end the URI with it"
            raise StoredObjectError(
                path, f"{name}: expected {expected!r} as in the key, found {found!r}{hint}"
            )


@dataclass
class _SegmentFiles:
    """The files of a segment as they were in the log directory. The data key is unwrapped at the first read."""

    manifest: SegmentManifest
    path: StoragePath
    mtime_ns: int
    key_ring: KeyRing | None
    cache: ChunkCache

    def files(self) -> dict[str, ViewFile]:
        manifest, stem = self.manifest, self.path.name.removesuffix(MANIFEST)
        decrypt = () if manifest.encryption is None else (_Decrypt(self),)
        transforms: tuple[ChunkTransform, ...] = decrypt
        if manifest.compressed:
            transforms = (*decrypt, DecompressZstd(manifest.chunks.chunk_bytes))
        log = self.path.parent / f"{stem}{LOG}"
        files: dict[str, ViewFile] = {
            ".log": ChunkedFile(log, manifest.chunks, transforms, self.mtime_ns, 0, self.cache)
        }
        indexes = self.path.parent / f"{stem}{INDEXES}"
        for suffix, (position, stored) in manifest.indexes.items():
            size = stored - ENCRYPTION_BYTES if decrypt and stored else stored
            if size < 0:
                raise StoredObjectError(
                    self.path,
                    f"segmentIndexes: expected at least {ENCRYPTION_BYTES} encrypted bytes, found {stored}",
                )
            chunks = ChunkIndex(max(size, 1), size, (stored,) if size else ())
            files[suffix] = ChunkedFile(indexes, chunks, decrypt, self.mtime_ns, position, self.cache)
        return files

    def decrypt(self) -> DecryptAesGcm:
        key = self.manifest.encryption
        assert key is not None
        try:
            if self.key_ring is None:
                raise KeyRingError(
                    f"the segment is encrypted by key {key.key_id!r}: expected a key ring (--key-ring FILE)"
                )
            return DecryptAesGcm(self.key_ring.unwrap(key.key_id, key.wrapped), key.key_id, key.aad)
        except KeyRingError as error:
            raise StoredObjectError(self.path, str(error)) from error


class _Decrypt:
    """Decrypts the chunks of a segment by its data key, which is unwrapped at the first chunk."""

    def __init__(self, segment: _SegmentFiles) -> None:
        self._segment = segment
        self._decrypt: DecryptAesGcm | None = None

    def decode(self, chunk: memoryview, number: int) -> bytes:
        if self._decrypt is None:
            self._decrypt = self._segment.decrypt()
        return self._decrypt.decode(chunk, number)
