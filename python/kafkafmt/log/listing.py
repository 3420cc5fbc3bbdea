"""List the segments under the paths that a user gives, as to Spark's `load()`, on any file system.

A path is a log directory, the folder of a partition, a segment file, or a pattern for these. It is local or a URI; see
`kafkafmt.storage.locations`. Remote folders are listed in parallel.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    is_segment_file_name,
)
from kafkafmt.storage import RemotePath, StoragePath, Storages, side_by_side, storage_of
from kafkafmt.storage.publication import ensure_complete
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.storage import FolderEntry

SIDECAR_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
# How a broker renames the folder of a partition that it deletes, moves or does not know.
_LEFT_BEHIND = re.compile(r".*-(delete|future|stray)")
# The limit of patterns after braces are expanded: each one is searched for separately.
_MOST_ALTERNATIVES = 10_000
_MAX_PARTITION = 2**31 - 1


def list_segments(
    paths: str | os.PathLike[str] | RemotePath | Iterable[str | os.PathLike[str] | RemotePath],
    options: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> list[Segment]:
    """List the segments under `paths`, each once, sorted by topic, partition and base offset.

    Local folders, FIFOs and broken links with the name of a segment are listed, too. Call `ensure_regular` for the
    segments that are to be read.

    For a folder, these are the segments in it and in the folders of partitions in it. Other folders and files are
    ignored.

    In a pattern, `*`, `[0-9]` and `{a,b}` match within one name, as in a shell. `?` does so only in a local path: in a
    URI it begins the query. `**` matches a folder and all folders below it. A pattern ignores all but segments, folders
    of partitions and log directories. A path that exists is not used as a pattern.

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

    Local folders, FIFOs and broken links with the name of a segment are found as segments that are not regular.
    """

    def __init__(self, *, with_others: bool = False) -> None:
        self._with_others = with_others
        self._listed: dict[str, dict[str, FolderEntry]] = {}
        self._segments: dict[str, list[Segment]] = {}

    def find(self, path: StoragePath) -> FoundFiles:
        """Find the files at a path; nothing if nothing matches a pattern, or if a folder has no segments.

        Raises FileNotFoundError for a path that does not exist; without `with_others` ValueError for a file that is not
        a segment.
        """
        found: dict[str, Segment | StoragePath] = {}
        for one in self._files_at(path):
            found.setdefault(str(one), one)
        segments = sorted((one for one in found.values() if isinstance(one, Segment)), key=_order)
        return FoundFiles(segments, [one for one in found.values() if not isinstance(one, Segment)])

    def logs(self, directory: StoragePath) -> dict[StoragePath, list[Segment]]:
        """Find the segments in a folder, and in the folders of partitions in it, by folder, sorted by partition.

        If the folder itself is named as a partition and has segments, it is the only one. A folder without segments is
        left out. The segments have no listed size: they are read up to their present ends.
        """
        own = self._present_segments(directory)
        found = {directory: own} if own else {}
        if own and partition_of(directory) is not None:
            return found

        # Not `_children`, which would keep all entries of what may be thousands of folders.
        def look(folder: StoragePath) -> list[Segment]:
            with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
                return segments_among(folder, entries)
            return []

        folders = self._partitions_in(directory)
        listed = side_by_side(look, folders, in_parallel=isinstance(directory, RemotePath))
        return found | {folder: one for folder, one in zip(folders, listed, strict=True) if one}

    def _files_at(self, path: StoragePath) -> Sequence[Segment | StoragePath]:
        """Find the files at a path, or those that match it as a pattern."""
        there = path.looked_up() if isinstance(path, RemotePath) else path
        if there.is_dir():
            return self._segments_in(path) + self._found_in(self._partitions_in(path))
        if there.exists() or (is_segment_file_name(path.name) and path.is_symlink()):
            return [self._file_at(path)]
        pattern = path.path if isinstance(path, RemotePath) else str(path)
        if not _MAGIC.search(pattern):
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path))
        patterns = list(islice(_alternatives(pattern), _MOST_ALTERNATIVES + 1))
        if len(patterns) > _MOST_ALTERNATIVES:
            expected = f"expected braces for {_MOST_ALTERNATIVES} patterns at the most"
            raise ValueError(f"{path}: {expected}")
        return [file for pattern in patterns for file in self._matching(pattern, path)]

    def _file_at(self, path: StoragePath) -> Segment | StoragePath:
        if not is_segment_file_name(path.name):
            if self._with_others:
                return path
            expected = f"expected a name of 20 digits and {LOG_SUFFIX}, a segment's"
            raise ValueError(f"{path}: {expected}")
        found = self._segments_in(path.parent, int(path.stem))
        if not found:
            raise FileNotFoundError(errno.ENOENT, "deleted while it was listed", str(path))
        return found[0]

    def _children(self, folder: StoragePath) -> dict[str, FolderEntry]:
        """List a folder, by name of the entry; empty if the folder is gone."""
        key = str(folder)
        if key not in self._listed:
            self._listed[key] = {}
            with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
                self._listed[key] = {entry.name: entry for entry in entries}
            ensure_complete(folder, self._listed[key])
        return self._listed[key]

    def _subfolders(self, folder: StoragePath) -> list[StoragePath]:
        storage = storage_of(folder)
        return [storage.path_of(folder, one) for one in self._children(folder).values() if one.is_dir()]

    def _partitions_in(self, folder: StoragePath) -> list[StoragePath]:
        """The folders of partitions in a folder, sorted."""
        storage, entries = storage_of(folder), self._children(folder)
        named = ((partition_of_folder(name), name) for name in entries)
        found = sorted((one, name) for one, name in named if one is not None and entries[name].is_dir())
        return [storage.path_of(folder, entries[name]) for _, name in found]

    def _present_segments(self, folder: StoragePath) -> list[Segment]:
        """The segments in a folder, without a listed size."""
        key = str(folder)
        if key not in self._segments:
            self._segments[key] = segments_among(folder, self._children(folder).values())
        return self._segments[key]

    def _segments_in(self, folder: StoragePath, wanted: int | None = None) -> list[Segment]:
        """The segments in a folder as they are listed, or the one with the base offset `wanted`."""
        segments = self._present_segments(folder)
        next_offsets = (segment.base_offset for segment in segments[1:])
        found = (
            self._as_listed(folder, segment, next_offset)
            for segment, next_offset in zip_longest(segments, next_offsets)
            if wanted in (None, segment.base_offset)
        )
        return [segment for segment in found if segment is not None]

    def _as_listed(
        self, folder: StoragePath, segment: Segment, next_base_offset: int | None
    ) -> Segment | None:
        """Add what is known from the listing to a regular segment; None if it was deleted since."""
        if not segment.is_regular:
            return replace(segment, next_base_offset=next_base_offset)
        storage, entries, stem = storage_of(folder), self._children(folder), segment.path.stem
        try:
            status = segment.path.stat()
        except FileNotFoundError:
            return None
        sidecar_sizes = {}
        for suffix in SIDECAR_SUFFIXES:
            if stem + suffix in entries and entries[stem + suffix].is_file():
                with suppress(FileNotFoundError):
                    sidecar = storage.path_of(folder, entries[stem + suffix])
                    sidecar_sizes[suffix] = sidecar.stat().st_size
        return replace(
            segment,
            listed_size_in_bytes=status.st_size,
            modification_time_ms=status.st_mtime_ns // 1_000_000 or None,
            sidecar_sizes=sidecar_sizes,
            next_base_offset=next_base_offset,
        )

    def _list(self, folders: Sequence[StoragePath]) -> None:
        """List folders in parallel, as each costs one round trip or more."""
        side_by_side(self._children, folders, in_parallel=True)

    def _segments_in_all(self, folders: Sequence[StoragePath]) -> list[Segment]:
        self._list(folders)
        return [file for folder in folders for file in self._segments_in(folder)]

    def _found_in(self, partitions: Sequence[StoragePath]) -> list[Segment]:
        """List the segments of partitions that were found in a log directory, not named by the user."""
        return [replace(file, is_named=False) for file in self._segments_in_all(partitions)]

    def _matching(self, pattern: str, path: StoragePath) -> list[Segment | StoragePath]:
        """The files on the storage of `path` that match a pattern, and the segments of the folders that match it."""
        *above, last = pattern.split("/")
        fixed = next((number for number, name in enumerate(above) if _MAGIC.search(name)), len(above))
        folders = [_folder_at(above[:fixed], path)]
        for name in above[fixed:]:
            folders = self._subfolders_like(folders, name)
        matched = self._subfolders_like(folders, last)
        partitions = [path for path in matched if partition_of_folder(path.name)]
        directories = [path for path in matched if not partition_of_folder(path.name)]
        self._list(directories)
        in_directories = [partition for path in directories for partition in self._partitions_in(path)]
        others: list[StoragePath] = []
        if self._with_others:
            partitions += directories
            others = [file for folder in folders for file in self._other_files(folder, last)]
        else:
            folders = [folder for folder in folders if not _LEFT_BEHIND.fullmatch(folder.name)]
        named = [file for file in self._segments_in_all(folders) if _is_like(file.path.name, last)]
        return [*named, *self._segments_in_all(partitions), *self._found_in(in_directories), *others]

    def _other_files(self, folder: StoragePath, pattern: str) -> list[StoragePath]:
        entries = self._children(folder).items()
        names = [name for name, one in entries if not is_segment_file_name(name) and not one.is_dir()]
        return [folder / name for name in sorted(names) if _is_like(name, pattern)]

    def _subfolders_like(self, folders: Sequence[StoragePath], pattern: str) -> list[StoragePath]:
        if pattern == "**":
            return self._subfolders_below(folders)
        self._list(folders)
        return [one for folder in folders for one in self._subfolders(folder) if _is_like(one.name, pattern)]

    def _subfolders_below(self, folders: Sequence[StoragePath]) -> list[StoragePath]:
        """These folders and all below them. What links lead to is not looked through: it may be a circle."""
        found = list(folders)
        while folders:
            below = self._subfolders_like(folders, "*")
            found += below
            folders = [path for path in below if not path.is_symlink()]
        return found


def segment_entries(folder: StoragePath, entries: Iterable[FolderEntry]) -> Iterator[FolderEntry]:
    """Yield the entries of a folder that are segments, or local with the name of one, in no defined order.

    An entry that a broker deletes meanwhile is left out. A link that stays and leads nowhere is not.
    """
    named = (entry for entry in entries if is_segment_file_name(entry.name))
    return (entry for entry in named if entry.is_file() or _is_irregular(folder, entry))


def _is_irregular(folder: StoragePath, entry: FolderEntry) -> bool:
    return isinstance(folder, Path) and os.path.lexists(folder / entry.name)


def segments_among(
    folder: StoragePath, entries: Iterable[FolderEntry], known: Mapping[str, Segment] | None = None
) -> list[Segment]:
    """Return the segments among the entries of a folder, by base offset. known: as for `PartitionLog.segments`."""
    storage, known = storage_of(folder), known or {}
    found = {entry.name: entry for entry in segment_entries(folder, entries)}
    last = max(found, default=None)
    segments = []
    for name in sorted(found):
        segment, is_active = known.get(name), name == last
        if segment is None or segment.is_active != is_active or isinstance(segment.path, RemotePath):
            path, is_regular = storage.path_of(folder, found[name]), found[name].is_file()
            listed = Segment(path, is_active, is_regular=is_regular)
            segment = segment if segment == listed else listed
        segments.append(segment)
    return segments


def ensure_regular(segments: Iterable[Segment]) -> None:
    """Raise NotRegularFileError for the first of these segments that is not regular: its records would be missing."""
    for segment in segments:
        segment.ensure_regular()


def partition_of(path: StoragePath) -> TopicPartition | None:
    """Return the partition whose folder a broker would give this name; None if there is none."""
    return partition_of_folder(path.name or path.absolute().name)


def partition_of_folder(name: str) -> TopicPartition | None:
    """Return the partition whose folder a broker would give exactly this name; None if there is none.

    >>> partition_of_folder("orders-7"), partition_of_folder("orders-07")
    (TopicPartition(topic='orders', partition=7), None)
    """
    found = TopicPartition.from_folder_name(name)
    return found if found is not None and str(found) == name and found.partition <= _MAX_PARTITION else None


def by_folder(segments: Iterable[Segment]) -> list[tuple[Segment, ...]]:
    """Group segments by folder. Their order is kept."""
    folders: dict[StoragePath, list[Segment]] = {}
    for segment in segments:
        folders.setdefault(segment.path.parent, []).append(segment)
    return list(map(tuple, folders.values()))


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


def _folder_at(names: Sequence[str], path: StoragePath) -> StoragePath:
    """Return the folder of these names on the storage of `path`."""
    text = "/".join(names)
    if isinstance(path, RemotePath):
        return RemotePath(path.storage, text)
    return Path(text or ("/" if path.is_absolute() else "."))


def _is_like(name: str, pattern: str) -> bool:
    """Whether a name matches a pattern. As in a shell, `*` matches no name that begins with a dot."""
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _order(file: Segment) -> tuple[str, int, str, int, str]:
    """Sort by topic, partition and base offset. Segments without partition come first, folder by folder."""
    if file.topic_partition is None:
        return "", -1, str(file.path.parent), file.base_offset, ""
    return *file.topic_partition, "", file.base_offset, str(file)
