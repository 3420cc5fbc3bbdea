"""Publish a log directory in a store as a whole: readers get all of it, or a clear error.

A local folder is published by one rename. A store has no renames. So a writer first puts the object
`kafkafmt-incomplete.json` into the folder, and deletes it when all others are there. The deletion is the commit.
Readers that list a folder with this object raise `IncompleteFolderError`.

    {"command": "repair", "token": "4f0c..."}

A killed writer leaves the object. The next run of the command replaces what the killed one has uploaded. If the earlier
run was only suspended, it notices the other token before it deletes or publishes the next file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
import uuid
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import LOCK_FILE
from kafkafmt._util.staging import StagedFolder
from kafkafmt.storage.local import LOCAL
from kafkafmt.storage.paths import read_file, side_by_side
from kafkafmt.storage.upload import OtherWriterError

if TYPE_CHECKING:
    from kafkafmt.storage.paths import StoragePath
    from kafkafmt.storage.remote import RemotePath

INCOMPLETE = "kafkafmt-incomplete.json"
# The files that are uploaded at the same time. Each takes up to 64 MiB of memory.
_UPLOADS = 4


class IncompleteFolderError(OSError):
    """A command has not finished writing a folder of a store."""


def ensure_complete(folder: StoragePath, names: Container[str]) -> None:
    """Raise IncompleteFolderError if the names of a folder's files say that a command has not finished writing it."""
    if INCOMPLETE in names:
        message = f"incomplete: a command is writing it, or did not finish: run that again ({INCOMPLETE})"
        raise IncompleteFolderError(errno.EBUSY, message, str(folder))


class Publication:
    """The publication of a folder of a store by a command: `begin`, then write the folder, then `commit`."""

    def __init__(self, folder: RemotePath, command: str) -> None:
        self._folder, self._command, self._token = folder, command, uuid.uuid4().hex
        self._marker = folder / INCOMPLETE

    def begin(self) -> None:
        """Make readers refuse the folder. Raises OSError."""
        content = {"command": self._command, "token": self._token}
        self._folder.storage.write(self._marker, [(json.dumps(content) + "\n").encode()])

    def ensure_own(self) -> None:
        """Raise OtherWriterError if another run writes to the folder, or has published it since. Raises OSError."""
        found = _content(self._marker)
        if found is None or found.get("token") != self._token:
            message = "another command writes to this folder, too: run one after the other"
            raise OtherWriterError(errno.EBUSY, message, str(self._folder))

    def commit(self) -> None:
        """Make readers accept the folder. Raises as `ensure_own`."""
        self.ensure_own()
        self._folder.storage.delete(self._marker)


def publish_folder(source: Path, folder: RemotePath, command: str) -> None:
    """Copy all files below a local folder to a new folder of a store, and publish it.

    Raises as `ensure_new`, and OSError. What a killed run of the command has uploaded is deleted first.
    """
    ensure_new(folder, command)
    publication = Publication(folder, command)
    publication.begin()
    storage = folder.storage
    left = [folder / name for name, _ in storage.walk(folder) if name != INCOMPLETE]
    side_by_side(partial(_delete, publication), left, in_parallel=True)
    names = sorted(name for name, _ in LOCAL.walk(source) if name != LOCK_FILE)
    # The `.log` comes last: a segment never is without its indexes.
    for is_log in (False, True):
        chosen = [name for name in names if name.endswith(".log") == is_log]
        with ThreadPoolExecutor(_UPLOADS) as threads:
            list(threads.map(partial(_upload, publication, source, folder), chosen))
    publication.commit()


def _delete(publication: Publication, path: RemotePath) -> None:
    publication.ensure_own()  # else the file may be of a run that has published the folder since
    path.storage.delete(path)


def _upload(publication: Publication, source: Path, folder: RemotePath, name: str) -> None:
    folder.storage.upload(source / name, folder / name, publication.ensure_own)


def ensure_new(folder: RemotePath, command: str) -> None:
    """Raise FileExistsError if a folder has files, unless a killed run of the command has left it incomplete.

    Raises OSError (EROFS) for a folder of a read-only view.
    """
    if not folder.storage.is_writable:
        raise OSError(errno.EROFS, "cannot be written: expected a store, found a read-only view", str(folder))
    found = _content(folder / INCOMPLETE)
    if found is not None and found.get("command") == command:
        return
    if folder.is_file() or next(iter(folder.storage.walk(folder)), None) is not None:
        message = "already exists: name a new folder, or an empty one"
        raise FileExistsError(errno.EEXIST, message, str(folder))


class NewFolder:
    """A new folder at `target`, local or in a store: write its files below `path`, then `publish` them.

    `path` is a local folder: beside the target, or below the folder for temporary files. Raises as `ensure_new`, and
    OSError.
    """

    def __init__(self, target: StoragePath, command: str) -> None:
        self._target, self._command = target, command
        if isinstance(target, Path):
            self._staged = StagedFolder(target)
        else:
            ensure_new(target, command)
            self._staged = StagedFolder(private_folder(command) / "new")
        self.path = self._staged.path

    def publish(self) -> None:
        """Publish the folder: by a rename, or by `publish_folder`. Raises OSError."""
        if isinstance(self._target, Path):
            self._staged.publish()
        else:
            publish_folder(self.path, self._target, self._command)
            self._staged.remove()

    def remove(self) -> None:
        """Remove the local folder. Does nothing after `publish` or `remove`."""
        self._staged.remove()


def private_folder(command: str) -> Path:
    """Return the local folder of a command for files before they are uploaded. Only this user can read it.

    It is below the folder for temporary files. Raises PermissionError if another user has made it, and OSError.
    """
    folder = Path(tempfile.gettempdir()) / f"kafkafmt-{command}-{os.getuid()}.d"
    folder.mkdir(0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        message = "expected a folder that only this user can read, found another one: set TMPDIR"
        raise PermissionError(errno.EPERM, message, str(folder))
    return folder


def _content(marker: RemotePath) -> dict[str, str] | None:
    """Return the content of a marker; None if there is none."""
    try:
        data = read_file(marker)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}
