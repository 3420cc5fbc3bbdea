"""Replace files of a partition's folder by repaired ones, so that a kill at any step loses nothing that was readable.

The files are in a folder inside the partition's folder. Brokers look only at the files of a partition's folder; in the
log directory itself a folder of another name would keep a broker from starting.

    orders-0/.kafkafmt-repair/new/          1. the repaired files are written here
    orders-0/.kafkafmt-repair/removed       2. this list is renamed into place: the change is committed
    orders-0/.kafkafmt-repair/old/          3. what is replaced gets a second name here; then the new file is renamed
    orders-0/.kafkafmt-repaired-1/          4. the folder, with the old files, gets its final name

A run that finds a folder of step 1 removes it. After step 2 the next run completes the change. The list stays until the
folder has its final name: without it, the next run would take the old files for those of step 1.

A broker may run in between, and append to files that the change replaces. So the list has the identity of each
file that is replaced or removed, and the next run refuses to replace another one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from kafkafmt._util.files import replace_file, sync_path
from kafkafmt.jobs.repair.errors import RepairError

_WORK = ".kafkafmt-repair"
_BACKUP = ".kafkafmt-repaired-"
_REMOVED = "removed"
# Errors of a file system that has no hard links, or no more for this file.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK)


class FolderChange:
    """A change of the files in a partition's folder. `new` is the folder for the files that are put there.

    Removes what a killed run has left before it was committed. Call `finish_change` first.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._work = folder / _WORK
        self.new = self._work / "new"
        shutil.rmtree(self._work, ignore_errors=True)
        self.new.mkdir(parents=True)

    def commit(self, removed: Iterable[str]) -> Path:
        """Put the new files into the folder, and take the `removed` ones out. Returns the folder with the old files.

        Raises OSError. After an error, `finish_change` completes the change.
        """
        (self._work / "old").mkdir()
        _give_to_owner(self._folder, self.new)
        sync_path(self.new)
        sync_path(self._work)
        sync_path(self._folder)
        change = {
            "replaced": self._identities(path.name for path in self.new.iterdir()),
            "removed": self._identities(removed),
        }
        replace_file(self._work / _REMOVED, json.dumps(change).encode())
        found = finish_change(self._folder)
        assert found is not None
        return found

    def _identities(self, names: Iterable[str]) -> dict[str, list[int] | None]:
        return {name: _identity(self._folder / name) for name in sorted(names)}

    def discard(self) -> None:
        """Remove the new files: nothing changes. Does nothing after the change was committed."""
        if not (self._work / _REMOVED).exists():
            shutil.rmtree(self._work, ignore_errors=True)


def finish_change(folder: Path) -> Path | None:
    """Complete a change that was committed. Returns the folder with the old files; None if there is no such change.

    Raises OSError, and RepairError if a file that it replaces or removes is no longer the one it was at the commit.
    """
    work = folder / _WORK
    try:
        change = json.loads((work / _REMOVED).read_bytes())
    except FileNotFoundError:
        return None
    new, old = work / "new", work / "old"
    new.mkdir(exist_ok=True)  # the run may have been killed after it removed the folder
    _ensure_unchanged(folder, change)
    # The `.log` comes last: a segment never has a batch that its new indexes do not know.
    for path in sorted(new.iterdir(), key=lambda path: (path.suffix == ".log", path.name)):
        target = folder / path.name
        if target.exists() and not (old / path.name).exists():
            _keep(target, old / path.name)
        path.rename(target)
    for name in change["removed"]:
        if os.path.lexists(folder / name):
            (folder / name).rename(old / name)
    sync_path(old)
    sync_path(folder)
    backup = next(path for number in count(1) if not (path := folder / f"{_BACKUP}{number}").exists())
    new.rmdir()
    # The list stays until the folder has its final name: without it, the next run would remove the folder.
    work.rename(backup)
    sync_path(folder)
    (backup / _REMOVED).unlink()
    return backup


def _ensure_unchanged(folder: Path, change: Any) -> None:
    work = folder / _WORK
    advice = f"a repair that was killed cannot be completed: move {work} elsewhere, keep it, and repair again"
    if not isinstance(change, dict):
        raise RepairError(f"{work / _REMOVED}: written by another version of kafkafmt: {advice}")
    left = {name: one for name, one in change["replaced"].items() if (work / "new" / name).exists()}
    for name, expected in (left | change["removed"]).items():
        found = _identity(folder / name)
        if found == expected or (found is None and os.path.lexists(work / "old" / name)):
            continue
        raise RepairError(
            f"{folder / name}: changed since, as by a broker: expected {_in_words(expected)}, "
            f"found {_in_words(found)}: {advice}"
        )


def _identity(path: Path) -> list[int] | None:
    """Return the inode, the size and the time of the last change of a file; None if there is none."""
    try:
        found = path.stat() if path.exists() else path.lstat()
    except FileNotFoundError:
        return None
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _in_words(identity: list[int] | None) -> str:
    if identity is None:
        return "no file"
    inode, size, mtime_ns = identity
    changed = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(mtime_ns // 10**9))
    return f"{size} bytes of {changed} (inode {inode})"


def _keep(target: Path, old: Path) -> None:
    """Give a file that will be replaced a second name; without hard links, its only one. The next step replaces it."""
    try:
        os.link(target, old)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.rename(old)
    sync_path(old.parent)


def _give_to_owner(folder: Path, new: Path) -> None:
    """Give new files to the owner of the folder if this is root: a broker of another user opens them to write."""
    if os.geteuid() == 0:
        status = folder.stat()
        for path in new.iterdir():
            os.chown(path, status.st_uid, status.st_gid)
