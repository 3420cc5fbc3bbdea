"""HDFS: a file replaces another one, and readers find one of both at each moment, also after a kill.

HDFS does not rename to a name that exists: PyArrow deletes a file of that name, and then renames. A kill between both
would lose the file. So the new file is first renamed to `.<name>.next.tmp`. Then the old one gets a temporary name, and
the new one gets its name. If a file is missing, its readers and listings take the one with `next`.

If two writers replace a file at the same time, one of them may raise OSError. One complete file stays. It may be that
of the writer with the error.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSelector, FileSystem

_PREFIX, _SUFFIX = ".", ".next.tmp"
_Found = TypeVar("_Found")


class HdfsFileSystem:
    """The methods of a `pyarrow.fs.HadoopFileSystem` that storages use. It can be pickled."""

    type_name = "hdfs"

    def __init__(self, filesystem: FileSystem) -> None:
        self._filesystem = filesystem
        self.open_output_stream = filesystem.open_output_stream
        self.create_dir = filesystem.create_dir
        self.delete_dir = filesystem.delete_dir

    def __reduce__(self) -> tuple[Any, ...]:
        return HdfsFileSystem, (self._filesystem,)

    def get_file_info(self, what: str | FileSelector) -> FileInfo | list[FileInfo]:
        """Return the `FileInfo` of a path, or the list of those that a selector selects."""
        if not isinstance(what, str):
            return _listed(self._filesystem.get_file_info(what))
        found = self._filesystem.get_file_info(what)
        if not _is_missing(found):
            return found
        following = self._filesystem.get_file_info(_next(what))
        if not _is_missing(following):
            return _named(following, what)
        return self._filesystem.get_file_info(what)  # it may have got its name in between

    def open_input_file(self, path: str) -> Any:
        """Open a file. Raises FileNotFoundError if it is missing."""
        return _first(self._filesystem.open_input_file, path)

    def open_input_stream(self, path: str, compression: str | None = None) -> Any:
        """Open a file. Raises FileNotFoundError if it is missing."""
        return _first(lambda one: self._filesystem.open_input_stream(one, compression=compression), path)

    def delete_file(self, path: str) -> None:
        """Delete a file. Raises FileNotFoundError if it is missing."""
        # The next one comes first: it would take the place of the deleted one.
        deleted = [self._delete(one) for one in (_next(path), path)]
        if not any(deleted):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _delete(self, path: str) -> bool:
        """Delete a file. Returns False if it is missing, for which HDFS raises OSError without a reason (EIO)."""
        if _is_missing(self._filesystem.get_file_info(path)):
            return False
        self._filesystem.delete_file(path)
        return True

    def move(self, source: str, target: str) -> None:
        """Move a file, which replaces another one. Completes the replacement of a killed writer before."""
        following = _next(target)
        is_there = not _is_missing(self._filesystem.get_file_info(target))
        if is_there:
            self._delete(following)
        elif not _is_missing(self._filesystem.get_file_info(following)):
            self._filesystem.move(following, target)
            is_there = True
        if not is_there:
            self._filesystem.move(source, target)
            return
        self._filesystem.move(source, following)
        self._replace(target, following)

    def _replace(self, target: str, following: str) -> None:
        """Rename `following` to `target`. Another writer may have renamed or deleted it: then a file must stay."""
        folder, name = posixpath.split(target)
        old = posixpath.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")
        self._filesystem.move(target, old)
        try:
            self._filesystem.move(following, target)
        except OSError:
            if _is_missing(self._filesystem.get_file_info(target)):
                self._filesystem.move(old, target)
            raise
        self._filesystem.delete_file(old)


def _next(path: str) -> str:
    folder, name = posixpath.split(path)
    return posixpath.join(folder, f"{_PREFIX}{name}{_SUFFIX}")


def _first(open_file: Callable[[str], _Found], path: str) -> _Found:
    for one in (path, _next(path)):
        with suppress(FileNotFoundError):
            return open_file(one)
    return open_file(path)  # it may have got its name in between


def _is_missing(found: FileInfo) -> bool:
    from pyarrow.fs import FileType

    return bool(found.type == FileType.NotFound)


def _listed(found: list[FileInfo]) -> list[FileInfo]:
    """Return a listing in which a file that has not got its name yet has it, if no other file has it."""
    names = {one.path for one in found}
    listed = []
    for one in found:
        folder, name = posixpath.split(one.path)
        path = posixpath.join(folder, name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
        is_next = one.path == _next(path) and path not in names
        listed.append(_named(one, path) if is_next else one)
    return listed


def _named(found: FileInfo, path: str) -> FileInfo:
    from pyarrow.fs import FileInfo

    return FileInfo(path, found.type, mtime_ns=found.mtime_ns, size=found.size)
