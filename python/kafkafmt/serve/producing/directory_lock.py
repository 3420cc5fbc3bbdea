"""The lock of a log directory that is written to: the one that a broker takes, so that none runs on it meanwhile."""

from __future__ import annotations

import contextlib
import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

_LOCK_FILE = ".lock"


@contextlib.contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Hold the lock within the block. Raises BlockingIOError where another process has it."""
    with (directory / _LOCK_FILE).open("ab") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Java's locks are of this kind, not flock's
        except (BlockingIOError, PermissionError):
            message = "another process writes to this log directory: a broker, or kafkafmt"
            raise BlockingIOError(errno.EWOULDBLOCK, message, str(directory)) from None
        yield
