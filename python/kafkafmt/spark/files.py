"""The segments that a user means by the paths he gives to `load()`, on any file system, and opening them.

A path is a log directory, the folder of a partition, a segment file, or a pattern for any of these; on the local
file system or as a URI of another: see `kafkafmt.spark.locations`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.checkpoints import (
    LOG_START_OFFSET_CHECKPOINT,
    LogStartOffsets,
    parse_log_start_offsets,
)
from kafkafmt.log.directory import partition_of_folder
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    is_segment_file_name,
)
from kafkafmt.records import FileRecords
from kafkafmt.remote import RemoteRecords, file_system_errors, told
from kafkafmt.spark.locations import Root, Roots
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSelector, FileSystem

SIDECAR_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)

_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
# What a broker calls the folder of a partition that it deletes, moves or does not know.
_LEFT_BEHIND = re.compile(r".*-(delete|future|stray)")
_LISTED_AT_ONCE = 16
# What is read of an index first, and how many bytes hold a whole entry wherever they begin.
_INDEX_BYTES, _ENTRY_IN_ANY = 64 * 1024, 2 * 12
# Each is looked for on its own.
_MOST_ALTERNATIVES = 10_000


@dataclass(frozen=True)
class SegmentFile:
    """A segment as it was listed: nothing of it has been read. Pickles with what it takes to open it.

    `uri` is what to call it: an absolute local path, or a URI without credentials and query; `path` is where it
    is in `filesystem`, which is None for the local one. `modification_time_ms` is since the epoch, None where the
    file system does not tell; `sidecar_sizes` are in bytes, by suffix (`.index`), of the files beside it. `is_last`:
    none in its folder has a higher base offset, so that its end may be missing. `is_named`: a path or a pattern named
    it, or the folder of its partition, so that it was not just found in a log directory.
    """

    uri: str
    path: str
    topic_partition: TopicPartition | None
    base_offset: int
    size_in_bytes: int
    modification_time_ms: int | None
    sidecar_sizes: Mapping[str, int] = field(hash=False)
    is_last: bool
    filesystem: FileSystem | None = field(default=None, repr=False, compare=False)
    is_named: bool = field(default=True, compare=False)


def list_segments(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    options: Mapping[str, str] | None = None,
    *,
    may_be_empty: bool = False,
) -> list[SegmentFile]:
    """The segments under `paths`, each once; sorted by topic, partition and base offset.

    Of a folder those in it and those in the folders of partitions in it; other folders and files are left alone.
    In a pattern `*`, `[0-9]` and `{a,b}` stand for what they do in a shell, within one name, and `?` in a local
    path alone, since in a URI the query begins there; it passes over what is no segment and no folder of a
    partition or of a log directory. A path that exists is no pattern.

    may_be_empty: a folder without segments is none to complain of, nor is a pattern that nothing matches.

    Raises FileNotFoundError where nothing is there or no segment under it; ValueError for a file that is no
    segment, a scheme that no file system has, and options that its file system does not; OSError of the latter.
    """
    roots = Roots(options or {})
    listings: dict[Root, _Listing] = {}
    found: dict[str, SegmentFile] = {}
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        root, within = roots.locate(os.fspath(path))
        for file in listings.setdefault(root, _Listing(root)).find(within, may_be_empty=may_be_empty):
            found.setdefault(file.uri, file)
    return sorted(found.values(), key=_order)


def open_records(
    file: SegmentFile,
    start: int = 0,
    end: int | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> FileRecords | RemoteRecords:
    """The records of a segment from byte `start`, a batch's beginning, to `end`; a context manager.

    A batch that `end` cuts off is left out, as everywhere: where `end` is a boundary, that means damage.
    Raises FileNotFoundError where the file is deleted by now.
    """
    if file.filesystem is None:
        return FileRecords(
            file.path,
            start,
            end,
            topic_partition=file.topic_partition,
            max_decompressed_bytes=max_decompressed_bytes,
        )
    return RemoteRecords(
        file.filesystem,
        file.path,
        start,
        end,
        uri=file.uri,
        topic_partition=file.topic_partition,
        max_decompressed_bytes=max_decompressed_bytes,
    )


def read_sidecar(file: SegmentFile, suffix: str) -> bytes | None:
    """The bytes of the file with `suffix` (`.index`) beside a segment; empty where none was listed.

    None where it is not as it was listed: deleted since, or of another size. So what is missing is not taken for
    nothing to tell. Raises OSError.
    """
    data = _read_beside(file, suffix, lambda sidecar: bytes(sidecar.read()))
    return data if data is not None and len(data) == file.sidecar_sizes.get(suffix, 0) else None


def read_index(file: SegmentFile, suffix: str) -> bytes:
    """What is there of an index, without most of the zeros that a broker fills that of an active segment up with."""
    return _read_beside(file, suffix, _read_to_zeros) or b""


def read_last_entry(file: SegmentFile, suffix: str, size_in_bytes: int) -> bytes:
    """The last entry of an index, whose entries have that size; empty if there is none."""
    size = file.sidecar_sizes.get(suffix, 0) // size_in_bytes * size_in_bytes
    if not size:
        return b""

    def read(index: NativeFile) -> bytes:
        index.seek(size - size_in_bytes)
        return bytes(index.read(size_in_bytes))

    return _read_beside(file, suffix, read) or b""


def read_log_start_offsets(files: Sequence[SegmentFile]) -> list[int]:
    """The log start offsets of the partitions that segments are of, by the names of their folders; 0 if none is told.

    A file `log-start-offset-checkpoint` is read once, in whatever file system it is. Raises CheckpointError for one
    that is malformed, and OSError.
    """
    local = LogStartOffsets()
    directories = {_directory_of(file): file for file in files if file.filesystem is not None}
    with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
        found = dict(zip(directories, threads.map(_remote_log_starts, directories.values()), strict=True))

    def start_of(file: SegmentFile) -> int:
        folder = file.path.rpartition("/")[0]
        if file.filesystem is None:
            return local.of(Path(folder))
        topic_partition = TopicPartition.from_folder_name(folder.rpartition("/")[2])
        return 0 if topic_partition is None else found[_directory_of(file)].get(topic_partition, 0)

    return [start_of(file) for file in files]


def _directory_of(file: SegmentFile) -> str:
    """The URI of the log directory."""
    return posixpath.dirname(posixpath.dirname(file.uri))


def _remote_log_starts(file: SegmentFile) -> Mapping[TopicPartition, int]:
    assert file.filesystem is not None
    path = f"{posixpath.dirname(posixpath.dirname(file.path))}/{LOG_START_OFFSET_CHECKPOINT}"
    name = f"{_directory_of(file)}/{LOG_START_OFFSET_CHECKPOINT}"
    try:
        with file.filesystem.open_input_file(path) as opened:
            return parse_log_start_offsets(bytes(opened.read()), name)
    except FileNotFoundError:
        return {}
    except file_system_errors() as error:
        raise told(error, "cannot be read", name) from error


def _read_beside(file: SegmentFile, suffix: str, read: Callable[[NativeFile], bytes]) -> bytes | None:
    if suffix not in file.sidecar_sizes:
        return b""
    from pyarrow.fs import LocalFileSystem

    filesystem = file.filesystem or LocalFileSystem()
    try:
        with filesystem.open_input_file(file.path.removesuffix(LOG_SUFFIX) + suffix) as sidecar:
            return read(sidecar)
    except FileNotFoundError:
        return None
    except file_system_errors() as error:
        raise told(error, f"its {suffix} cannot be read", file.uri) from error


def _read_to_zeros(index: NativeFile) -> bytes:
    """Up to some bytes behind an entry of zeros, or to the end."""
    data = bytearray()
    size = _INDEX_BYTES
    while True:
        part = index.read(size)
        data += part
        if len(part) < size or not any(data[-_ENTRY_IN_ANY:]):
            return bytes(data)
        size = len(data)


class _Listing:
    """What was listed of a file system, each folder once."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._listed: dict[str, list[FileInfo]] = {}

    def find(self, path: str, *, may_be_empty: bool) -> list[SegmentFile]:
        """The segments at a path, or those that it is a pattern for."""
        from pyarrow.fs import FileType

        info: FileInfo = self._asked(path, path or "/")
        if info.type == FileType.File:
            return [self._file_at(path)]
        if info.type == FileType.Directory:
            found, complaint = self._segments_under(path), "no segments in this folder"
        elif _MAGIC.search(path):
            patterns = list(islice(_alternatives(path), _MOST_ALTERNATIVES + 1))
            if len(patterns) > _MOST_ALTERNATIVES:
                expected = f"expected braces for {_MOST_ALTERNATIVES} patterns at the most"
                raise ValueError(f"{self._root.uri_of(path)}: {expected}")
            found = [file for pattern in patterns for file in self._matching(pattern)]
            complaint = "no segments match"
        else:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", self._root.uri_of(path))
        if not found and not may_be_empty:
            raise FileNotFoundError(errno.ENOENT, complaint, self._root.uri_of(path))
        return found

    def _asked(self, path: str, what: str | FileSelector) -> Any:
        """What the file system tells of `what`, which is at `path` or in it. Raises OSError, in one line."""
        try:
            return self._root.filesystem.get_file_info(what)
        except file_system_errors() as error:
            raise told(error, "cannot be listed", self._root.uri_of(path)) from error

    def _file_at(self, path: str) -> SegmentFile:
        folder, _, name = path.rpartition("/")
        if not is_segment_file_name(name):
            expected = f"expected a name of 20 digits and {LOG_SUFFIX}, a segment's"
            raise ValueError(f"{self._root.uri_of(path)}: {expected}")
        found = (file for file in self._segments_in(folder) if file.path == path)
        file = next(found, None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "deleted while it was listed", self._root.uri_of(path))
        return file

    def _children(self, folder: str) -> list[FileInfo]:
        """What is in a folder, the root being an empty name; nothing where it is gone."""
        from pyarrow.fs import FileSelector

        if folder not in self._listed:
            selector = FileSelector(folder or "/", allow_not_found=True)
            self._listed[folder] = self._asked(folder, selector)
        return self._listed[folder]

    def _subfolders(self, folder: str) -> Iterator[str]:
        for child in self._children(folder):
            if _is_folder(child):
                yield f"{folder}/{child.base_name}"

    def _segments_in(self, folder: str) -> list[SegmentFile]:
        files = {child.base_name: child for child in self._children(folder) if child.is_file}
        names = [name for name in files if is_segment_file_name(name)]
        return [self._segment(folder, name, files, is_last=name == max(names)) for name in names]

    def _segment(
        self, folder: str, name: str, files: Mapping[str, FileInfo], *, is_last: bool
    ) -> SegmentFile:
        path, stem = f"{folder}/{name}", name.removesuffix(LOG_SUFFIX)
        info = files[name]
        return SegmentFile(
            uri=self._root.uri_of(path),
            path=path,
            topic_partition=TopicPartition.from_folder_name(folder.rpartition("/")[2]),
            base_offset=int(stem),
            size_in_bytes=info.size,
            modification_time_ms=None if info.mtime_ns is None else info.mtime_ns // 1_000_000,
            sidecar_sizes={
                suffix: files[stem + suffix].size for suffix in SIDECAR_SUFFIXES if stem + suffix in files
            },
            is_last=is_last,
            filesystem=None if self._root.is_local else self._root.filesystem,
        )

    def _list(self, folders: Sequence[str]) -> None:
        """List folders side by side, since each is a round trip or more."""
        with ThreadPoolExecutor(_LISTED_AT_ONCE) as threads:
            for _ in threads.map(self._children, folders):
                pass

    def _segments_in_all(self, folders: Sequence[str]) -> list[SegmentFile]:
        self._list(folders)
        return [file for folder in folders for file in self._segments_in(folder)]

    def _segments_under(self, folder: str) -> list[SegmentFile]:
        return self._segments_in(folder) + self._found_in(self._partitions_in(folder))

    def _found_in(self, partitions: Sequence[str]) -> list[SegmentFile]:
        """The segments of partitions that nobody named, but the log directory that they are in."""
        return [replace(file, is_named=False) for file in self._segments_in_all(partitions)]

    def _partitions_in(self, folder: str) -> list[str]:
        return [path for path in self._subfolders(folder) if _partition_at(path)]

    def _matching(self, pattern: str) -> list[SegmentFile]:
        """The segments that a pattern names, and those of the folders that it does."""
        *above, last = pattern.split("/")
        fixed = next((number for number, name in enumerate(above) if _MAGIC.search(name)), len(above))
        folders = ["/".join(above[:fixed])]
        for name in above[fixed:]:
            folders = self._subfolders_like(folders, name)
        files = self._segments_in_all([folder for folder in folders if not _LEFT_BEHIND.fullmatch(folder)])
        matched = self._subfolders_like(folders, last)
        partitions = [path for path in matched if _partition_at(path)]
        directories = [path for path in matched if not _partition_at(path)]
        self._list(directories)
        in_directories = [partition for path in directories for partition in self._partitions_in(path)]
        named = [file for file in files if _is_like(file.path, last)] + self._segments_in_all(partitions)
        return named + self._found_in(in_directories)

    def _subfolders_like(self, folders: Sequence[str], pattern: str) -> list[str]:
        self._list(folders)
        return [path for folder in folders for path in self._subfolders(folder) if _is_like(path, pattern)]


def _alternatives(pattern: str) -> Iterator[str]:
    """The patterns that one with braces stands for.

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


def _is_folder(info: FileInfo) -> bool:
    from pyarrow.fs import FileType

    return bool(info.type == FileType.Directory)


def _is_like(path: str, pattern: str) -> bool:
    """As in a shell, a name that begins with a dot is not what `*` stands for."""
    name = path.rpartition("/")[2]
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


def _partition_at(path: str) -> TopicPartition | None:
    return partition_of_folder(path.rpartition("/")[2])


def _order(file: SegmentFile) -> tuple[str, int, str, int, str]:
    """By topic, partition and base offset; segments of no partition first, folder by folder."""
    if file.topic_partition is None:
        return "", -1, file.uri.rpartition("/")[0], file.base_offset, ""
    return *file.topic_partition, "", file.base_offset, file.uri
