"""List the segments under the paths that a user gives, as to Spark's `load()`, on any file system.

A path is a log directory, the folder of a partition, a segment file, or a pattern for these. It is local or a URI; see
`kafkafmt.storage.locations`.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafmt._util.files import ensure_regular_or_missing
from kafkafmt.log.checkpoints import LogStartOffsets, read_log_start_offsets
from kafkafmt.log.partition_log import partition_of_folder
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    is_segment_file_name,
)
from kafkafmt.storage import RemotePath, StoragePath, Storages, storage_of
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.storage import FolderEntry, Storage

SIDECAR_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
# How a broker renames the folder of a partition that it deletes, moves or does not know.
_LEFT_BEHIND = re.compile(r".*-(delete|future|stray)")
_LISTED_AT_ONCE = 16
# The limit of patterns after braces are expanded: each one is searched for separately.
_MOST_ALTERNATIVES = 10_000


def list_segments(
    paths: str | os.PathLike[str] | RemotePath | Iterable[str | os.PathLike[str] | RemotePath],
    options: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> list[Segment]:
    """List the segments under `paths`, each once, sorted by topic, partition and base offset.

    For a folder, these are the segments in it and in the folders of partitions in it. Other folders and files are
    ignored.

    In a pattern, `*`, `[0-9]` and `{a,b}` match within one name, as in a shell. `?` does so only in a local path: in a
    URI it begins the query. A pattern ignores all but segments, folders of partitions and log directories. A path that
    exists is not used as a pattern.

    options: settings of the file systems of URIs; see `kafkafmt.storage.locations`.
    may_be_empty: a folder without segments, or a pattern without matches, is no error.

    Raises FileNotFoundError if a path does not exist or has no segments. Raises ValueError for a file that is not a
    segment, for an unknown scheme, and for options that the file system does not have. Raises OSError of the file
    system.
    """
    storages, listing = Storages(options), Listing()
    found: dict[StoragePath, Segment] = {}
    for given in [paths] if isinstance(paths, str | os.PathLike | RemotePath) else paths:
        path = storages.locate(given)
        segments = listing.find(path).segments
        if not segments and not may_be_empty:
            complaint = "no segments in this folder" if path.is_dir() else "no segments match"
            raise FileNotFoundError(errno.ENOENT, complaint, str(path))
        found = {segment.path: segment for segment in segments} | found
    return sorted(found.values(), key=_order)


class FoundFiles(NamedTuple):
    """The segments at a path, by topic, partition and base offset, and its other files, by name."""

    segments: list[Segment]
    others: list[StoragePath]


class Listing:
    """Finds the files that paths and patterns stand for. Each folder is listed once.

    with_others: find files that are not segments, too, and the segments in folders of any name that match a pattern.
    """

    def __init__(self, *, with_others: bool = False) -> None:
        self._with_others = with_others
        self._folders: dict[Storage[Any], _Folders] = {}

    def find(self, path: StoragePath) -> FoundFiles:
        """Find the files at a path; nothing if nothing matches a pattern, or if a folder has no segments.

        Raises FileNotFoundError for a path that does not exist; without `with_others` ValueError for a file that is not
        a segment.
        """
        storage = storage_of(path)
        folders = self._folders.setdefault(storage, _Folders(storage, path, with_others=self._with_others))
        found: dict[str, Segment | StoragePath] = {}
        for one in folders.find(path):
            found.setdefault(str(one), one)
        segments = sorted((one for one in found.values() if isinstance(one, Segment)), key=_order)
        return FoundFiles(segments, [one for one in found.values() if not isinstance(one, Segment)])


def by_folder(segments: Iterable[Segment]) -> list[tuple[Segment, ...]]:
    """Group segments by folder, those of each sorted by base offset."""
    folders: dict[StoragePath, list[Segment]] = {}
    for segment in segments:
        folders.setdefault(segment.path.parent, []).append(segment)
    return [tuple(sorted(found, key=lambda one: one.base_offset)) for found in folders.values()]


def read_log_starts(segments: Sequence[Segment]) -> list[int]:
    """Return the log start offset of the partition of each segment; 0 if no checkpoint file has the partition.

    Each `log-start-offset-checkpoint`, local or remote, is read once; remote ones are read in parallel. Raises
    CheckpointError for a malformed file, and OSError.
    """
    local = LogStartOffsets()
    directories = {one.path.parent.parent for one in segments if isinstance(one.path, RemotePath)}
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        found = dict(zip(directories, threads.map(read_log_start_offsets, directories), strict=True))

    def start_of(segment: Segment) -> int:
        folder = segment.path.parent
        if isinstance(folder, Path):
            return local.of(folder)
        partition = segment.topic_partition
        return 0 if partition is None else found[folder.parent].get(partition, 0)

    return [start_of(one) for one in segments]


class _Folders:
    """The folders of a storage, each listed once. Paths in it are texts, as patterns are no paths."""

    def __init__(self, storage: Storage[Any], path: StoragePath, *, with_others: bool) -> None:
        self._storage = storage
        self._remote = path.storage if isinstance(path, RemotePath) else None
        self._with_others = with_others
        self._listed: dict[str, dict[str, FolderEntry]] = {}

    def find(self, path: StoragePath) -> Sequence[Segment | StoragePath]:
        """Find the files at a path, or those that match it as a pattern."""
        if isinstance(path, RemotePath):
            within, path = path.path, path.looked_up()
        else:
            within = str(path).rstrip("/") if path.is_absolute() else f"./{path}"
        if path.is_dir():
            return self._segments_under(within)
        if path.exists():
            return [self._file_at(within)]
        if not _MAGIC.search(within):
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path))
        patterns = list(islice(_alternatives(within), _MOST_ALTERNATIVES + 1))
        if len(patterns) > _MOST_ALTERNATIVES:
            expected = f"expected braces for {_MOST_ALTERNATIVES} patterns at the most"
            raise ValueError(f"{path}: {expected}")
        return [file for pattern in patterns for file in self._matching(pattern)]

    def _at(self, path: str) -> StoragePath:
        return Path(path or "/") if self._remote is None else RemotePath(self._remote, path)

    def _file_at(self, path: str) -> Segment | StoragePath:
        folder, _, name = path.rpartition("/")
        if not is_segment_file_name(name):
            if self._with_others:
                return self._at(path)
            expected = f"expected a name of 20 digits and {LOG_SUFFIX}, a segment's"
            raise ValueError(f"{self._at(path)}: {expected}")
        found = self._segments_in(folder, name)
        if not found:
            there = self._at(path)
            if isinstance(there, Path):
                ensure_regular_or_missing(there)
            raise FileNotFoundError(errno.ENOENT, "deleted while it was listed", str(there))
        return found[0]

    def _children(self, folder: str) -> dict[str, FolderEntry]:
        """List a folder, by name of the entry; empty if the folder is gone. The root is an empty str."""
        if folder not in self._listed:
            try:
                with self._storage.entries(self._at(folder)) as entries:
                    self._listed[folder] = {entry.name: entry for entry in entries}
            except FileNotFoundError:
                self._listed[folder] = {}
        return self._listed[folder]

    def _subfolders(self, folder: str) -> Iterator[str]:
        for name, entry in self._children(folder).items():
            if entry.is_dir():
                yield f"{folder}/{name}"

    def _segments_in(self, folder: str, wanted: str | None = None) -> list[Segment]:
        """The segments in a folder, or the one of a name."""
        entries = self._children(folder)
        names = sorted(name for name, one in entries.items() if is_segment_file_name(name) and one.is_file())
        pairs = (pair for pair in zip_longest(names, names[1:]) if wanted in (None, pair[0]))
        found = (self._segment(folder, *pair, entries) for pair in pairs)
        return [segment for segment in found if segment is not None]

    def _segment(
        self, folder: str, name: str, next_name: str | None, entries: Mapping[str, FolderEntry]
    ) -> Segment | None:
        """Create a segment from its listing; None if it was deleted since."""
        there, stem = self._at(folder), name.removesuffix(LOG_SUFFIX)
        path: StoragePath = self._storage.path_of(there, entries[name])
        try:
            status = path.stat()
            sidecar_sizes = {
                suffix: self._storage.path_of(there, entries[stem + suffix]).stat().st_size
                for suffix in SIDECAR_SUFFIXES
                if stem + suffix in entries and entries[stem + suffix].is_file()
            }
        except FileNotFoundError:
            return None
        return Segment(
            path,
            is_active=next_name is None,
            listed_size_in_bytes=status.st_size,
            modification_time_ms=status.st_mtime_ns // 1_000_000 or None,
            sidecar_sizes=sidecar_sizes,
            next_base_offset=None if next_name is None else int(next_name.removesuffix(LOG_SUFFIX)),
        )

    def _list(self, folders: Sequence[str]) -> None:
        """List folders in parallel, as each costs one round trip or more."""
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
            for _ in threads.map(self._children, folders):
                pass

    def _segments_in_all(self, folders: Sequence[str]) -> list[Segment]:
        self._list(folders)
        return [file for folder in folders for file in self._segments_in(folder)]

    def _segments_under(self, folder: str) -> list[Segment]:
        return self._segments_in(folder) + self._found_in(self._partitions_in(folder))

    def _found_in(self, partitions: Sequence[str]) -> list[Segment]:
        """List the segments of partitions that were found in a log directory, not named by the user."""
        return [replace(file, is_named=False) for file in self._segments_in_all(partitions)]

    def _partitions_in(self, folder: str) -> list[str]:
        return [path for path in self._subfolders(folder) if _partition_at(path)]

    def _matching(self, pattern: str) -> list[Segment | StoragePath]:
        """The files that match a pattern, and the segments of the folders that match it."""
        *above, last = pattern.split("/")
        fixed = next((number for number, name in enumerate(above) if _MAGIC.search(name)), len(above))
        folders = ["/".join(above[:fixed])]
        for name in above[fixed:]:
            folders = self._subfolders_like(folders, name)
        matched = self._subfolders_like(folders, last)
        partitions = [path for path in matched if _partition_at(path)]
        directories = [path for path in matched if not _partition_at(path)]
        self._list(directories)
        in_directories = [partition for path in directories for partition in self._partitions_in(path)]
        others: list[StoragePath] = []
        if self._with_others:
            partitions += directories
            others = [self._at(path) for folder in folders for path in self._other_files(folder, last)]
        else:
            folders = [folder for folder in folders if not _LEFT_BEHIND.fullmatch(folder)]
        named = [file for file in self._segments_in_all(folders) if _is_like(str(file), last)]
        return [*named, *self._segments_in_all(partitions), *self._found_in(in_directories), *others]

    def _other_files(self, folder: str, pattern: str) -> list[str]:
        entries = self._children(folder).items()
        names = [name for name, one in entries if not is_segment_file_name(name) and not one.is_dir()]
        return sorted(f"{folder}/{name}" for name in names if _is_like(name, pattern))

    def _subfolders_like(self, folders: Sequence[str], pattern: str) -> list[str]:
        if pattern == "**":
            return self._subfolders_below(folders)
        self._list(folders)
        return [path for folder in folders for path in self._subfolders(folder) if _is_like(path, pattern)]

    def _subfolders_below(self, folders: Sequence[str]) -> list[str]:
        """These folders and all below them. What links lead to is not looked through: it may be a circle."""
        found = list(folders)
        while folders:
            below = self._subfolders_like(folders, "*")
            found += below
            folders = [path for path in below if not self._at(path).is_symlink()]
        return found


def _alternatives(pattern: str) -> Iterator[str]:
    """Expand the braces of a pattern.

    >>> list(_alternatives("{a,b}-{0,1}"))
    ['a-0', 'a-1', 'b-0', 'b-1']
    """
    match = _BRACES.search(pattern)
    if match is None:
        yield pattern
        return
    before, after = pattern[: match.start()], pattern[match.end() :]
    for choice in match[1].split(","):
        yield from _alternatives(before + choice + after)


def _is_like(path: str, pattern: str) -> bool:
    """Whether the last name of a path matches a pattern. As in a shell, `*` matches no name that begins with a dot."""
    name = path.rpartition("/")[2]
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _partition_at(path: str) -> TopicPartition | None:
    return partition_of_folder(path.rpartition("/")[2])


def _order(file: Segment) -> tuple[str, int, str, int, str]:
    """Sort by topic, partition and base offset. Segments without partition come first, folder by folder."""
    if file.topic_partition is None:
        return "", -1, str(file.path.parent), file.base_offset, ""
    return *file.topic_partition, "", file.base_offset, str(file)
