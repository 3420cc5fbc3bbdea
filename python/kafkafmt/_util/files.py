"""Open only regular files, replace files atomically, and make them durable, in folders that others write to.

If the path leads to a FIFO, a socket or a device, a plain open or read may block for ever. So files are opened with
`O_NONBLOCK`, and their kind is checked on the descriptor: nothing can replace the file between check and open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularFileError(OSError):
    """The path does not lead to a regular file."""


class FolderNotFileError(NotRegularFileError, IsADirectoryError):
    """The path leads to a folder."""


@contextlib.contextmanager
def naming_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Set the file name of an OSError that has none, as after a write to a descriptor: a full disk has a place."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        raise


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor.

    Args:
        path: the file. Symbolic links are followed.
        flags: the flags of `os.open`. `O_CLOEXEC`, `O_NONBLOCK` and `O_NOCTTY` are added.

    Raises:
        NotRegularFileError: the path leads to a FIFO, a socket or a device.
        FolderNotFileError: the path leads to a folder.
        OSError: `os.open` failed.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP):
            ensure_regular(Path(path).stat(), path)  # so fails the open of a socket or a folder
        raise
    try:
        ensure_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file. Raises the errors of `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def ensure_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise NotRegularFileError unless `found`, the status of `path`, is that of a regular file."""
    if stat.S_ISREG(found.st_mode):
        return
    kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
    message = f"expected a regular file, found {kind}"
    if stat.S_ISDIR(found.st_mode):
        raise FolderNotFileError(errno.EISDIR, message, os.fspath(path))
    raise NotRegularFileError(errno.EINVAL, message, os.fspath(path))


def irregular_in_words(path: str | os.PathLike[str]) -> str:
    """Return the message of the error for a path that leads to no regular file."""
    try:
        ensure_regular(Path(path).stat(), path)
    except NotRegularFileError as error:
        return str(error.strerror)
    except FileNotFoundError:
        pass
    return "expected a regular file, found a broken link"


def ensure_regular_or_missing(path: str | os.PathLike[str]) -> None:
    """Raise NotRegularFileError if `path` exists and is no regular file. For libraries that open files themselves."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return
    ensure_regular(found, path)


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> os.stat_result:
    """Write `data` to `path` atomically and durably, and return the status of the new file.

    Readers see either the old file or the new one. The data is first written to `.<name>.tmp`, which is removed on an
    error. Only one process at a time may replace a file.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # a killed writer may have left it
    try:
        status = write_durably(temporary, data, mode=mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_path(path.parent)
    return status


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> os.stat_result:
    """Write a new file, make its content durable, and return its status. Raises FileExistsError if it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with naming_errors(path), os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        return os.fstat(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and the missing ones above it, durably: a file in it is lost with the entry of a folder.

    Does nothing if there is such a folder. Raises OSError.
    """
    missing = []
    folder = path
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def publish(path: Path, target: Path) -> None:
    """Make a file or the entries of a folder durable, then rename it to `target` durably."""
    sync_path(path)
    path.rename(target)
    sync_path(target.absolute().parent)


def sync_path(path: Path) -> None:
    """Make the content of a file, or the entries of a folder, durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
