"""Log directories of a broker: one folder for each partition, with a file and its indexes for each segment.

    <log directory>/<topic>-<partition>/<base offset>.log  .index  .timeindex  .txnindex

Folders are listed at each call, and listings are not kept. Remote folders are listed in parallel.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, overload

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.partition_log import PartitionLog, partition_folder, partition_of, partition_of_folder
from kafkafmt.log.segment import Segment, is_segment_file_name
from kafkafmt.storage import RemotePath, StoragePath, storage_of
from kafkafmt.types import TopicPartition, check_int

_LISTED_AT_ONCE = 16

_Found = TypeVar("_Found")


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
        log_starts = LogStartOffsets()

        def look(folder: StoragePath) -> tuple[PartitionLog, list[Segment]] | None:
            with _no_folder_of_segments():
                log = PartitionLog(folder, from_segment_start=from_segment_start, log_starts=log_starts)
                return log, log.segments()
            return None

        own = look(self.path) if partition_of(self.path) is not None else None
        if own is not None and own[1]:
            return dict([own])
        storage = storage_of(self.path)
        with storage.entries(self.path) as entries:
            named = [
                (partition_of_folder(entry.name), storage.path_of(self.path, entry)) for entry in entries
            ]
        folders = [folder for _, folder in sorted((one, folder) for one, folder in named if one is not None)]
        return dict(one for one in _side_by_side(look, folders) if one is not None and one[1])

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

    A listing reads only folders that are new or were replaced, which their inodes show.
    """

    def __init__(self, directory: LogDirectory) -> None:
        self._path = directory.path
        self._known: dict[str, tuple[int, TopicPartition]] = {}
        self.folders: dict[TopicPartition, StoragePath] = {}

    def refresh(self, *, on_denied: Callable[[PermissionError], None] | None = None) -> set[TopicPartition]:
        """List the folders. Returns the partitions that were added or removed, or whose folder was replaced.

        on_denied: as for `LogDirectory.folders`.
        """
        storage = storage_of(self._path)
        with storage.entries(self._path) as found:
            entries = list(found)
        own = partition_of(self._path)
        if own is not None and any(is_segment_file_name(entry.name) and entry.is_file() for entry in entries):
            before, self.folders = self.folders, {own: self._path}
            self._known = {}
            return before.keys() ^ self.folders.keys()
        seen = {
            entry.name: self._known[entry.name]
            for entry in entries
            if entry.name in self._known and self._known[entry.name][0] == entry.inode()
        }
        new = [entry for entry in entries if entry.name not in seen]
        folders = [storage.path_of(self._path, entry) for entry in new]
        changed = set()
        look = partial(_partition_of_segments, on_denied=on_denied)
        for entry, folder, topic_partition in zip(new, folders, _side_by_side(look, folders), strict=True):
            if topic_partition is not None:
                seen[entry.name] = entry.inode(), topic_partition
                self.folders[topic_partition] = folder
                changed.add(topic_partition)
        for name, (_, topic_partition) in self._known.items():
            if name not in seen:
                del self.folders[topic_partition]
                changed.add(topic_partition)
        self._known = seen
        return changed

    def invalidate(self) -> None:
        """Read all folders at the next listing, as files in them were found to be gone."""
        self._known = {name: (-1, topic_partition) for name, (_, topic_partition) in self._known.items()}


def no_segments_message(path: StoragePath) -> str:
    """Return the error message of a command for a folder that contains no partition."""
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
    own = PartitionLog(source, from_segment_start=from_segment_start)
    segments = own.segments()
    logs = {own: segments} if segments else {}
    if logs and own.topic_partition is not None:
        return logs
    return logs | LogDirectory(source).listed_logs(from_segment_start=from_segment_start)


def _side_by_side(look: Callable[[StoragePath], _Found], folders: Sequence[StoragePath]) -> list[_Found]:
    """Call `look` for each folder, in parallel if one is remote, as each costs a round trip. Returns the results."""
    if not any(isinstance(folder, RemotePath) for folder in folders):
        return list(map(look, folders))
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        return list(threads.map(look, folders))


def _partition_of_segments(
    folder: StoragePath, on_denied: Callable[[PermissionError], None] | None
) -> TopicPartition | None:
    """Return the partition of a folder with segments; None for any other folder.

    on_denied: called with the PermissionError of a folder that may not be read; without it the error is raised.
    """
    found = partition_of_folder(folder.name)
    try:
        return found if found is not None and _holds_segments(folder) else None
    except PermissionError as error:
        if on_denied is None:
            raise
        on_denied(error)
        return None


def _holds_segments(path: StoragePath) -> bool:
    with _no_folder_of_segments(), storage_of(path).entries(path) as entries:
        return any(is_segment_file_name(entry.name) and entry.is_file() for entry in entries)
    return False


@contextlib.contextmanager
def _no_folder_of_segments() -> Iterator[None]:
    """Suppress the errors of a path that is not a folder, is gone, or is a link to itself."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
