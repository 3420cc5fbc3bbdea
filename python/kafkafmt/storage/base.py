"""The interface of a storage: list folders, read files by ranges, write whole files, delete.

A path is a `pathlib.Path` for local files and a `RemotePath` for remote ones, which has the methods of `Path` that
readers of logs use. `storage_of` returns the storage of a path. `storage_path` converts a user's path or URI.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from kafkafmt.records.file import FileRecords
    from kafkafmt.records.remote import RemoteRecords
    from kafkafmt.types import TopicPartition

_Path = TypeVar("_Path")


class FileStatus(Protocol):
    """The status of a file: a part of `os.stat_result`."""

    @property
    def st_size(self) -> int: ...

    @property
    def st_mtime_ns(self) -> int: ...

    @property
    def st_ino(self) -> int: ...


def stamp_of(found: FileStatus) -> tuple[int, ...]:
    """Return a value that differs if the file has changed."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def is_temporary_name(name: str) -> bool:
    """Whether a file of this name is being written, or was left by a writer that was killed: `.<name>.<token>.tmp`.

    Listings leave such files out. If no writer is at work, they may be deleted.

    >>> is_temporary_name(".00000000000000000000.log.1f3a2b4c.tmp")
    True
    >>> is_temporary_name("00000000000000000000.log")
    False
    """
    return name.startswith(".") and name.endswith(".tmp")


class FolderEntry(Protocol):
    """A file or a folder in a folder: a part of `os.DirEntry`."""

    @property
    def name(self) -> str: ...

    def is_file(self) -> bool: ...

    def is_dir(self) -> bool: ...

    def inode(self) -> int: ...


class OpenFile(Protocol):
    """An open file. `read` begins at its start, or at the position of the last `seek`."""

    def read(self, size: int = -1, /) -> bytes: ...

    def seek(self, position: int, /) -> int: ...


class Storage(Protocol[_Path]):
    """A storage of logs. Its errors are OSError with a message in one line, and with the path or URI as `filename`."""

    def entries(self, folder: _Path) -> AbstractContextManager[Iterator[FolderEntry]]:
        """List a folder, in no defined order. Raises FileNotFoundError or NotADirectoryError if it is not a folder."""

    def walk(self, folder: _Path) -> Iterator[tuple[str, FileStatus]]:
        """Yield the files below a folder: their paths relative to it, with `/`, and status. The order is not defined.

        A missing folder has no files. Links to folders are not followed. An object store lists 1,000 files a request.
        """

    def path_of(self, folder: _Path, entry: FolderEntry) -> _Path:
        """Return the path of an entry of a folder. A remote path keeps the status from the listing."""

    def open(self, path: _Path) -> AbstractContextManager[OpenFile]:
        """Open a file to read bytes."""

    def open_records(
        self,
        path: _Path,
        start: int,
        end: int | None,
        *,
        topic_partition: TopicPartition | None,
        max_decompressed_bytes: int,
    ) -> FileRecords | RemoteRecords:
        """Open the records of a file from byte `start` to `end`; None is the end of the file."""

    def stamp(self, path: _Path) -> tuple[int, ...]:
        """Return a value that differs if a local file has changed; for a remote file it differs every 10 seconds.

        Raises FileNotFoundError if a local file is missing.
        """

    def changed_ns(self, folder: _Path) -> int:
        """Return the time of the last change to the entries of a folder, in nanoseconds since the epoch.

        A remote folder counts as changed at each multiple of 10 seconds of the clock, and the time is at least as long
        ago. Raises FileNotFoundError if a local folder is missing.
        """

    def write(self, path: _Path, chunks: Iterable[Buffer]) -> None:
        """Write a whole file, which replaces another one. It appears complete and durable, or not at all.

        A missing parent folder is created.
        """

    def write_new(self, path: _Path, chunks: Iterable[Buffer]) -> None:
        """Write a whole file as `write` does, unless one is there. Raises FileExistsError if one is there.

        A local file system decides between two writers: one of them gets the error. On other stores the name is
        looked up before each attempt to write the file. After the first one, only a file with bytes counts. So two
        writers at the same moment may both succeed, and the file of the last one stays.
        """

    def put(self, source: Path, path: _Path) -> None:
        """Move a complete local file here, as `write` does. The source is removed after the file is durable."""

    def delete(self, path: _Path) -> None:
        """Delete a file. A missing file is no error."""

    def delete_folder(self, folder: _Path) -> None:
        """Delete a folder with all that it contains. A missing folder is no error."""
