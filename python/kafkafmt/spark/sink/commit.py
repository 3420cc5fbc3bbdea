"""Commit a job on the driver: determine the place of each staged segment, and move all segments there.

A commit holds two locks: the lock of the log directory, which excludes brokers, and one that excludes other commits. It
first finishes the commits that a killed driver has begun, and fails if one of them would replace records of another
writer. It changes nothing that a reader sees before all checks have passed. Offsets that the commit assigns begin at
the end of the log. They overwrite the staged offsets in place, 8 bytes for each batch.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafkafmt._util.directory_lock import DirectoryLockedError, lock_log_directory
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.spark.sink.broker_files import recovery_points
from kafkafmt.spark.sink.manifest import (
    LogEnd,
    Manifest,
    PlacedSegment,
    StreamBatch,
    cannot_finish,
    ensure_writable,
    put_segment,
    warn_of_finished,
)
from kafkafmt.spark.sink.offsets import move_offsets
from kafkafmt.spark.sink.placing import by_partition, in_threads, place
from kafkafmt.spark.sink.staging import (
    POSITIONS_SUFFIX,
    StagedSegment,
    locked,
    owner_of,
    remove,
    stagings,
    sync,
)
from kafkafmt.spark.sink.store import recover_store
from kafkafmt.storage import RemotePath, storage_path

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Commit:
    """How segments are placed. overwrite: replace the logs of the written partitions instead of appending to them."""

    folder: Path
    keeps_offsets: bool
    overwrite: bool = False

    def run(self, staging: str, segments: Sequence[StagedSegment], batch: StreamBatch | None = None) -> None:
        """Move all segments to their logs, those of a partition in the order of tasks, and within a task by offset.

        Does nothing for a batch that was committed before. Only records a batch without segments.

        Raises:
            DirectoryLockedError: a broker runs on the folder.
            BlockingIOError: another writer has one of the logs open.
            ValueError: offsets overlap with each other or with the log.
            KafkaFormatError: damage hides the end of the log.
            OSError: a file cannot be read or written, or a partition's folder is on another file system or
                a link to nothing.

        After an error nothing has changed, unless the manifest is already written. Then the next commit, or `recover`,
        applies it. If another writer has added records in its place before that, each of them raises ValueError, until
        the staging folder is removed.
        """
        path = self.folder / staging
        with lock_log_directory(self.folder), locked(self.folder):
            _roll_forward(self.folder)
            if batch is not None and batch.is_committed(self.folder):
                _LOG.warning("%s: %s was already committed: it is left out", self.folder, batch)
                remove(path)
            elif segments:
                self._manifest(path, segments, batch).apply(path)
            elif batch is not None:
                batch.note(self.folder)
            if batch is not None:
                _remove_older(self.folder, batch.query)

    def _manifest(
        self, staging: Path, segments: Sequence[StagedSegment], batch: StreamBatch | None
    ) -> Manifest:
        """Check the segments, write their offsets, and return the manifest, which is written."""
        partitions = by_partition(segments)
        recovery_points(self.folder)  # they are changed after the commit, when an error would be too late
        in_threads(lambda segment: self._ensure_staged(staging, segment), segments)
        in_threads(lambda where: ensure_writable(self.folder, str(where)), partitions)
        placed = place(self.folder, partitions, keeps_offsets=self.keeps_offsets, overwrite=self.overwrite)
        in_threads(lambda pair: _move(staging, *pair), placed)
        targets = [
            PlacedSegment(str(one.topic_partition), one.stem, base, base + one.next_offset - one.base_offset)
            for one, base in placed
        ]
        manifest = Manifest(tuple(targets), batch=batch)
        if self.overwrite:
            replaced = tuple(map(str, partitions))
            ends = tuple(in_threads(lambda name: LogEnd.of(self.folder / name), replaced))
            _fill_folders(staging, replaced, targets)
            manifest = Manifest(replaced=replaced, replaced_ends=ends, batch=batch)
        manifest.write(staging)
        return manifest

    def _ensure_staged(self, staging: Path, segment: StagedSegment) -> None:
        path = staging / f"{segment.stem}{LOG_SUFFIX}"
        found = path.stat().st_size if path.exists() else "no file"
        if found != segment.size_in_bytes:
            message = (
                f"expected {segment.size_in_bytes} bytes that a task wrote, found {found}: driver and "
                "executors have to share this folder"
            )
            raise FileNotFoundError(errno.ENOENT, message, str(path))


def abort(folder: Path, names: Iterable[str]) -> None:
    """Remove the staged files of a job, or finish its commit if the manifest is written.

    names: the names of the staging folders. If a broker runs on the folder, a written manifest is left to the next
    write. Other staging folders are still removed: a broker does not start with them in its log directory.
    """
    try:
        with lock_log_directory(folder), locked(folder):
            for name in names:
                _finish(folder / name, or_else_remove=True)
    except DirectoryLockedError:
        for name in names:
            if Manifest.read(folder / name) is None:
                remove(folder / name)


def recover(folder: str | os.PathLike[str] | RemotePath, *, remove_staging: bool = False) -> None:
    """Finish the commits to a log directory that a killed driver left, and remove the staged files of dead jobs.

    Every write to the folder does this first, without `remove_staging`.

    folder: a path, or a URI with the settings of its file system.
    remove_staging: also remove staged files of jobs that may be alive, as of a driver on another machine. Use it only
    while no job writes to the folder.

    Raises DirectoryLockedError, before anything is changed, if a broker runs on the folder; ValueError if another
    writer has added records in the place of such a commit; OSError.
    """
    path = storage_path(folder)
    if not isinstance(path, Path):
        recover_store(path, remove_staging=remove_staging)
        return
    with lock_log_directory(path), locked(path):
        for staging in _roll_forward(path):
            if remove_staging:
                remove(staging)


def _roll_forward(folder: Path) -> list[Path]:
    """Finish commits, remove the staged files of dead jobs, and return the remaining staging folders."""
    for staging in stagings(folder):
        owner = owner_of(staging)
        _finish(staging, or_else_remove=owner is not None and owner.is_dead())
    return stagings(folder)


def _finish(staging: Path, *, or_else_remove: bool) -> None:
    manifest = Manifest.read(staging)
    if manifest is not None:
        try:
            manifest.ensure_applicable(staging)
        except ValueError as error:
            raise cannot_finish(staging, error) from error
        manifest.apply(staging)
        names = {*manifest.replaced, *(segment.partition for segment in manifest.segments)}
        warn_of_finished(staging, manifest.batch, names)
    elif or_else_remove:
        remove(staging)


def _remove_older(folder: Path, query: str) -> None:
    """Remove the staged files of failed batches of a query or an application, which runs one batch at a time."""
    for staging in stagings(folder):
        owner = owner_of(staging)
        if owner is not None and owner.query == query:
            remove(staging)


def _move(staging: Path, segment: StagedSegment, base_offset: int) -> None:
    if base_offset != segment.base_offset:
        log, positions = (staging / f"{segment.stem}{suffix}" for suffix in (LOG_SUFFIX, POSITIONS_SUFFIX))
        move_offsets(log, positions, base_offset - segment.base_offset)


def _fill_folders(staging: Path, names: Sequence[str], segments: Iterable[PlacedSegment]) -> None:
    """Put the segments into `<n>.new`, the new folder of the n-th of the partition folders.

    A new folder keeps the topic id of the old one: a broker takes a log without it for that of a deleted topic.
    """
    folders = {name: staging / f"{number}.new" for number, name in enumerate(names)}
    for name, path in folders.items():
        path.mkdir()
        topic_id = read_topic_id(staging.parent / name)
        if topic_id is not None:
            write_topic_id(path, topic_id)
    for segment in segments:
        put_segment(staging / segment.stem, folders[segment.partition], segment.base_offset)
    sync(list(folders.values()))
