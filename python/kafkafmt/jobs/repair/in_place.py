"""Replace files of a partition's folder by repaired ones, so that a kill at any step loses nothing that was readable.

The files are in a folder inside the partition's folder. Brokers look only at the files of a partition's folder; in the
log directory itself a folder of another name would keep a broker from starting.

    orders-0/.kafkafmt-repair/new/          1. the repaired files are written here
    orders-0/.kafkafmt-repair/removed       2. this list is renamed into place: the change is committed
    orders-0/.kafkafmt-repair/old/          3. what is replaced gets a second name here; then the new file is renamed
    orders-0/.kafkafmt-repaired-1/          4. the folder, with the old files, gets its final name

A run that finds a folder of step 1 removes it. After step 2 the next run completes the change. The list stays until the
folder has its final name: without it, the next run would take the old files for those of step 1.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path

from kafkafmt._util.files import replace_file, sync_path

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
        replace_file(self._work / _REMOVED, json.dumps(sorted(removed)).encode())
        found = finish_change(self._folder)
        assert found is not None
        return found

    def discard(self) -> None:
        """Remove the new files: nothing changes. Does nothing after the change was committed."""
        if not (self._work / _REMOVED).exists():
            shutil.rmtree(self._work, ignore_errors=True)


def finish_change(folder: Path) -> Path | None:
    """Complete a change that was committed. Returns the folder with the old files; None if there is no such change.

    Raises OSError.
    """
    work = folder / _WORK
    try:
        removed = json.loads((work / _REMOVED).read_bytes())
    except FileNotFoundError:
        return None
    new, old = work / "new", work / "old"
    new.mkdir(exist_ok=True)  # the run may have been killed after it removed the folder
    # The `.log` comes last: a segment never has a batch that its new indexes do not know.
    for path in sorted(new.iterdir(), key=lambda path: (path.suffix == ".log", path.name)):
        target = folder / path.name
        if target.exists() and not (old / path.name).exists():
            _keep(target, old / path.name)
        path.rename(target)
    for name in removed:
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
