"""Delete old generations of a backup, and the objects that no generation names.

Manifests are deleted first, the oldest first, and then the objects. So a run that is killed at any step leaves
generations whose objects are all there. A backup may run at the same time:

- The last generation, which it continues, is always kept.
- Objects that are younger than a grace period are kept, as a generation may be about to name them.
- Generations that were just written do not replace earlier ones yet. Of two backups that write at the same moment, each
  deletes its own generation again.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt._util.files import sync_path
from kafkafmt.backup.listing import segments_of
from kafkafmt.storage import FileStatus, StoragePath, is_temporary_name, storage_of
from kafkafmt.storage.backups.errors import BackupError, MissingGenerationError
from kafkafmt.storage.backups.generations import (
    GENERATION_SUFFIX,
    generation_names,
    generation_path,
    read_generation,
    read_identity,
    read_listed,
)
from kafkafmt.storage.backups.manifest import GENERATIONS_FOLDER, SEGMENTS_FOLDER, Manifest

DEFAULT_GRACE_SECONDS = 24 * 60 * 60
# The age at which a generation is no longer deleted by the backup that wrote it.
_SETTLED_SECONDS = 10 * 60
# A file of a segment, or a temporary file of one that a killed run has left: its place and name without suffixes.
_FILE = re.compile(r"(?P<folder>[^/]+/[^/]+/\d{1,10})/\.?(?P<stem>\d{20}-[0-9a-f]{32})\..*", re.ASCII)


@dataclass(frozen=True)
class Retention:
    """What is kept. One of `seconds`: generations that are at most so old; or `count`: the last ones.

    The last generation is always kept, and the one before it until the last one is 10 minutes old.
    """

    seconds: float | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.count is None):
            raise ValueError("expected one of seconds and count")
        if self.count is not None and self.count < 1:
            raise ValueError(f"count: expected 1 or more, found {self.count}")


@dataclass
class PruneReport:
    """What was deleted, or would be. generations: names. objects: paths below the folder of the backup.

    waiting: of `kept`, the generations that are deleted once a later one is 10 minutes old, or `grace_seconds` if that
    is shorter.
    young_objects: how many unnamed objects are kept, as they are too young.
    due_ms: when all of them are old enough, in milliseconds since 1970; -1 if there are none.
    """

    generations: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    objects: list[str] = field(default_factory=list)
    stored_bytes: int = 0
    waiting: list[str] = field(default_factory=list)
    young_objects: int = 0
    due_ms: int = -1


def prune(
    folder: StoragePath,
    retention: Retention,
    *,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
    dry_run: bool = False,
) -> PruneReport:
    """Delete old generations of the backup in a folder, and objects that no generation names.

    grace_seconds: the least age of an object that is deleted. It must be longer than the time from the upload of a
    segment to the generation that names it. If it is shorter than 10 minutes, it replaces them.

    Raises BackupError before anything is deleted if a manifest cannot be read whose age or objects are needed, and
    OSError.
    """
    read_identity(folder)
    now = time.time()
    settled_before = now - min(grace_seconds, _SETTLED_SECONDS)
    names, expired, waiting, referenced = read_listed(
        folder, lambda names: (names, *_read_kept(folder, names, retention, now, settled_before))
    )
    report = PruneReport(expired, waiting=waiting)
    if not dry_run:
        for name in expired:
            path = generation_path(folder, name)
            storage_of(path).delete(path)
        # A crash must not bring back a generation without its objects, also one that a killed run has deleted.
        if isinstance(folder, Path):
            sync_path(folder / GENERATIONS_FOLDER)
    place = folder / SEGMENTS_FOLDER
    # Segments are listed before generations: so each listed segment that a generation names is found to be named.
    found = dict(storage_of(place).walk(place))
    report.kept = [name for name in generation_names(folder) if name not in expired]
    for name in report.kept:
        if name not in names:  # written meanwhile
            with suppress(MissingGenerationError):  # and deleted by the backup that wrote it
                referenced |= _objects(read_generation(folder, name))
    unnamed = _left_in_generations(folder)
    for name, status in sorted(found.items()):
        match = _FILE.fullmatch(name)
        if match is not None and f"{match['folder']}/{match['stem']}" not in referenced:
            unnamed.append((f"{SEGMENTS_FOLDER}/{name}", status))
    for name, status in unnamed:
        written = status.st_mtime_ns / 1e9
        if written > now - grace_seconds:
            report.young_objects += 1
            report.due_ms = max(report.due_ms, int((written + grace_seconds) * 1000))
            continue
        report.objects.append(name)
        report.stored_bytes += status.st_size
        if not dry_run:
            _delete(folder, name)
    return report


def _left_in_generations(folder: StoragePath) -> list[tuple[str, FileStatus]]:
    """Return the temporary files of manifests: a writer may be at work on them, or have been killed."""
    place = folder / GENERATIONS_FOLDER
    found = storage_of(place).walk(place)
    return [
        (f"{GENERATIONS_FOLDER}/{name}", status)
        for name, status in found
        if is_temporary_name(name.rpartition("/")[2])
    ]


def _delete(folder: StoragePath, name: str) -> None:
    path = folder
    for part in name.split("/"):
        path = path / part
    storage_of(path).delete(path)


def _read_kept(
    folder: StoragePath, names: list[str], retention: Retention, now: float, settled_before: float
) -> tuple[list[str], list[str], set[str]]:
    """Return the generations that are not kept, those that wait for a later one, and the objects that the kept name.

    By age each generation is read: the clock of a run may have been wrong, so an old one may follow a young one.
    """
    if not names:
        raise BackupError(f"{folder}: expected a generation of a backup, found none")
    last = _last_written_before(folder, names, settled_before)
    counted = set() if retention.count is None else {*names[: -retention.count]}
    expired: list[str] = []
    waiting: list[str] = []
    objects: set[str] = set()
    for name in names:
        if name < last and name in counted:
            expired.append(name)
            continue
        manifest = read_generation(folder, name)
        is_old = retention.seconds is not None and manifest.created_ms < (now - retention.seconds) * 1000
        if is_old and name < last:
            expired.append(name)
            continue
        objects |= _objects(manifest)
        if name in counted or (is_old and name != names[-1]):
            waiting.append(name)
    return expired, waiting, objects


def _last_written_before(folder: StoragePath, names: list[str], before: float) -> str:
    """Return the last generation that was written before a time; the first of all if there is none."""
    place = folder / GENERATIONS_FOLDER
    earlier = {
        name.removesuffix(GENERATION_SUFFIX)
        for name, status in storage_of(place).walk(place)
        if status.st_mtime_ns < before * 1e9
    }
    return next((name for name in reversed(names) if name in earlier), names[0])


def _objects(manifest: Manifest) -> set[str]:
    """Return the objects that a manifest names, relative to the folder of segments."""
    return {one.object.removeprefix(f"{SEGMENTS_FOLDER}/") for one in segments_of(manifest)}
