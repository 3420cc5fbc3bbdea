"""Files and folders that are written beside their target, and renamed to it once they are complete and durable.

The temporary name is `.<name of the target>.<number>.tmp`. The writer holds a lock on it until it ends. If the lock is
free, the writer was killed, and the next writer of the same target removes the file or folder. On a file system without
locks they are not removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import BinaryIO

from kafkafmt._util.files import ensure_regular_or_missing, naming_errors, publish, sync_path
from kafkafmt._util.locks import take_over, wait_for_lock


class StagedFolder:
    """A new folder at `path`, which `publish` renames to `target`. Removes what dead writers left. Raises OSError.

    is_private: only this user can access the folder.
    """

    def __init__(self, target: Path, *, is_private: bool = False) -> None:
        self.target = target
        self.path, self._descriptor = _create(target, _new_private_folder if is_private else _new_folder)

    def publish(self) -> None:
        """Make the entries of the folder durable, and rename it to its target. Raises OSError."""
        publish(self.path, self.target)
        self._unlock()

    def remove(self) -> None:
        """Remove the folder and its content. Does nothing after `publish` or `remove`."""
        if self._descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            self._unlock()

    def _unlock(self) -> None:
        os.close(self._descriptor)
        self._descriptor = -1


@contextlib.contextmanager
def staged_file(
    target: Path,
    *,
    before_rename: Callable[[os.stat_result], None] = lambda status: None,
    is_new: bool = False,
) -> Iterator[BinaryIO]:
    """Yield a new file. At the end of the block rename it to `target`, or remove it if the block raises.

    before_rename: called with the status of the file, after the file is durable.
    is_new: raise FileExistsError instead of replacing a file. The file system must have hard links.

    Raises OSError, which names the target; NotRegularFileError if that is a folder, a FIFO or a device.
    """
    ensure_regular_or_missing(target)  # a rename would replace a device
    path, descriptor = _create(target, _new_file)
    with os.fdopen(descriptor, "wb") as file:  # its lock is held until this closes it
        try:
            yield file
            with naming_errors(target):
                file.flush()
                os.fsync(descriptor)
            before_rename(os.fstat(descriptor))
            if is_new:
                os.link(path, target)
                path.unlink()
            else:
                path.rename(target)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            # It writes what is buffered. The error of that would replace the first one.
            with contextlib.suppress(OSError):
                file.close()
            raise
    sync_path(target.absolute().parent)


def ensure_can_stage(target: Path) -> None:
    """Raise what `staged_file` would raise at its start, before long work: OSError, or NotRegularFileError."""
    ensure_regular_or_missing(target)
    path, descriptor = _create(target, _new_file)
    path.unlink()
    os.close(descriptor)


def _create(target: Path, new: Callable[[Path], int]) -> tuple[Path, int]:
    """Return the path and the locked descriptor of a new file or folder."""
    remove_leftovers(target)
    for number in count(os.getpid()):  # processes of two containers may have the same id
        path = target.with_name(f".{target.name}.{number}.tmp")
        try:
            descriptor = new(path)
        except FileExistsError:
            continue
        except OSError as error:
            error.filename = str(target)  # the user knows no other name
            raise
        wait_for_lock(descriptor)
        if _is_at(path, descriptor):
            return path, descriptor
        os.close(descriptor)  # before it was locked, another process removed it as left by a dead one
    raise AssertionError("unreachable")


def _new_file(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _new_private_folder(path: Path) -> int:
    return _new_folder(path, 0o700)


def _new_folder(path: Path, mode: int = 0o777) -> int:
    path.mkdir(mode)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # another process removed it before it was locked
        raise FileExistsError from None


def remove_leftovers(target: Path) -> None:
    """Remove the files and folders that dead writers of a target left. Errors are ignored."""
    name = re.compile(rf"\.{re.escape(target.name)}\.\d+\.tmp")
    with contextlib.suppress(OSError):
        for path in list(target.parent.iterdir()):
            if name.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    _remove_if_dead(path)


def _remove_if_dead(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # If another file is at the path, this one was removed, and another process uses the name.
        if take_over(descriptor) and _is_at(path, descriptor):
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISDIR(kind):
                shutil.rmtree(path)
            elif stat.S_ISREG(kind):
                path.unlink()
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
