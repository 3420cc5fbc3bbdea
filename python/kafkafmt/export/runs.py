"""The runs of exports of a table: one at a time, and what a killed one has left is removed by the next one.

Each run has a file `_kafkafmt/runs/<run>.json` in the folder of the table until it ends. On a local file system it
holds a lock on `_kafkafmt/lock`, so all other runs there are dead. A store has no locks: there a run rewrites its file
every 10 seconds. A run whose file has not changed for 40 seconds is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.files import make_folder, open_regular
from kafkafmt._util.locks import try_lock
from kafkafmt.export.errors import TableConflictError
from kafkafmt.storage import RemotePath, is_temporary_name, read_file, storage_of, write_file

if TYPE_CHECKING:
    from kafkafmt.storage import StoragePath

PRIVATE_FOLDER = "_kafkafmt"
RENEW_SECONDS = 10.0
DEAD_AFTER_SECONDS = 40.0
_LOCK = "lock"
_RUNS = "runs"
_SUFFIX = ".json"


class RunLease:
    """The right of one run to change a table.

    dead: the runs that were killed, with the times in seconds since 1970 at which they began. `forget` removes them.
    """

    def __init__(self, folder: StoragePath, run: str) -> None:
        self._folder, self._run = folder, run
        self._runs = folder / PRIVATE_FOLDER / _RUNS
        self._path = self._runs / f"{run}{_SUFFIX}"
        self._descriptor = -1
        self._renewed = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.time()
        self.dead: dict[str, float] = {}

    def take(self) -> None:
        """Take the lease. Waits at most 40 seconds for a run on a store that may be dead.

        Raises TableConflictError if another run has it, and OSError.
        """
        if isinstance(self._folder, Path):
            self._lock(self._folder / PRIVATE_FOLDER)
            self._remove_unfinished()
        self._renew(is_waiting=isinstance(self._folder, RemotePath))
        others = [name for name in self._names() if name != self._run]
        if isinstance(self._folder, RemotePath):
            if not self._all_dead(others):
                storage_of(self._path).delete(self._path)
                raise self._conflict()
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()
        self.dead = {name: _beginning(content) for name, (content, _) in self._contents(others).items()}

    def ensure_held(self) -> None:
        """Raise TableConflictError if another run may have taken the lease, because this one was stopped for long."""
        if self._thread is not None and time.monotonic() - self._renewed > DEAD_AFTER_SECONDS / 2:
            self._renew_if_there()

    def ended(self, runs: Iterable[str]) -> list[str]:
        """Return those of the runs that have ended, or are dead. None of them will write files that are committed.

        A run has a file before it has others. So `runs` were listed before this: a run that begins meanwhile is not
        among them, or has its file.
        """
        running = set(self._names()) - self.dead.keys()
        return [run for run in runs if run not in running]

    def forget(self, run: str) -> None:
        """Remove the file of a dead run, after its other files."""
        storage_of(self._runs).delete(self._runs / f"{run}{_SUFFIX}")

    def release(self, *, is_known: bool = True) -> None:
        """End the lease. Does nothing if it is not held.

        is_known: whether the outcome of the run is known. If not, its file stays, and the next run finds a dead one.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._renewed:
            self._renewed = 0.0
            with contextlib.suppress(OSError):  # the next run removes it
                if is_known:
                    self.forget(self._run)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self, folder: Path) -> None:
        make_folder(folder)
        descriptor = open_regular(folder / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            if not try_lock(descriptor):
                raise self._conflict()
        except BaseException:
            os.close(descriptor)
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        self._descriptor = descriptor

    def _remove_unfinished(self) -> None:
        """Remove what runs have left that were killed while they wrote their file. The lock is held."""
        with contextlib.suppress(FileNotFoundError), storage_of(self._runs).entries(self._runs) as entries:
            for name in [entry.name for entry in entries if is_temporary_name(entry.name)]:
                storage_of(self._runs).delete(self._runs / name)

    def _conflict(self) -> TableConflictError:
        return TableConflictError(
            f"{self._folder}: another export writes to this table: expected one at a time"
        )

    def _names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError), storage_of(self._runs).entries(self._runs) as entries:
            return sorted(
                entry.name.removesuffix(_SUFFIX) for entry in entries if entry.name.endswith(_SUFFIX)
            )
        return []

    def _renew(self, *, is_waiting: bool = False) -> None:
        content = {"waiting": is_waiting, "began": self._began, "time_ns": time.time_ns()}
        write_file(self._path, json.dumps(content).encode())
        self._renewed = time.monotonic()

    def _renew_if_there(self) -> None:
        if not isinstance(self._path, RemotePath) or not self._path.unlisted().exists():
            raise self._conflict()
        self._renew()

    def _keep(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            # A failure is no loss yet: the next one may succeed, and `ensure_held` tells.
            with contextlib.suppress(OSError, TableConflictError):
                self._renew_if_there()

    def _all_dead(self, others: list[str]) -> bool:
        """Watch the files of other runs until one changes, or all of them have had the time to.

        Of several runs that wait for each other, the one with the first name gets the lease.
        """
        before = self._contents(others)
        own = self._path.unlisted().stat().st_mtime_ns if isinstance(self._path, RemotePath) else 0
        recent = [name for name, (_, changed) in before.items() if own - changed < DEAD_AFTER_SECONDS * 1e9]
        end = time.monotonic() + DEAD_AFTER_SECONDS
        while recent and time.monotonic() < end:
            time.sleep(min(1.0, DEAD_AFTER_SECONDS / 10))
            now = self._contents(recent)
            for name, (content, _) in now.items():
                is_behind = b'"waiting": true' in content and name > self._run
                if content != before[name][0] and not is_behind:
                    return False
            recent = [name for name in recent if name in now]  # others have ended
            self._renew(is_waiting=True)
        self._renew()
        return True

    def _contents(self, names: list[str]) -> dict[str, tuple[bytes, int]]:
        found = {}
        for name in names:
            path = self._runs / f"{name}{_SUFFIX}"
            with contextlib.suppress(FileNotFoundError):
                found[name] = (read_file(path), path.stat().st_mtime_ns)
        return found


def _beginning(content: bytes) -> float:
    """Return when a run began; 0 if its file does not tell."""
    try:
        return float(json.loads(content)["began"])
    except (ValueError, KeyError, TypeError):
        return 0.0
