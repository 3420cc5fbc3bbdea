"""A hidden folder beside the one that is to be made, in which that is written until it can be renamed.

Who writes in it holds a lock (flock) on it until it ends, however it ends. So a folder whose lock nobody holds is that
of a process that was killed, and the next one that has the same target removes it; that of one at work stays. On a file
system without locks nobody can tell, and all of them stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path

from kafkafmt.log.writer import wait_for_lock


class StagedFolder:
    """A new folder for what is to be at `target`, after those of dead processes were removed. Raises OSError."""

    def __init__(self, target: Path) -> None:
        _remove_dead(target)
        self.path, self._descriptor = _made(target)

    def rename(self, target: Path) -> None:
        """Have it be `target`, and be nobody's any more. Raises OSError."""
        self.path.rename(target)
        os.close(self._descriptor)

    def remove(self) -> None:
        """Remove it and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def _made(target: Path) -> tuple[Path, int]:
    """A folder that was not there, and its locked descriptor."""
    number = os.getpid()  # in containers numbers come again, also at the same time
    while True:
        folder = target.with_name(f".{target.name}.{number}.tmp")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            with contextlib.suppress(FileNotFoundError):
                descriptor = _opened(folder)
                wait_for_lock(descriptor)
                if _is_at(folder, descriptor):
                    return folder, descriptor
                os.close(descriptor)  # another one took it for a dead one's before it was locked
        number += 1


def _remove_dead(target: Path) -> None:
    name = re.compile(rf"\.{re.escape(target.name)}\.\d+\.tmp")
    for folder in target.parent.iterdir():
        if name.fullmatch(folder.name):
            with contextlib.suppress(OSError):
                _remove_if_dead(folder)


def _remove_if_dead(folder: Path) -> None:
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(folder, descriptor):  # else it was removed, and one of that name may be at work again
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _is_at(folder: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(folder.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
