"""Locks on files and folders (flock) that a process holds until it closes the descriptor or ends.

So a file whose lock is free belongs to no living process. Some file systems have no locks. There a writer continues
without one, and does not remove files that a dead process may have left. The lock of a log directory, which brokers
respect, is a different one: `directory_lock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kafkafmt._util.files import open_regular


def wait_for_lock(descriptor: int) -> None:
    """Wait for an exclusive lock. Return without a lock if the file system has none."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_lock(descriptor: int) -> bool:
    """Take an exclusive lock without waiting. Return False if another descriptor has it.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take_over(descriptor: int) -> bool:
    """Lock a file that a dead process may have left. Return False if a process holds it or locks are not supported."""
    try:
        return try_lock(descriptor)
    except OSError:
        return False


@contextlib.contextmanager
def locked_file(path: Path, *, remove: bool = False) -> Iterator[None]:
    """Hold the lock of the file at `path` during the block. Creates the file if it is missing.

    remove: whether to remove the file before the lock is released.
    """
    while True:
        with contextlib.ExitStack() as stack:
            descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
            stack.callback(os.close, descriptor)
            wait_for_lock(descriptor)
            if not os.fstat(descriptor).st_nlink:
                continue  # the last holder has removed this file: lock the new one
            if remove:
                stack.callback(path.unlink, missing_ok=True)
            yield
            return


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[int]:
    """Hold the lock of a folder during the block. Yields its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wait_for_lock(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)
