"""The logs that were closed after a flush of them had failed. Producers may not append to them again.

Another flush would succeed without the lost bytes, which the system may return from memory. A folder that is deleted
and created again has another log, to which this does not apply.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import NamedTuple


class _FailedLog(NamedTuple):
    """The error of a flush. folder: a descriptor of the log's folder; None if it could not be opened."""

    error: OSError
    folder: int | None


class FailedLogs:
    """Keeps the errors of flushes by folder, while the folder is the same. Any thread may call it.

    A descriptor of each folder stays open: no other folder can have its inode number then.
    """

    def __init__(self) -> None:
        self._by_path: dict[Path, _FailedLog] = {}
        self._lock = threading.Lock()

    def add(self, path: Path, error: OSError) -> None:
        """Keep the error of a log that is in a folder. Nothing is kept if the folder is gone."""
        folder = None
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError:  # as without a free descriptor: the error then applies to any folder of this name
            pass
        with self._lock:
            self._forget(path)
            self._by_path[path] = _FailedLog(error, folder)

    def error(self, path: Path) -> OSError | None:
        """Return the error of the log in a folder; None if there is none, or the folder is another one.

        Raises OSError if the folder cannot be looked at, also if it is gone.
        """
        with self._lock:
            found = self._by_path.get(path)
            if found is None:
                return None
            if found.folder is not None and not os.path.samestat(path.stat(), os.fstat(found.folder)):
                self._forget(path)
                return None
            return found.error

    def close(self) -> list[OSError]:
        """Forget all errors, and return them."""
        with self._lock:
            errors = [found.error for found in self._by_path.values()]
            for path in list(self._by_path):
                self._forget(path)
            return errors

    def _forget(self, path: Path) -> None:
        found = self._by_path.pop(path, None)
        if found is not None and found.folder is not None:
            with contextlib.suppress(OSError):
                os.close(found.folder)
