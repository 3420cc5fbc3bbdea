"""Log directories of a broker: one folder for each partition, with a file and its indexes for each segment.

Folders are listed at each call, and listings are not kept. Remote folders are listed in parallel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import overload

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.listing import Listing, partition_of, partition_of_folder, segment_entries
from kafkafmt.log.partition_log import PartitionLog, partition_folder
from kafkafmt.log.segment import Segment
from kafkafmt.storage import RemotePath, StoragePath, side_by_side, storage_of
from kafkafmt.storage.backups.generations import is_backup
from kafkafmt.storage.publication import ensure_complete
from kafkafmt.types import TopicPartition, check_int


class LogDirectory:
    """A broker's log directory, a copy of one, or the folder of a single partition.

    Folders that a broker marks `-delete`, `-future` or `-stray`, and folders without a segment, are ignored. Raises
    FileNotFoundError or NotADirectoryError if `path` is not a folder.
    """

    def __init__(self, path: str | os.PathLike[str] | RemotePath) -> None:
        self.path = partition_folder(path)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted({topic for topic, _ in self.folders()})

    def partitions(self, topic: str | None = None) -> list[TopicPartition]:
        """Return all partitions, or those of one topic; sorted by topic, then number."""
        return sorted(found for found in self.folders() if topic in (None, found.topic))

    def __repr__(self) -> str:
        return f"LogDirectory({str(self.path)!r})"

    @overload
    def partition(
        self,
        topic: TopicPartition | tuple[str, int],
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog: ...

    @overload
    def partition(
        self,
        topic: str,
        number: int,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog: ...

    def partition(
        self,
        topic: str | TopicPartition | tuple[str, int],
        number: int | None = None,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
    ) -> PartitionLog:
        """Return the log of a partition, given as topic and number, or as a `TopicPartition`.

        max_decompressed_bytes, from_segment_start: as in `PartitionLog`. Raises FileNotFoundError if the directory does
        not have the partition, and TypeError for other arguments.
        """
        wanted = _wanted_partition(topic, number)
        folder = self.folders().get(wanted)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, f"no segments of partition {wanted}", str(self.path))
        return PartitionLog(
            folder, max_decompressed_bytes=max_decompressed_bytes, from_segment_start=from_segment_start
        )

    def logs(self, *, from_segment_start: bool = False) -> list[PartitionLog]:
        """Return the logs of all partitions, sorted; each folder is listed once. from_segment_start: as `PartitionLog`.

        A folder that is deleted meanwhile is left out.
        """
        return list(self.listed_logs(from_segment_start=from_segment_start))

    def listed_logs(self, *, from_segment_start: bool = False) -> dict[PartitionLog, list[Segment]]:
        """Return the logs of all partitions with their segments, as `logs` does."""
        found = partition_logs(self.path, from_segment_start=from_segment_start)
        return {log: segments for log, segments in found.items() if log.topic_partition is not None}

    def folders(
        self, *, on_denied: Callable[[PermissionError], None] | None = None
    ) -> dict[TopicPartition, StoragePath]:
        """Return the folder of each partition.

        on_denied: called with the PermissionError of a folder that may not be read, which is then left out. Without it
        the error is raised.
        """
        followed = FollowedFolders(self)
        followed.refresh(on_denied=on_denied)
        return followed.folders


def _wanted_partition(topic: str | TopicPartition | tuple[str, int], number: int | None) -> TopicPartition:
    if isinstance(topic, str):
        if number is None:
            raise TypeError(f"number: expected that of a partition of topic {topic!r}, found none")
        check_int("number", number)
        return TopicPartition(topic, number)
    if not isinstance(topic, tuple) or len(topic) != 2:
        raise TypeError(f"topic: expected a name, or a pair of topic and number, found {topic!r}")
    if number is not None:
        raise TypeError(f"number: expected none beside {topic!r}, found {number!r}")
    return TopicPartition(*topic)


class FollowedFolders:
    """The folders of a log directory's partitions, as `LogDirectory.folders`, for repeated listings.

    This is not a `Listing`, which lists all segments of all folders, once. Here a listing reads only folders that are
    new or were replaced, which their inodes show, and of these up to the first segment. Folders without a segment are
    read at each listing. has_empty: whether the last listing found one, or one that could not be read.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._path = directory.path
        self._known: dict[str, tuple[int, TopicPartition]] = {}
        self.has_empty = False
        self.folders: dict[TopicPartition, StoragePath] = {}

    def refresh(self, *, on_denied: Callable[[PermissionError], None] | None = None) -> set[TopicPartition]:
        """List the folders. Returns the partitions that were added or removed, or whose folder was replaced.

        on_denied: as for `LogDirectory.folders`.
        """
        storage, own, before = storage_of(self._path), partition_of(self._path), self.folders
        with storage.entries(self._path) as found:
            entries = {entry.name: entry for entry in found}
        ensure_complete(self._path, entries)
        if own is not None and any(segment_entries(self._path, entries.values())):
            self.folders, self._known, self.has_empty = {own: self._path}, {}, False
            return before.keys() ^ self.folders.keys()
        inodes = {name: entry.inode() for name, entry in entries.items()}
        kept = {name: known for name, known in self._known.items() if inodes.get(name) == known[0]}
        gone = {one for name, (_, one) in self._known.items() if name not in kept}
        named = ((name, partition_of_folder(name)) for name in entries if name not in kept)
        names = {one: name for name, one in named if one is not None}
        new = {one: storage.path_of(self._path, entries[name]) for one, name in names.items()}
        look = partial(_holds_segments, on_denied=on_denied)
        held = side_by_side(look, new.values(), in_parallel=isinstance(self._path, RemotePath))
        added = {one: new[one] for one, is_held in zip(new, held, strict=True) if is_held}
        self.has_empty = len(added) < len(new)
        self._known = kept | {names[one]: (inodes[names[one]], one) for one in added}
        self.folders = {one: folder for one, folder in before.items() if one not in gone} | added
        return gone | added.keys()

    def invalidate(self) -> None:
        """Read all folders at the next listing, as files in them were found to be gone."""
        self._known = {name: (-1, topic_partition) for name, (_, topic_partition) in self._known.items()}


def no_segments_message(path: StoragePath) -> str:
    """Return the error message of a command for a folder that contains no partition."""
    if is_backup(path):
        uri = path.absolute().as_uri() if isinstance(path, Path) else str(path)
        return f"{path}: this is a backup: read it as backup+{uri}"
    nested = nested_log_directory(path)
    meant = "" if nested is None else f"; did you mean {nested}?"
    return f"{path}: no segments here, neither in it nor in folders named <topic>-<partition>{meant}"


def nested_log_directory(path: StoragePath) -> StoragePath | None:
    """Return a log directory in this folder, which the user probably meant; None if there is none."""
    try:
        with storage_of(path).entries(path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        return next((path / name for name in names if LogDirectory(path / name).folders()), None)
    except OSError:
        return None


def partition_logs(
    source: StoragePath, *, from_segment_start: bool = False
) -> dict[PartitionLog, list[Segment]]:
    """Return the log of a folder that itself has segments, and the logs of the partitions in it, with their segments.

    If the folder is named as a partition and has segments, it is the only log. Each folder of a partition is listed
    once. from_segment_start: as in `PartitionLog`.
    """
    directory, log_starts = partition_folder(source), LogStartOffsets()
    logs = {}
    for folder, segments in Listing().logs(directory).items():
        with suppress(FileNotFoundError):  # it may be deleted meanwhile
            log = PartitionLog(folder, from_segment_start=from_segment_start, log_starts=log_starts)
            logs[log] = segments
    return logs


def _holds_segments(folder: StoragePath, on_denied: Callable[[PermissionError], None] | None) -> bool:
    """Whether a path is a folder with segments.

    on_denied: called with the PermissionError of a folder that may not be read; without it the error is raised.
    """
    try:
        with suppress(FileNotFoundError, NotADirectoryError), storage_of(folder).entries(folder) as entries:
            return any(segment_entries(folder, entries))
    except PermissionError as error:
        if on_denied is None:
            raise
        on_denied(error)
    return False
