"""Opening files in folders that others write to: what is no regular file is refused at once.

A FIFO, a socket or a device in the place of a file would block its reader, for ever if nobody writes to it. The open
does not wait (`O_NONBLOCK`), and the kind of the file is checked on the descriptor, so that nothing can be put in its
place between the check and the open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegularFileError(OSError):
    """The path leads to something that is no regular file."""


class FolderNotFileError(NotRegularFileError, IsADirectoryError):
    """The path leads to a folder."""


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a regular file; return its descriptor.

    Args:
        path: of the file; links are followed.
        flags: of `os.open`. `O_CLOEXEC` and `O_NONBLOCK` are added.
        mode: of a file that is created.

    Raises:
        NotRegularFileError: the path leads to a FIFO, a socket or a device; to a folder, FolderNotFileError.
        OSError: as `os.open`.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP):
            ensure_regular(Path(path).stat(), path)  # how the open of a socket or a folder ends
        raise
    try:
        ensure_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a regular file. Raises as `open_regular`."""
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


def ensure_regular_or_missing(path: str | os.PathLike[str]) -> None:
    """Raise NotRegularFileError if something else than a file is at `path`: for libraries that open it themselves."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return
    ensure_regular(found, path)


def replace_file(path: Path, data: bytes) -> os.stat_result:
    """Put `data` at `path`, at once and durably: readers see the old file, or the new one. Return its status.

    The file is written as `.<name>.tmp` first, which is removed if that fails. One writer at a time.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of a writer that was killed; whatever it is, it is not written to
    try:
        status = write_durably(temporary, data)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return status


def write_durably(path: Path, data: bytes) -> os.stat_result:
    """Write a file that must not be there yet, and make its content durable. Return its status."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
        return os.fstat(descriptor)


def sync_folder(path: Path) -> None:
    """Make durable which files are in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
