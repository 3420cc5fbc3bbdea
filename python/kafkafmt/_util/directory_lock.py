"""The lock of a log directory: every writer takes it before it touches anything in there.

A Kafka broker or controller has an exclusive POSIX lock on `<log directory>/.lock` while it runs
(`LogManager.lockLogDirs`). Writers of kafkafmt take a shared lock on that file:

- Several writers work in one directory side by side. Each partition has a lock of its own.
- A writer is refused while a broker runs, and a broker does not start while a writer is at work.
- A writer that needs the directory for itself takes an exclusive lock, as brokers do.

The lock is an open file description lock (`F_OFD_SETLK`). It conflicts with POSIX locks, and it stays when another
descriptor of the file is closed, which would release a POSIX lock. All writers of a process share one descriptor of a
`.lock` and count its users. Systems without such locks get a POSIX lock.

The empty `.lock` is never removed: to remove a file that others lock is a race. Brokers leave theirs, too. Readers
need no lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kafkafmt._util.files import open_regular
from kafkafmt.closing import Closing
from kafkafmt.types import TopicPartition

LOCK_FILE = ".lock"
# The file that a folder has once it is formatted to be a broker's log directory.
_BROKER_FILE = "meta.properties"

_LOG = logging.getLogger(__name__)

_IS_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("@hhqqi0q")  # l_type, l_whence, l_start, l_len, l_pid, padding
_CONFLICTS = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class DirectoryLockedError(BlockingIOError):
    """A broker or another writer has the lock of a log directory."""

    def __init__(self, directory: Path, holder: str) -> None:
        message = f"{holder} holds {LOCK_FILE} of this log directory: stop it first, or write elsewhere"
        super().__init__(errno.EWOULDBLOCK, message, str(directory))


@dataclass
class _LockFile:
    """A `.lock` that this process has locked, and how many writers of the process share that."""

    descriptor: int
    key: tuple[int, int]
    exclusive: bool
    users: int = 1


_guard = threading.Lock()
_locked: dict[tuple[int, int], _LockFile] = {}


class DirectoryLock(Closing):
    """Locks that are held until this is closed: of a log directory, and of those around it."""

    def __init__(self) -> None:
        self._files: list[_LockFile] = []

    def close(self) -> None:
        """Release the locks. Does nothing if they are released."""
        while self._files:
            _release(self._files.pop())

    def _add(self, directory: Path, *, exclusive: bool = False) -> None:
        self._files.append(_acquire(directory, exclusive=exclusive))


def lock_log_directory(directory: str | os.PathLike[str], *, exclusive: bool = False) -> DirectoryLock:
    """Lock a log directory, which is made if it is missing.

    If the folder above it is a log directory with a `.lock`, that one is locked, too: a broker does not start with
    a folder in its log directory that is no partition's.

    Args:
        directory: the folder of the partitions' folders.
        exclusive: whether to keep out all writers of other processes; else only brokers and exclusive writers.

    Raises:
        DirectoryLockedError: a broker or another writer holds a lock that excludes this one. It names the folder.
        OSError: the directory or its `.lock` cannot be made or opened.

    A file system without locks (`ENOLCK`) is written to without one, and a warning is logged: no broker starts there.
    """
    path = Path(directory)
    with _releasing_on_error(DirectoryLock()) as lock:
        _lock_surroundings(lock, path)
        path.mkdir(parents=True, exist_ok=True)
        lock._add(path, exclusive=exclusive)
    return lock


def lock_partition_folder(folder: str | os.PathLike[str]) -> DirectoryLock:
    """Lock the log directory of a partition folder, which need not exist.

    The log directory is the parent of a folder that is named `<topic>-<partition>`, and made if it is missing. A
    folder of another name has none; a `.lock` that is in its parent is respected nevertheless, and so is the lock of
    a folder that is itself a broker's log directory.

    If the parent has no `.lock` and this process must not create one, no lock is taken: a broker that may use the
    directory would have created it.

    Raises as `lock_log_directory`.
    """
    path = Path(folder)
    with _releasing_on_error(DirectoryLock()) as lock:
        _lock_surroundings(lock, path)
        for one in _as_named_and_resolved(path):
            if TopicPartition.from_folder_name(one.name) is not None:
                _lock_parent(lock, one.parent)
        if (path / _BROKER_FILE).exists():
            lock._add(path)
    return lock


def lock_surroundings(path: str | os.PathLike[str]) -> DirectoryLock:
    """Lock the log directory that a file or folder is about to be made in, if that has a `.lock`.

    For what is no log: a table, its state, a map of offsets. A `.lock` is never created. Raises as
    `lock_log_directory`.
    """
    with _releasing_on_error(DirectoryLock()) as lock:
        _lock_surroundings(lock, Path(path))
    return lock


@contextlib.contextmanager
def _releasing_on_error(lock: DirectoryLock) -> Iterator[DirectoryLock]:
    try:
        yield lock
    except BaseException:
        lock.close()
        raise


def _lock_surroundings(lock: DirectoryLock, path: Path) -> None:
    """Lock the nearest folder above a path that exists, and for a partition's folder the one above that."""
    for one in _as_named_and_resolved(path):
        folder = next((parent for parent in one.parents if parent.is_dir()), one)
        directories = [folder]
        if TopicPartition.from_folder_name(folder.name) is not None:
            directories.append(folder.parent)
        for directory in directories:
            if (directory / LOCK_FILE).exists():
                lock._add(directory)


def _lock_parent(lock: DirectoryLock, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock._add(directory)
    except DirectoryLockedError:
        raise
    except OSError as error:
        if error.errno not in _NOT_WRITABLE or (directory / LOCK_FILE).exists():
            raise


def _as_named_and_resolved(path: Path) -> set[Path]:
    """The absolute path, and the one that links lead to: a broker may know the folder by either."""
    return {path.absolute(), Path(os.path.realpath(path))}


def _acquire(directory: Path, *, exclusive: bool) -> _LockFile:
    path = directory / LOCK_FILE
    with _guard:
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if (shared := _share(directory, (found.st_dev, found.st_ino), exclusive=exclusive)) is not None:
                return shared
        descriptor = _open(path, exclusive=exclusive)
        try:
            status = os.fstat(descriptor)
            key = (status.st_dev, status.st_ino)
            if (shared := _share(directory, key, exclusive=exclusive)) is not None:
                os.close(descriptor)
                return shared
            _lock(directory, descriptor, exclusive=exclusive)
        except BaseException:
            os.close(descriptor)
            raise
        _locked[key] = made = _LockFile(descriptor, key, exclusive)
        return made


def _share(directory: Path, key: tuple[int, int], *, exclusive: bool) -> _LockFile | None:
    """The lock that this process has on that file. A process that has it exclusively lets its own writers in."""
    found = _locked.get(key)
    if found is None:
        return None
    if exclusive:
        raise DirectoryLockedError(directory, f"another writer of this process ({os.getpid()})")
    found.users += 1
    return found


def _release(file: _LockFile) -> None:
    with _guard:
        file.users -= 1
        if not file.users and _locked.get(file.key) is file:
            del _locked[file.key]
            os.close(file.descriptor)


def _open(path: Path, *, exclusive: bool) -> int:
    """Open the file, which another user may own: a shared lock needs no right to write."""
    try:
        return open_regular(path, os.O_RDWR if exclusive else os.O_RDONLY)
    except FileNotFoundError:
        return open_regular(path, os.O_RDWR | os.O_CREAT)


def _lock(directory: Path, descriptor: int, *, exclusive: bool) -> None:
    try:
        _set_lock(descriptor, exclusive=exclusive)
    except OSError as error:
        if error.errno in _CONFLICTS:
            raise DirectoryLockedError(directory, _holder(descriptor, exclusive=exclusive)) from None
        if error.errno not in _NO_LOCKS:
            raise OSError(error.errno, error.strerror, str(directory / LOCK_FILE)) from None
        _LOG.warning("%s: written without a lock, its file system has none", directory)


def _set_lock(descriptor: int, *, exclusive: bool) -> None:
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    if _IS_LINUX:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # the kernel does not know these locks
                raise
    fcntl.lockf(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)


def _holder(descriptor: int, *, exclusive: bool) -> str:
    """Who is in the way, with its process id if the system tells it."""
    who = "a Kafka broker or another writer"
    if not _IS_LINUX:
        return who
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    asked = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    try:
        found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    except OSError:
        return who
    is_known = found[0] != fcntl.F_UNLCK and found[4] > 0
    return f"{who} (process {found[4]})" if is_known else who


def _forget_in_child() -> None:
    """A forked child must not keep the locks of its parent beyond the parent's life."""
    global _guard
    _guard = threading.Lock()
    for file in _locked.values():
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_forget_in_child)
