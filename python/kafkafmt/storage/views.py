"""A read-only file system over a store whose files are not those of a log directory: tiered storage, a backup.

A view presents what is in the store as a log directory: folders of partitions, segments, indexes, `topics.ini`. So
every reader of a log directory reads it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kafkafmt.storage.remote import LISTED_FOR_NS

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo


class ViewFile(Protocol):
    """A file of a view. `mtime_ns` differs if the content has changed."""

    @property
    def size(self) -> int: ...

    @property
    def mtime_ns(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes | memoryview:
        """Return the bytes from `position`, as many as `size`, or fewer at the end. Raises OSError."""


# The files of a view, by folder and name. The root is "". Folders are of one level.
ViewTree: TypeAlias = Mapping[str, Mapping[str, ViewFile]]
_LOG_SUFFIX = ".log"


class BytesFile:
    """A file of a view whose content is in memory."""

    def __init__(self, content: bytes, mtime_ns: int = 0) -> None:
        self._content = memoryview(content)
        self.mtime_ns = mtime_ns

    @property
    def size(self) -> int:
        return len(self._content)

    def read_at(self, position: int, size: int) -> memoryview:
        return self._content[position : position + size]


class ViewFileSystem(ABC):
    """A `ReadableFileSystem` of the files that `load` returns. A subclass pickles as its constructor's arguments.

    What `load` returned is valid until the next multiple of 10 seconds of the clock, as a listing of a remote folder.
    """

    type_name = "view"

    def __init__(self) -> None:
        self._tree: ViewTree | None = None
        self._valid_until_ns = 0
        self._lock = threading.Lock()

    @abstractmethod
    def load(self) -> ViewTree:
        """Return the files that the view has now. Raises OSError."""

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]: ...

    def get_file_info(self, what: Any, /) -> Any:
        from pyarrow.fs import FileInfo, FileSelector, FileType

        if isinstance(what, FileSelector):
            folder = what.base_dir.strip("/")
            tree = self._current()
            if folder and folder not in tree:
                if what.allow_not_found:
                    return []
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            folders = [name for name in tree if name] if not folder else []
            found = [FileInfo(name, FileType.Directory) for name in folders]
            for one in [folder, *(folders if what.recursive else [])]:
                found += [
                    _info(f"{one}/{name}".lstrip("/"), file) for name, file in tree.get(one, {}).items()
                ]
            return found
        if isinstance(what, list):
            return [self.get_file_info(one) for one in what]
        path = what.strip("/")
        if not path or path in self._current():
            return FileInfo(path, FileType.Directory)
        file = self._find(path)
        return FileInfo(path, FileType.NotFound) if file is None else _info(path, file)

    def open_input_file(self, path: str, /) -> OpenViewFile:
        file = self._find(path.strip("/"))
        if file is None and path.endswith(_LOG_SUFFIX):
            # Another process, such as the driver of a Spark job, may have a newer listing. Other files may be missing.
            file = self._find_anew(path.strip("/"))
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return OpenViewFile(file)

    def _find(self, path: str) -> ViewFile | None:
        folder, _, name = path.rpartition("/")
        return self._current().get(folder, {}).get(name)

    def _find_anew(self, path: str) -> ViewFile | None:
        with self._lock:
            self._tree = None
        return self._find(path)

    def _current(self) -> ViewTree:
        with self._lock:  # threads that list folders side by side load once
            now = time.time_ns()
            if self._tree is None or now >= self._valid_until_ns:
                self._tree = self.load()
                self._valid_until_ns = (now // LISTED_FOR_NS + 1) * LISTED_FOR_NS
            return self._tree


class OpenViewFile:
    """An open file of a view, with the methods of `pyarrow.NativeFile` that readers use."""

    def __init__(self, file: ViewFile) -> None:
        self._file = file
        self._position = 0
        self.closed = False

    def size(self) -> int:
        return self._file.size

    def seek(self, position: int, /) -> int:
        self._position = position
        return position

    def read(self, size: int = -1, /) -> bytes:
        left = max(self._file.size - self._position, 0)
        found = bytes(self._file.read_at(self._position, left if size < 0 else min(size, left)))
        self._position += len(found)
        return found

    def readinto(self, view: memoryview, /) -> int:
        found = self._file.read_at(self._position, min(len(view), max(self._file.size - self._position, 0)))
        view[: len(found)] = found
        self._position += len(found)
        return len(found)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> OpenViewFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _info(path: str, file: ViewFile) -> FileInfo:
    from pyarrow.fs import FileInfo, FileType

    return FileInfo(path, FileType.File, mtime_ns=file.mtime_ns, size=file.size)
