"""The segments that a user means by the paths he gives to `load()`, on any file system, and opening them.

A path is a log directory, the folder of a partition, a segment file, or a pattern for any of these; on the local
file system or as a URI of one that `pyarrow.fs` reaches: `s3://` (or `s3a://`), `gs://`, `hdfs://`, `viewfs://`,
`abfs://`, `file://`. A URI's path is taken as it stands, without percent-encoding.

What a file system has to be told goes in the query of the URI, as `pyarrow.fs.FileSystem.from_uri` takes it, or
in options of the same names, which hold for every URI that does not say otherwise:

    s3://bucket/logs?region=eu-west-1
    s3://bucket/logs?endpoint_override=minio:9000&scheme=http

Credentials are those of the environment, of `~/.aws`, of the machine's role, or the options `access_key` and
`secret_key`; S3 URIs take them too, percent-encoded, as `s3://key:secret@bucket/logs`. They stay in the file
system's object: no `SegmentFile` shows them, and no error.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
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
from kafkafmt.remote import RemoteRecords
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileInfo, FileSystem

SIDECAR_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)
# What the file systems may have to be told, of what `pyarrow.fs.FileSystem.from_uri` takes, that concerns reading.
FILE_SYSTEM_OPTIONS = (
    "region",
    "scheme",
    "endpoint_override",
    "access_key",
    "secret_key",
    "project_id",
    "retry_limit_seconds",
    "user",
    "kerb_ticket",
)

_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/?]*))?(?P<path>/[^?]*)?(?:\?(?P<query>.*))?"
)
_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_ALIASES = {"s3a": "s3", "s3n": "s3"}
_CREDENTIALS = re.compile(r"//[^@/:]*:[^@]*@")  # a secret may have a slash that should have been encoded
_MAGIC = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
# What a broker calls the folder of a partition that it deletes, moves or does not know.
_LEFT_BEHIND = re.compile(r".*-(delete|future|stray)")
_LISTED_AT_ONCE = 16
# What is read of an index first, and how many bytes hold a whole entry wherever they begin.
_INDEX_BYTES, _ENTRY_IN_ANY = 64 * 1024, 2 * 12


@dataclass(frozen=True)
class SegmentFile:
    """A segment as it was listed: nothing of it has been read. Pickles with what it takes to open it.

    `uri` is what to call it: an absolute local path, or a URI without credentials and query; `path` is where it
    is in `filesystem`, which is None for the local one. `modification_time_ms` is since the epoch, None where the
    file system does not tell; `sidecar_sizes` are in bytes, by suffix (`.index`), of the files beside it.
    """

    uri: str
    path: str
    topic_partition: TopicPartition | None
    base_offset: int
    size_in_bytes: int
    modification_time_ms: int | None
    sidecar_sizes: Mapping[str, int] = field(hash=False)
    filesystem: FileSystem | None = field(default=None, repr=False, compare=False)


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
    stores: dict[tuple[str, str], _Store] = {}
    found: dict[str, SegmentFile] = {}
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        store, within = _locate(os.fspath(path), options or {}, stores)
        for file in store.find(within, may_be_empty=may_be_empty):
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


def read_sidecar(file: SegmentFile, suffix: str) -> bytes:
    """The bytes of the file with `suffix` (`.index`) beside a segment; none where it was not there or is deleted."""
    return _read_sidecar(file, suffix, lambda sidecar: bytes(sidecar.read()))


def read_index(file: SegmentFile, suffix: str) -> bytes:
    """As `read_sidecar`, without most of the zeros that a broker fills the index of an active segment up with."""
    return _read_sidecar(file, suffix, _read_to_zeros)


def _read_sidecar(file: SegmentFile, suffix: str, read: Callable[[NativeFile], bytes]) -> bytes:
    if suffix not in file.sidecar_sizes:
        return b""
    from pyarrow.fs import LocalFileSystem

    filesystem = file.filesystem or LocalFileSystem()
    try:
        with filesystem.open_input_file(file.path.removesuffix(LOG_SUFFIX) + suffix) as sidecar:
            return read(sidecar)
    except FileNotFoundError:
        return b""


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


class _Store:
    """A file system that a path names, and what was listed of it, each folder once.

    `root` is what stands in a URI for `base`, the folder that all paths are in; both are empty for local paths.
    """

    def __init__(self, filesystem: FileSystem, root: str = "", base: str = "") -> None:
        self.filesystem, self.root, self.base = filesystem, root, base
        self._listed: dict[str, list[FileInfo]] = {}

    def find(self, path: str, *, may_be_empty: bool) -> list[SegmentFile]:
        """The segments at a path, or those that it is a pattern for."""
        from pyarrow.fs import FileType

        info = self.filesystem.get_file_info(path or "/")
        if info.type == FileType.File:
            return [self._file_at(path)]
        if info.type == FileType.Directory:
            found, complaint = self._segments_under(path), "no segments in this folder"
        elif _MAGIC.search(path):
            found = [file for pattern in _alternatives(path) for file in self._matching(pattern)]
            complaint = "no segments match"
        else:
            raise FileNotFoundError(errno.ENOENT, "no such file or folder", self._uri(path))
        if not found and not may_be_empty:
            raise FileNotFoundError(errno.ENOENT, complaint, self._uri(path))
        return found

    def _uri(self, path: str) -> str:
        return self.root + path[len(self.base) :]

    def _file_at(self, path: str) -> SegmentFile:
        folder, _, name = path.rpartition("/")
        if not is_segment_file_name(name):
            expected = f"expected a name of 20 digits and {LOG_SUFFIX}, a segment's"
            raise ValueError(f"{self._uri(path)}: {expected}")
        found = (file for file in self._segments_in(folder) if file.path == path)
        file = next(found, None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "deleted while it was listed", self._uri(path))
        return file

    def _children(self, folder: str) -> list[FileInfo]:
        """What is in a folder, the root being an empty name; nothing where it is gone."""
        from pyarrow.fs import FileSelector

        if folder not in self._listed:
            selector = FileSelector(folder or "/", allow_not_found=True)
            self._listed[folder] = self.filesystem.get_file_info(selector)
        return self._listed[folder]

    def _subfolders(self, folder: str) -> Iterator[str]:
        for child in self._children(folder):
            if _is_folder(child):
                yield f"{folder}/{child.base_name}"

    def _segments_in(self, folder: str) -> list[SegmentFile]:
        files = {child.base_name: child for child in self._children(folder) if child.is_file}
        return [self._segment(folder, name, files) for name in files if is_segment_file_name(name)]

    def _segment(self, folder: str, name: str, files: Mapping[str, FileInfo]) -> SegmentFile:
        path, stem = f"{folder}/{name}", name.removesuffix(LOG_SUFFIX)
        info = files[name]
        return SegmentFile(
            uri=self._uri(path),
            path=path,
            topic_partition=TopicPartition.from_folder_name(folder.rpartition("/")[2]),
            base_offset=int(stem),
            size_in_bytes=info.size,
            modification_time_ms=None if info.mtime_ns is None else info.mtime_ns // 1_000_000,
            sidecar_sizes={
                suffix: files[stem + suffix].size for suffix in SIDECAR_SUFFIXES if stem + suffix in files
            },
            filesystem=self.filesystem if self.root else None,
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
        return self._segments_in(folder) + self._segments_in_all(self._partitions_in(folder))

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
        for path in directories:
            partitions += self._partitions_in(path)
        return [file for file in files if _is_like(file.path, last)] + self._segments_in_all(partitions)

    def _subfolders_like(self, folders: Sequence[str], pattern: str) -> list[str]:
        self._list(folders)
        return [path for folder in folders for path in self._subfolders(folder) if _is_like(path, pattern)]


def _locate(
    path: str, options: Mapping[str, str], stores: dict[tuple[str, str], _Store]
) -> tuple[_Store, str]:
    """The file system that a user's path is on, out of `stores` where it is known, and the path in it."""
    match = _URI.fullmatch(path)
    if match is None or (match["authority"] is None and match["scheme"].lower() != "file"):
        return _local(stores), str(Path(path).absolute()).rstrip("/")
    scheme = _ALIASES.get(match["scheme"].lower(), match["scheme"].lower())
    authority, within = match["authority"] or "", match["path"] or ""
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise ValueError(f"{path}: expected file:///path, found the host {authority}")
        return _local(stores), str(Path(within or "/")).rstrip("/")
    if scheme not in _SCHEMES:
        known = ", ".join(f"{name}://" for name in ("file", *_SCHEMES))
        raise ValueError(
            f"{_without_credentials(path)}: no file system has that scheme; expected one of {known}"
        )
    if scheme == "s3" and ":" in authority and "@" not in authority:
        # Not shown: what follows the colon is the beginning of a secret.
        raise ValueError("s3://...: expected a bucket; a secret in a URI is percent-encoded, its / as %2F")
    settings = {**options, **dict(parse_qsl(match["query"] or "", keep_blank_values=True))}
    key, secret = settings.pop("access_key", None), settings.pop("secret_key", None)
    if key is not None and scheme == "s3" and "@" not in authority:
        authority = f"{quote(key, safe='')}:{quote(secret or '', safe='')}@{authority}"
    location = f"{scheme}://{authority}", urlencode(settings)
    if location not in stores:
        stores[location] = _opened(*location)
    store = stores[location]
    return store, "/".join([store.base, *(name for name in within.split("/") if name)])


def _local(stores: dict[tuple[str, str], _Store]) -> _Store:
    from pyarrow.fs import LocalFileSystem

    return stores.setdefault(("", ""), _Store(LocalFileSystem()))


def _opened(root: str, query: str) -> _Store:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    shown = _without_credentials(root)
    try:
        filesystem, base = FileSystem.from_uri(f"{root}/?{query}" if query else f"{root}/")
    except pa.ArrowInvalid as error:
        raise ValueError(f"{shown}: {_without_credentials(str(error))}") from None
    return _Store(filesystem, shown, base.rstrip("/"))


def _without_credentials(text: str) -> str:
    """A URI, or a message with one in it, without `key:secret@`."""
    return _CREDENTIALS.sub("//", text)


def without_secrets(path: str) -> str:
    """A path as a user gave it, fit to be shown: of a URI without credentials and query.

    >>> without_secrets("s3://key:secret@bucket/logs?region=eu-west-1")
    's3://bucket/logs'
    """
    match = _URI.fullmatch(path)
    if match is None or match["authority"] is None:
        return path
    return _without_credentials(path).partition("?")[0]


def _alternatives(pattern: str) -> list[str]:
    """The patterns that one with braces stands for.

    >>> _alternatives("{a,b}-{0,1}")
    ['a-0', 'a-1', 'b-0', 'b-1']
    """
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [one for choice in match[1].split(",") for one in _alternatives(before + choice + after)]


def _is_folder(info: FileInfo) -> bool:
    from pyarrow.fs import FileType

    return bool(info.type == FileType.Directory)


def _is_like(path: str, pattern: str) -> bool:
    return fnmatchcase(path.rpartition("/")[2], pattern)


def _partition_at(path: str) -> TopicPartition | None:
    return partition_of_folder(path.rpartition("/")[2])


def _order(file: SegmentFile) -> tuple[str, int, str, int, str]:
    """By topic, partition and base offset; segments of no partition first, folder by folder."""
    if file.topic_partition is None:
        return "", -1, file.uri.rpartition("/")[0], file.base_offset, ""
    return *file.topic_partition, "", file.base_offset, file.uri
