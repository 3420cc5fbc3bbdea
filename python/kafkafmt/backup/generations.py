"""List, verify and prune the generations of a backup."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from kafkafmt._util.sizes import MIB
from kafkafmt.backup.repository import Repository
from kafkafmt.storage import StoragePath, storage_of
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.manifest import SEGMENTS_FOLDER, BackedUpSegment, Manifest

_READ_BYTES = 4 * MIB


@dataclass(frozen=True)
class GenerationSummary:
    """What a generation has. stored_bytes: of all objects that it names, also those of earlier generations."""

    name: str
    source: str
    created_ms: int
    topics: int
    partitions: int
    segments: int
    groups: int
    stored_bytes: int


@dataclass(frozen=True)
class Problem:
    """An object of a generation that is missing, or is not what the manifest says."""

    object: str
    message: str


@dataclass(frozen=True)
class Pruned:
    """What was deleted: the names of generations, and the number and bytes of objects."""

    generations: list[str]
    objects: int
    bytes: int


def list_(path: StoragePath) -> list[GenerationSummary]:
    """Return the generations of a backup, the last one last. Raises BackupError and OSError."""
    repository = Repository(path)
    repository.open()
    return [_summary(repository.read(name)) for name in repository.generations()]


def verify(path: StoragePath, name: str | None = None) -> Iterator[Problem]:
    """Read all objects of a generation, and yield those that are not what the manifest says.

    name: of the generation; by default the last one. Raises BackupError and OSError.
    """
    repository = Repository(path)
    repository.open()
    names = repository.generations()
    if not names or (name is not None and name not in names):
        raise BackupError(f"{path}: expected generation {name or 'of a backup'}, found {len(names)} others")
    for segment in _segments(repository.read(name or names[-1])):
        for suffix, file in segment.files.items():
            found = f"{segment.object}{suffix}"
            try:
                size, digest = _digest(_at(path, found))
            except FileNotFoundError:
                yield Problem(found, "expected an object, found none")
                continue
            if size != file.stored_size:
                yield Problem(found, f"expected {file.stored_size} bytes, found {size}")
            elif digest != file.sha256:
                yield Problem(found, f"expected SHA-256 {file.sha256}, found {digest}")


def prune(path: StoragePath, keep_seconds: float, grace_seconds: float, *, is_trial: bool = False) -> Pruned:
    """Delete generations older than `keep_seconds`, except the last one, and objects that no other one names.

    grace_seconds: younger objects stay, as a backup that runs now may be about to name them.
    is_trial: delete nothing, and return what would be deleted.

    Raises BackupError if a manifest cannot be read; then nothing is deleted. Raises OSError.
    """
    repository = Repository(path)
    repository.open()
    now_ns = time.time_ns()
    oldest_ms = now_ns // 1_000_000 - int(keep_seconds * 1000)
    manifests = [repository.read(name) for name in repository.generations()]
    old = [one.name for one in manifests[:-1] if one.created_ms < oldest_ms]
    named = {
        f"{segment.object}{suffix}"
        for one in manifests
        if one.name not in old
        for segment in _segments(one)
        for suffix in segment.files
    }
    folder = path / SEGMENTS_FOLDER
    newest_ns = now_ns - int(grace_seconds * 1e9)
    unnamed = [
        (f"{SEGMENTS_FOLDER}/{found}", status.st_size)
        for found, status in storage_of(folder).walk(folder)
        if f"{SEGMENTS_FOLDER}/{found}" not in named and status.st_mtime_ns < newest_ns
    ]
    if not is_trial:
        for name in old:  # before their objects, so that no generation is listed without them
            repository.delete(name)
        for found, _ in unnamed:
            storage_of(path).delete(_at(path, found))
    return Pruned(old, len(unnamed), sum(size for _, size in unnamed))


def _summary(manifest: Manifest) -> GenerationSummary:
    segments = list(_segments(manifest))
    return GenerationSummary(
        manifest.name,
        manifest.source,
        manifest.created_ms,
        len(manifest.topics),
        sum(topic.partition_count for topic in manifest.topics),
        len(segments),
        len(manifest.groups),
        sum(file.stored_size for segment in segments for file in segment.files.values()),
    )


def _segments(manifest: Manifest) -> Iterator[BackedUpSegment]:
    for topic in manifest.topics:
        for partition in topic.partitions:
            yield from partition.segments


def _digest(path: StoragePath) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with storage_of(path).open(path) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _at(path: StoragePath, name: str) -> StoragePath:
    for part in name.split("/"):
        path = path / part
    return path
