"""Folders of a `pyarrow.fs.FileSystem`, or of a `ReadableFileSystem`, which is read-only.

Each request costs a round trip, and perhaps money. So the paths of a listing keep the file's status and the names of
the files beside it. A folder counts as unchanged until the next multiple of 10 seconds of the clock.
"""

from __future__ import annotations

import errno
import os
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol

from kafkafmt._util.sizes import MIB
from kafkafmt.memory.division import Part
from kafkafmt.records.remote import (
    ReadAhead,
    RemoteFile,
    RemoteRecords,
    file_system_error,
    file_system_errors,
)
from kafkafmt.records.retries import NO_RETRIES, Retries
from kafkafmt.storage.upload import OBJECT_STORES, Upload

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem
    from typing_extensions import Buffer

    from kafkafmt.storage.base import FolderEntry
    from kafkafmt.types import TopicPartition

# A listing of a folder counts as current until the next multiple of this time.
LISTED_FOR_NS = 10_000_000_000
# A file that is written in chunks is kept in memory up to this size, until it is uploaded.
_COPIED_BYTES = 8 * MIB
_SPOOLED_BYTES = 8 * MIB
# The part of a memory plan for what is read ahead from a remote storage.
READ_AHEAD = Part("read ahead", MIB, one_in=8, most_bytes=32 * MIB)


class ReadableFile(Protocol):
    """An open file of a `ReadableFileSystem`: the methods of `pyarrow.NativeFile` that readers use."""

    @property
    def closed(self) -> bool: ...

    def size(self) -> int: ...

    def seek(self, position: int, /) -> int: ...

    def read(self, size: int = -1, /) -> bytes: ...

    def readinto(self, view: memoryview, /) -> int: ...

    def close(self) -> None: ...

    def __enter__(self) -> ReadableFile: ...

    def __exit__(self, *error: object) -> None: ...


class ReadableFileSystem(Protocol):
    """A read-only file system: the methods of `pyarrow.fs.FileSystem` that readers use. It can be pickled.

    Its errors are OSError. Paths have no slash at the end; the root is its base, or "".
    """

    @property
    def type_name(self) -> str: ...

    def get_file_info(self, what: Any, /) -> Any:
        """Return the `FileInfo` of a path, or the list of those in the folder of a `FileSelector`."""

    def open_input_file(self, path: str, /) -> ReadableFile: ...


@dataclass(frozen=True)
class RemoteStatus:
    """The status of a remote file or folder; a `FileStatus`."""

    st_size: int = 0
    st_mtime_ns: int = 0
    is_folder: bool = False
    st_ino: int = 0

    @classmethod
    def of(cls, info: FileInfo) -> RemoteStatus | None:
        """Return the status; None if there is no such file or folder."""
        from pyarrow.fs import FileType

        if info.type == FileType.Directory:
            return cls(is_folder=True)
        return cls(info.size, info.mtime_ns or 0) if info.type == FileType.File else None


@dataclass(frozen=True)
class RemoteEntry:
    """An entry of a listed folder; a `FolderEntry`. siblings: the status of all entries, by name."""

    name: str
    status: RemoteStatus
    siblings: Mapping[str, RemoteStatus]

    def is_file(self) -> bool:
        return not self.status.is_folder

    def is_dir(self) -> bool:
        return self.status.is_folder

    def inode(self) -> int:
        return self.status.st_ino


@dataclass(frozen=True, eq=False)
class RemoteStorage:
    """A remote file system. `uri` is the URI of `base`, the folder that contains all paths.

    settings: the settings of the file system, by their option names. They may contain secrets.
    read_ahead: the memory for what is read ahead from all files.
    retries: how often and for how long failed requests are repeated.
    """

    filesystem: FileSystem | ReadableFileSystem
    uri: str
    base: str = ""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    read_ahead: ReadAhead = field(default_factory=ReadAhead, repr=False)
    retries: Retries = NO_RETRIES

    @property
    def is_writable(self) -> bool:
        """Whether files can be written: not in a view."""
        return hasattr(self.filesystem, "open_output_stream")

    def log_start_offset(self, folder: RemotePath) -> int:
        """Return the offset below which a view says that the records in a partition's folder are deleted; else 0."""
        found = getattr(self.filesystem, "log_start_offset", None)
        return 0 if found is None else int(found(folder.path.strip("/")))

    def uri_of(self, path: str) -> str:
        """Return the URI of a file or folder, without credentials and query."""
        return self.uri + path[len(self.base) :]

    def entries(self, folder: RemotePath) -> AbstractContextManager[Iterator[FolderEntry]]:
        from pyarrow.fs import FileSelector

        found: dict[str, RemoteStatus] = {}
        for info in self.ask(folder.path, FileSelector(folder.path or "/")):
            status = RemoteStatus.of(info)
            if status is not None:
                found[info.base_name] = status
        return nullcontext(iter([RemoteEntry(name, status, found) for name, status in found.items()]))

    def walk(self, folder: RemotePath) -> Iterator[tuple[str, RemoteStatus]]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(folder.path or "/", recursive=True, allow_not_found=True)
        for info in self.ask(folder.path, selector):
            status = RemoteStatus.of(info)
            if status is not None and not status.is_folder:
                yield info.path.strip("/").removeprefix(folder.path.strip("/")).lstrip("/"), status

    def path_of(self, folder: RemotePath, entry: FolderEntry) -> RemotePath:
        assert isinstance(entry, RemoteEntry)
        return RemotePath(self, f"{folder.path}/{entry.name}", entry.status, entry.siblings)

    def open(self, path: RemotePath) -> RemoteFile:
        if path.is_known_missing:
            path.raise_missing()
        return RemoteFile(self.filesystem, path.path, uri=path.uri, retries=self.retries)

    def open_records(
        self,
        path: RemotePath,
        start: int,
        end: int | None,
        *,
        topic_partition: TopicPartition | None,
        max_decompressed_bytes: int,
    ) -> RemoteRecords:
        return RemoteRecords(
            self.filesystem,
            path.path,
            start,
            end,
            uri=path.uri,
            topic_partition=topic_partition,
            max_decompressed_bytes=max_decompressed_bytes,
            read_ahead=self.read_ahead,
            retries=self.retries,
        )

    def stamp(self, path: RemotePath) -> tuple[int, ...]:
        return (self.changed_ns(path),)

    def write(self, path: RemotePath, chunks: Iterable[Buffer]) -> None:
        """Write a whole file. It is uploaded after the last chunk, and kept on the local disk if it is large."""
        self._write(path, chunks)

    def write_new(self, path: RemotePath, chunks: Iterable[Buffer]) -> None:
        self._writable(path)
        if self.status(path.path) is not None:
            path.raise_exists()
        self._write(path, chunks, unless=path)

    def _write(self, path: RemotePath, chunks: Iterable[Buffer], unless: RemotePath | None = None) -> None:
        self._writable(path)
        with SpooledTemporaryFile(_SPOOLED_BYTES) as file:
            for chunk in chunks:
                file.write(chunk)
            self._upload(path, file, file.tell(), unless)

    def put(self, source: Path, path: RemotePath) -> None:
        self.upload(source, path)
        source.unlink()

    def put_unless(self, source: Path, path: RemotePath, there: RemotePath) -> None:
        """Move a complete local file here as `put` does. Raises FileExistsError if the file `there` is, and has bytes.

        It is looked up immediately before the file is published, also if this process was suspended meanwhile. If
        `there` is `path`, a file with the same bytes is no error.
        """
        with source.open("rb") as file:
            self._upload(path, file, os.fstat(file.fileno()).st_size, there)
        source.unlink()

    def upload(self, source: Path, path: RemotePath, ensure: Callable[[], None] | None = None) -> None:
        """Copy a complete local file here, as `put` does, but keep the source. ensure: see `Upload`."""
        with source.open("rb") as file:
            self._upload(path, file, os.fstat(file.fileno()).st_size, None, ensure)

    def copy(self, source: RemotePath, path: RemotePath) -> None:
        """Copy a file within the storage. On an object store it appears whole, and does not pass this machine."""
        filesystem = self._writable(path)
        if filesystem.type_name not in OBJECT_STORES:
            with self.open(source) as file:
                self.write(path, iter(lambda: file.read(_COPIED_BYTES), b""))
            return
        try:
            request = partial(filesystem.copy_file, source.path, path.path)
            self.retries.run(request, "cannot be copied", source.uri)
        except file_system_errors() as error:
            raise file_system_error(error, "cannot be copied", source.uri) from error

    def _upload(
        self,
        path: RemotePath,
        source: IO[bytes],
        size: int,
        unless: RemotePath | None = None,
        ensure: Callable[[], None] | None = None,
    ) -> None:
        condition = None if unless is None else unless.path
        upload = Upload(self._writable(path), path.path, path.uri, self.retries, condition, ensure)
        # In a thread, so that an interrupt does not end the upload in the middle: its stream would publish its part.
        with ThreadPoolExecutor(1) as thread:
            try:
                thread.submit(upload.run, source, size).result()
            except FileExistsError:
                if unless is None:
                    raise
                unless.raise_exists()

    def delete(self, path: RemotePath) -> None:
        self._delete(self._writable(path).delete_file, path)

    def delete_folder(self, folder: RemotePath) -> None:
        self._delete(self._writable(folder).delete_dir, folder)

    def _delete(self, delete: Callable[[str], object], path: RemotePath) -> None:
        try:
            self.retries.run(partial(delete, path.path), "cannot be deleted", path.uri)
        except FileNotFoundError:
            return
        except file_system_errors() as error:
            raise file_system_error(error, "cannot be deleted", path.uri) from error

    def _writable(self, path: RemotePath) -> FileSystem:
        """Return the file system. Raises OSError (EROFS) if it is read-only."""
        if not self.is_writable:
            raise OSError(
                errno.EROFS, "cannot be written: expected a store, found a read-only view", path.uri
            )
        return self.filesystem

    def changed_ns(self, folder: RemotePath) -> int:
        # The time is in the past, so that a caller never takes the listing for one that a change may still follow.
        return (time.time_ns() // LISTED_FOR_NS - 1) * LISTED_FOR_NS

    def status(self, path: str) -> RemoteStatus | None:
        """Return the status of a path; None if there is no file or folder. Raises OSError."""
        return RemoteStatus.of(self.ask(path, path or "/"))

    def ask(self, path: str, what: Any) -> Any:
        """Return `get_file_info(what)` of the file system. Raises OSError, with the URI of `path` and in one line."""
        request = partial(self.filesystem.get_file_info, what)
        try:
            return self.retries.run(request, "cannot be listed", self.uri_of(path))
        except file_system_errors() as error:
            raise file_system_error(error, "cannot be listed", self.uri_of(path)) from error


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of a `RemoteStorage`, with the methods of `pathlib.Path` that readers of logs use.

    Two paths are equal if URI and listed status are equal: the path of a replaced file is another one. `status` and
    `siblings` are those of the listing; None if the path is not from a listing.
    """

    storage: RemoteStorage = field(repr=False, compare=False)
    path: str = field(compare=False)
    status: RemoteStatus | None = field(default=None, repr=False, hash=False)
    siblings: Mapping[str, RemoteStatus] | None = field(default=None, repr=False, compare=False)
    uri: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", self.storage.uri_of(self.path))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path; of `siblings` only those with the same stem."""
        siblings = self.siblings
        if siblings is not None:
            siblings = {name: one for name, one in siblings.items() if name.startswith(f"{self.stem}.")}
        return RemotePath, (self.storage, self.path, self.status, siblings)

    def __str__(self) -> str:
        return self.uri

    def __lt__(self, other: RemotePath) -> bool:
        return self.uri < other.uri

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.storage, f"{self.path}/{name}")

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return posixpath.splitext(self.name)[0]

    @property
    def parent(self) -> RemotePath:
        above = self.path.rpartition("/")[0]
        return RemotePath(self.storage, above if len(above) >= len(self.storage.base) else self.path)

    def with_name(self, name: str) -> RemotePath:
        siblings = self.siblings
        status = None if siblings is None else siblings.get(name)
        return RemotePath(self.storage, f"{self.path.rpartition('/')[0]}/{name}", status, siblings)

    def with_suffix(self, suffix: str) -> RemotePath:
        return self.with_name(self.stem + suffix)

    def looked_up(self) -> RemotePath:
        """Return the same path with its present status, which is requested now. Raises OSError."""
        return RemotePath(self.storage, self.path, self.storage.status(self.path), {})

    def unlisted(self) -> RemotePath:
        """Return the same path without the listed status: it requests the status when needed."""
        return RemotePath(self.storage, self.path)

    def absolute(self) -> RemotePath:
        return self

    def resolve(self) -> RemotePath:
        return self

    def is_symlink(self) -> bool:
        return False

    @property
    def is_known_missing(self) -> bool:
        """Whether this path is from a listing that has no such file."""
        return self.status is None and self.siblings is not None

    def stat(self) -> RemoteStatus:
        """Return the listed status, or request it. Raises FileNotFoundError, and OSError if the request fails."""
        found = self._found()
        if found is None:
            self.raise_missing()
        return found

    def exists(self) -> bool:
        return self._found() is not None

    def is_dir(self) -> bool:
        found = self._found()
        return found is not None and found.is_folder

    def is_file(self) -> bool:
        found = self._found()
        return found is not None and not found.is_folder

    def raise_missing(self) -> NoReturn:
        """Raise FileNotFoundError for this path."""
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", self.uri)

    def raise_exists(self) -> NoReturn:
        """Raise FileExistsError for this path."""
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri) from None

    def _found(self) -> RemoteStatus | None:
        if self.status is not None or self.siblings is not None:
            return self.status
        return self.storage.status(self.path)
