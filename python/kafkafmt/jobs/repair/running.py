"""Repair a log directory, or the folder of one partition: into a new folder, or in place.

A new local folder is written beside its final name, and renamed when it is complete. So a run that is killed leaves the
source as it is, and no target. For a store, the folder is written on the local disk, and uploaded when it is complete:
`kafkafmt.storage.publication` says how readers are kept from a part of it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from kafkafmt._util.directory_lock import (
    lock_log_directory,
    lock_partition_folder,
    lock_surroundings,
)
from kafkafmt._util.files import make_folder, sync_path
from kafkafmt.jobs.repair.directory import DirectoryFiles, LogBounds
from kafkafmt.jobs.repair.errors import RepairError
from kafkafmt.jobs.repair.in_place import FolderChange, finish_change
from kafkafmt.jobs.repair.partition import PartitionWriter, ScannedPartition, scan_partition, sync_partition
from kafkafmt.jobs.repair.report import RepairReport
from kafkafmt.jobs.repair.scan import Progress, files_of, log_files
from kafkafmt.jobs.rewrite import is_within
from kafkafmt.log.listing import partition_of, partition_of_folder
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.storage import RemotePath, StoragePath, no_folder_reason
from kafkafmt.storage.publication import NewFolder, ensure_complete, ensure_new
from kafkafmt.types import TopicPartition

_Path = TypeVar("_Path", Path, RemotePath, Path | RemotePath)

_COMMAND = "repair"


@dataclass(frozen=True)
class _Source(Generic[_Path]):
    """What is repaired. folders: those of partitions, with the partition. directory: the log directory; None if the
    source is a partition's folder of another name. is_partition: the source is a partition's folder itself.
    """

    path: _Path
    folders: dict[_Path, TopicPartition | None]
    directory: _Path | None
    is_partition: bool

    @classmethod
    def of(cls, path: _Path) -> _Source[_Path]:
        """Look at a folder. Raises RepairError if there is no partition in it, and OSError."""
        reason = no_folder_reason(path)
        if reason is not None:
            raise RepairError(f"{path}: {reason}")
        found, own = files_of(path), partition_of(path)
        ensure_complete(path, {one.name for one in found})
        if own is not None or any(log_files(path)):
            return cls(path, {path: own}, None if own is None else path.absolute().parent, True)
        named = ((one, partition_of_folder(one.name)) for one in found if one.is_dir())
        folders = {folder: partition for folder, partition in named if partition is not None}
        if not folders:
            raise RepairError(f"{path}: no folder named <topic>-<partition> here, and no segment")
        return cls(path, dict(sorted(folders.items(), key=lambda item: str(item[1]))), path, False)

    @property
    def size_in_bytes(self) -> int:
        """The size of all segments."""
        return sum(log.stat().st_size for folder in self.folders for log in log_files(folder)[0])

    def topic_ids(self) -> dict[str, uuid.UUID]:
        """Return the ids of topics whose partitions agree about it, by name."""
        found = defaultdict[str, set[uuid.UUID]](set)
        for folder, partition in self.folders.items():
            topic_id = read_topic_id(folder)
            if partition is not None and topic_id is not None:
                found[partition.topic].add(topic_id)
        return {topic: next(iter(ids)) for topic, ids in found.items() if len(ids) == 1}


def size_in_bytes(source: StoragePath) -> int:
    """Return how many bytes a repair of `source` reports to `progress`: it reads all segments twice."""
    return 2 * _Source.of(source).size_in_bytes


def repair(
    source: StoragePath, target: StoragePath | None, *, deep: bool = False, progress: Progress | None = None
) -> RepairReport:
    """Write what is sound in a log directory, or in a partition's folder, to a new folder of the same kind.

    Args:
        source: a log directory, or the folder of a partition. It is not changed.
        target: a folder that does not exist, or is empty, local or in a store. None to write nothing, and only report.
        deep: also leave out batches whose CRC is valid, but whose records cannot be read.
        progress: called with the number of bytes that were read since its last call; see `size_in_bytes`.

    Raises RepairError for a source or target of another kind, DirectoryLockedError if the target is in the directory
    of a broker that runs, and OSError. After an error there is no target.
    """
    found = _Source.of(source)
    report = RepairReport()
    if target is None:
        _write_all(found, None, report, deep, progress)
        return report
    _ensure_new(source, target)
    with _new_folder(target) as written:
        _write_all(found, written, report, deep, progress)
    return report


@contextmanager
def _new_folder(target: StoragePath) -> Iterator[Path]:
    """Yield a local folder, and publish it as `target` after the block: by a rename, or by uploading it."""
    with ExitStack() as locks:
        if isinstance(target, Path):
            target = target.resolve()  # a folder cannot be renamed to a link
            locks.enter_context(lock_surroundings(target))
            make_folder(target.parent)
        new = NewFolder(target, _COMMAND)
        locks.callback(new.remove)
        yield new.path
        new.publish()


def repair_in_place(source: Path, *, deep: bool = False, progress: Progress | None = None) -> RepairReport:
    """Repair a log directory, or a partition's folder, in place. Only files that are wrong are replaced.

    The folder of each changed partition keeps the replaced files in `.kafkafmt-repaired-<number>`, which brokers
    ignore. The log directory is locked as by a broker. A run that was killed is completed by the next one.

    Raises as `repair`, and DirectoryLockedError if a broker or another writer uses the log directory. Raises
    RepairError if files that a killed run was to replace have changed since.
    """
    found, report = _Source.of(_linked_partition(source)), RepairReport()
    with _locked(found):
        for folder in found.folders:
            backup = finish_change(folder)
            if backup is not None:
                report.notes.append(f"{folder}: completed a repair that was killed")
                report.backups.append(str(backup))
        files = None if found.directory is None else DirectoryFiles(found.directory, found.directory, report)
        is_flushed = files is not None and files.has_clean_shutdown()
        bounds, ids = {}, found.topic_ids()
        for folder, partition in found.folders.items():
            if not is_flushed:
                sync_partition(folder)
            scanned = scan_partition(folder, partition, deep=deep, progress=progress)
            report.partitions.append(scanned.report)
            change = FolderChange(folder)
            try:
                writer = PartitionWriter(scanned, change.new, in_place=True, topic_id=_id_of(partition, ids))
                writer.write(progress)
                if scanned.report.is_changed:
                    if files is not None and partition is not None:
                        files.begin(partition)
                    report.backups.append(str(change.commit(writer.removed())))
            finally:
                change.discard()
            if partition is not None:
                bounds[partition] = _bounds(scanned, writer)
        if files is not None:
            files.write(bounds, only=found.is_partition)
            if not found.is_partition:
                files.report_others()
    return report


def _write_all(
    source: _Source[StoragePath],
    target: Path | None,
    report: RepairReport,
    deep: bool,
    progress: Progress | None,
) -> None:
    """Write all partitions and the files of the log directory into a new folder; with no target, only report."""
    bounds, ids = {}, source.topic_ids()
    for folder, partition in source.folders.items():
        scanned = scan_partition(folder, partition, deep=deep, progress=progress)
        report.partitions.append(scanned.report)
        written = target if source.is_partition or target is None else target / folder.name
        if written is not None:
            written.mkdir(exist_ok=True)
        writer = PartitionWriter(scanned, written, in_place=target is None, topic_id=_id_of(partition, ids))
        writer.write(progress)
        if written is not None:
            sync_path(written)
        if partition is not None:
            bounds[partition] = _bounds(scanned, writer)
    if source.directory is not None and not source.is_partition:
        files = DirectoryFiles(source.directory, target, report)
        files.write(bounds)
        files.report_others()


def _bounds(scanned: ScannedPartition, writer: PartitionWriter) -> LogBounds:
    segments, report = scanned.plan.segments, scanned.report
    active = segments[-1].base_offset if segments else 0
    return LogBounds(report.start_offset, report.end_offset, active, writer.epochs_start)


def _id_of(partition: TopicPartition | None, ids: dict[str, uuid.UUID]) -> uuid.UUID | None:
    return None if partition is None else ids.get(partition.topic)


def _ensure_new(source: StoragePath, target: StoragePath) -> None:
    if is_within(target, source):
        raise RepairError(f"{target}: is in the source {source}: name a folder elsewhere")
    if isinstance(target, RemotePath):
        ensure_new(target, _COMMAND)
    elif target.is_dir() and not any(target.iterdir()):
        pass
    elif target.exists() or target.is_symlink():
        raise RepairError(f"{target}: already exists: name a new folder, or an empty one")


def _linked_partition(source: Path) -> Path:
    """Return the folder to which a link to a partition's folder leads, if a broker would give that one the same name.

    The log directory with its lock and its checkpoints is the one around that folder.
    """
    resolved, own = source.resolve(), partition_of(source)
    return resolved if own is not None and partition_of(resolved) == own else source


@contextmanager
def _locked(source: _Source[Path]) -> Iterator[None]:
    """Lock the log directory, and the ones to which links to its partitions lead."""
    with ExitStack() as locks:
        if source.directory is not None:
            locks.enter_context(lock_log_directory(source.directory, exclusive=True))
        for folder in source.folders:
            if source.directory is None or folder.is_symlink():
                locks.enter_context(lock_partition_folder(folder))
        yield
