"""Store the files of segments as objects of a backup, with the SHA-256 of what is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kafkafmt._util.sizes import MIB
from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.storage.backups.manifest import BackedUpSegment, StoredFile

if TYPE_CHECKING:
    from kafkafmt.mirror.targets.spool import SealedSegment

_READ_BYTES = 4 * MIB


class SegmentWriter(Protocol):
    """Writes the files of a segment. Called in several threads at once."""

    def write(self, segment: SealedSegment, folder: StoragePath, name: str) -> BackedUpSegment:
        """Write a segment below `folder`, its `.log` last. name: of the object, without suffix. Raises OSError."""


class PlainWriter:
    """Writes files as they are."""

    def write(self, segment: SealedSegment, folder: StoragePath, name: str) -> BackedUpSegment:
        """Write a segment, as `SegmentWriter.write`."""
        parent, _, stem = name.rpartition("/")
        place = folder
        for part in parent.split("/"):
            place = place / part
        files = {suffix: _put(path, place / f"{stem}{suffix}") for suffix, path in segment.files.items()}
        return described(segment, name, files)


def described(segment: SealedSegment, name: str, files: dict[str, StoredFile]) -> BackedUpSegment:
    """Return what the manifest says of a segment whose files are stored."""
    return BackedUpSegment(
        object=name,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        max_timestamp_ms=segment.max_timestamp_ms,
        files=files,
        leader_epochs=segment.leader_epochs,
    )


def _put(local: Path, path: StoragePath) -> StoredFile:
    size, digest = local.stat().st_size, hashlib.sha256()
    if isinstance(path, Path):
        for chunk in _chunks(local):
            digest.update(chunk)
        storage_of(path).put(local, path)  # a rename, if the spool is on the same file system
    else:

        def hashed() -> Iterator[bytes]:
            for chunk in _chunks(local):
                digest.update(chunk)
                yield chunk

        storage_of(path).write(path, hashed())
    return StoredFile(size, size, digest.hexdigest())


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            yield chunk
