"""The lock of a log directory. Every writer takes it before it changes anything in the directory.

A Kafka broker or controller has an exclusive POSIX lock on `<log directory>/.lock` while it runs
(`LogManager.lockLogDirs`). Writers of kafkafmt take a shared lock on that file:

- Several writers may work in one directory at the same time. Each partition has its own lock.
- A writer is refused while a broker runs. A broker does not start while a writer holds the lock.
- A writer that needs the directory exclusively takes an exclusive lock, as brokers do.

The lock is an open file description lock (`F_OFD_SETLK`), which conflicts with POSIX locks. It stays when another
descriptor of the file is closed; a POSIX lock would be released. All writers of a process share one descriptor of a
`.lock`, whose users are counted. Systems without open file description locks use a POSIX lock.

The empty `.lock` is never removed: removing a file that another process may lock is a race. Brokers do not remove it
either. Readers need no lock.
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
from typing import NamedTuple

from kafkafmt._util.closing import Closing
from kafkafmt._util.files import make_folder, open_regular
from kafkafmt.types import TopicPartition

LOCK_FILE = ".lock"
# `kafka-storage format` writes this file into the log directory of a broker.
_BROKER_FILE = "meta.properties"

_LOG = logging.getLogger(__name__)

_IS_LINUX = sys.platform == "linux"
_FLOCK = struct.Struct("@hhqqi0q")  # l_type, l_whence, l_start, l_len, l_pid, padding
_CONFLICTS = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class DirectoryLockedError(BlockingIOError):
    """A broker or another writer holds the lock of a log directory."""

    def __init__(self, directory: Path, holder: str) -> None:
        message = f"{holder} holds {LOCK_FILE} of this log directory: stop it first, or write elsewhere"
        super().__init__(errno.EWOULDBLOCK, message, str(directory))


@dataclass
class _LockFile:
    """A `.lock` file that this process has locked. `users` counts the writers of the process that share it."""

    descriptor: int
    key: tuple[int, int]
    exclusive: bool
    users: int = 1


_guard = threading.Lock()
_locked: dict[tuple[int, int], _LockFile] = {}


class DirectoryLock(Closing):
    """The locks of a log directory and of the log directories that contain it, held until `close`."""

    def __init__(self) -> None:
        self._files: list[_LockFile] = []

    def close(self) -> None:
        """Release the locks. Does nothing if they are already released."""
        while self._files:
            _release(self._files.pop())

    def _add(self, directory: Path, *, exclusive: bool = False) -> None:
        self._files.append(_acquire(directory, exclusive=exclusive))


def lock_log_directory(directory: str | os.PathLike[str], *, exclusive: bool = False) -> DirectoryLock:
    """Lock a log directory. Creates the directory if it is missing.

    If the parent folder is a log directory with a `.lock`, that one is locked, too. A broker does not start if its log
    directory contains a folder that is no partition folder.

    Args:
        directory: the folder that contains the partition folders.
        exclusive: if true, excludes all writers of other processes; else only brokers and exclusive writers.

    Raises:
        DirectoryLockedError: a broker or another writer holds a conflicting lock. The message names the folder.
        OSError: the directory or its `.lock` cannot be created or opened.

    If the file system has no locks (`ENOLCK`), logs a warning and continues without: a broker does not start there.
    """
    path = Path(directory)
    with _releasing_on_error(DirectoryLock()) as lock:
        _lock_surroundings(lock, path)
        make_folder(path)
        lock._add(path, exclusive=exclusive)
    return lock


def lock_partition_folder(folder: str | os.PathLike[str]) -> DirectoryLock:
    """Lock the log directory of a partition folder. The folder need not exist.

    If the folder is named `<topic>-<partition>`, its parent is the log directory, and is created if it is missing.
    A folder of another name has no log directory. Its parent is still locked if that has a `.lock`, and the folder
    itself if it is the log directory of a broker.

    Takes no lock if the parent has no `.lock` and this process has no permission to create one: a broker that uses the
    directory would have created it.

    Raises the errors of `lock_log_directory`.
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
    """Lock the log directory in which a file or folder is about to be created, if that directory has a `.lock`.

    For files that are not logs: a table, its state, a map of offsets. Never creates a `.lock`. Raises the errors of
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
    """Lock the nearest existing folder above a path, and its parent if it is a partition folder."""
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
        make_folder(directory)
        lock._add(directory)
    except DirectoryLockedError:
        raise
    except OSError as error:
        if error.errno not in _NOT_WRITABLE or (directory / LOCK_FILE).exists():
            raise


def _as_named_and_resolved(path: Path) -> set[Path]:
    """Return the absolute path and the path without symbolic links: a broker may know the folder by either."""
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
    """Return the lock that this process already holds on a file, or None. Also shares one that it holds exclusively."""
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
    """Open the file. Another user may own it: a shared lock needs no write permission."""
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
        _LOG.warning("%s: writing without a lock: this file system does not support locks", directory)


def _set_lock(descriptor: int, *, exclusive: bool) -> None:
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    if _IS_LINUX:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
            return
        except OSError as error:
            if error.errno != errno.EINVAL:  # this kernel does not support open file description locks
                raise
    fcntl.lockf(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)


def _holder(descriptor: int, *, exclusive: bool) -> str:
    """Return who holds the conflicting lock, with the process id if the system reports it."""
    who = "a Kafka broker or another writer"
    process_id = _conflicting_process(descriptor, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK)
    return f"{who} (process {process_id})" if process_id is not None and process_id > 0 else who


def _conflicting_process(descriptor: int, kind: int) -> int | None:
    """Return the process whose lock conflicts with one of this kind; -1 if it is not known, None if there is none.

    Also returns None if the system does not tell.
    """
    if not _IS_LINUX:
        return None
    asked = _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
    try:
        found = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    except OSError:
        return None
    return None if found[0] == fcntl.F_UNLCK else found[4]


class LockState(NamedTuple):
    """Whether a process holds the lock of a log directory, and which; None if the system does not tell."""

    is_held: bool | None
    process_id: int | None


def lock_state(path: str | os.PathLike[str]) -> LockState:
    """Return the state of the lock in a `.lock` file. Takes no lock. Raises OSError if the file cannot be opened."""
    descriptor = open_regular(Path(path), os.O_RDONLY)
    try:
        if not _IS_LINUX:
            return LockState(None, None)
        process_id = _conflicting_process(descriptor, fcntl.F_WRLCK)
    finally:
        os.close(descriptor)
    return LockState(
        process_id is not None, process_id if process_id is not None and process_id > 0 else None
    )


def _forget_in_child() -> None:
    """Close the inherited locks in a forked child: it must not hold them after its parent ends."""
    global _guard
    _guard = threading.Lock()
    for file in _locked.values():
        with contextlib.suppress(OSError):
            os.close(file.descriptor)
    _locked.clear()


os.register_at_fork(after_in_child=_forget_in_child)
