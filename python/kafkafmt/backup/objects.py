"""Store the files of segments as objects of a backup, with the SHA-256 of what is stored."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.sizes import MIB
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.storage.backups.manifest import BackedUpSegment, StoredFile, WrappedKey
from kafkafmt.storage.backups.sealing import (
    CHUNK_BYTES,
    Encode,
    chunk_aad,
    compress,
    encoded,
    encryption,
    new_data_key,
)

if TYPE_CHECKING:
    from kafkafmt.mirror.targets.spool import SealedSegment
    from kafkafmt.storage.keys import KeyRing

_READ_BYTES = 4 * MIB


@dataclass(frozen=True)
class SegmentWriter:
    """Writes the files of segments below a folder. Called in several threads at once.

    backup_id: the id of the backup.
    key_ring, key_id: the key that wraps the data keys; files are not encrypted without it.
    compresses: compress segments whose batches are not compressed.
    """

    folder: StoragePath
    backup_id: str
    key_ring: KeyRing | None = None
    key_id: str | None = None
    compresses: bool = False

    def write(self, segment: SealedSegment, name: str) -> BackedUpSegment:
        """Write a segment, its `.log` last. name: of the object, without suffix. Raises OSError and KeyRingError."""
        data_key = key = None
        if self.key_ring is not None and self.key_id is not None:
            data_key = new_data_key()
            key = WrappedKey(self.key_id, self.key_ring.wrap(self.key_id, data_key))
        compresses = self.compresses and not segment.has_compressed
        files = {}
        for suffix, path in segment.files.items():
            encodes = (compress,) if compresses and suffix == LOG_SUFFIX else ()
            files[suffix] = self._store(path, name, suffix, encodes, data_key)
        return BackedUpSegment(
            object=name,
            base_offset=segment.base_offset,
            next_offset=segment.next_offset,
            max_timestamp_ms=segment.max_timestamp_ms,
            files=files,
            leader_epochs=segment.leader_epochs,
            compression="zstd" if compresses else "none",
            key=key,
        )

    def _store(
        self, local: Path, name: str, suffix: str, encodes: tuple[Encode, ...], data_key: bytes | None
    ) -> StoredFile:
        path = self.folder
        for part in f"{name}{suffix}".split("/"):
            path = path / part
        size = local.stat().st_size
        if data_key is not None:
            count = -(-size // CHUNK_BYTES)
            encodes = (*encodes, encryption(data_key, chunk_aad(self.backup_id, name, suffix, count)))
        if not encodes:
            return _stored_as_it_is(local, path, size)
        digest, sizes = hashlib.sha256(), []

        def noted() -> Iterator[bytes]:
            for chunk in encoded(_chunks(local, CHUNK_BYTES), encodes):
                digest.update(chunk)
                sizes.append(len(chunk))
                yield chunk

        storage_of(path).write(path, noted())
        return StoredFile(size, sum(sizes), digest.hexdigest(), CHUNK_BYTES, tuple(sizes))


def _stored_as_it_is(local: Path, path: StoragePath, size: int) -> StoredFile:
    digest = hashlib.sha256()
    for chunk in _chunks(local, _READ_BYTES):
        digest.update(chunk)
    # A prune keeps young objects. `put` may be a rename of a file that was written long ago.
    os.utime(local)
    storage_of(path).put(local, path)
    return StoredFile(size, size, digest.hexdigest())


def _chunks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(size):
            yield chunk
