"""Unpack the archive for Spark's executors when it is imported. `archive` adds this file to the archive.

Python cannot load native modules from a zip. So the packages at the top of the archive are stand-ins. When one is
imported, `become` unpacks the archive, once for each machine and user. It puts the unpacked folder on `sys.path` before
the archive, and loads the real package instead of the stand-in.

The folder is in the folder of temporary files (TMPDIR), is accessible to this user only, and is named by the digest of
its content. Other workers wait while one unpacks. Files that were changed or removed since are detected and unpacked
again. If the archive is for another platform, the packages after it on `sys.path` are loaded.

This module runs before kafkafmt can be imported. It imports only the standard library, and so takes its lock itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

MANIFEST = "kafkafmt-archive.json"
SITE = "kafkafmt-site/"  # no valid module name, so nothing is imported from this folder of the zip

_UNPACKED_MTIME = 315532800  # 1980, the earliest time of a zip; a file with another time was changed


def become(name: str) -> None:
    """Replace the stand-in `name`, which is being imported, by the real package. Raises ImportError."""
    module = sys.modules[name]
    stand_in = module.__spec__
    spec = _find(name, __file__.rpartition(os.sep)[0])  # the archive, as `sys.path` names it
    assert spec.loader is not None
    assert spec.submodule_search_locations is not None
    module.__path__ = spec.submodule_search_locations
    module.__file__ = spec.origin
    module.__loader__ = spec.loader
    spec.loader.exec_module(module)
    # Set it last: other threads wait for the module while its original spec is being loaded. If the package came from
    # another archive, it already has its own spec.
    if module.__spec__ is stand_in:
        module.__spec__ = spec


def _find(name: str, archive: str) -> ModuleSpec:
    try:
        with zipfile.ZipFile(archive) as opened:
            manifest = json.loads(opened.read(MANIFEST))
            fits = manifest["native_suffix"] in EXTENSION_SUFFIXES
            path = [str(unpacked(opened, manifest["digest"]))] if fits else _path_without(archive)
    except OSError as error:
        raise ImportError(
            f"{archive} cannot be unpacked under {tempfile.gettempdir()}, which TMPDIR sets: {error}",
            name=name,
        ) from error
    if fits and path[0] not in sys.path:
        sys.path.insert(sys.path.index(archive) if archive in sys.path else 0, path[0])
    spec = PathFinder.find_spec(name, path)
    if spec is None:
        raise ImportError(
            f"{archive} has native modules *{manifest['native_suffix']}, this Python loads *{EXTENSION_SUFFIXES[0]}: "
            "build one for this platform with kafkafmt spark-archive --wheel",
            name=name,
        )
    return spec


def _path_without(archive: str) -> list[str]:
    return [entry for entry in sys.path if entry != archive]


def unpacked(archive: zipfile.ZipFile, digest: str) -> Path:
    """Return the folder with the content of SITE in the archive. Unpacks it if needed. digest: the folder's name."""
    private = _private_folder(Path(tempfile.gettempdir()))
    folder = private / digest
    members = [info for info in archive.infolist() if info.filename.startswith(SITE)]
    if _is_whole(folder, members):
        return folder
    with (private / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(folder, members):
            _unpack(archive, members, folder)
    return folder


def _private_folder(parent: Path) -> Path:
    """Return a folder that only this user can access, the same one each time.

    Another user may have created a folder with a predictable name under /tmp. Such folders are not used.
    """
    first = parent / f"kafkafmt-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        first.mkdir(0o700)
    for folder in (first, *sorted(parent.glob(f"{first.name}-*"))):
        if _is_private(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{first.name}-", dir=parent))


def _is_private(folder: Path) -> bool:
    try:
        status = folder.lstat()  # do not follow a link: its target may change
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _is_whole(folder: Path, members: list[zipfile.ZipInfo]) -> bool:
    """Return whether all files are as they were unpacked. A cleaner of /tmp may have removed some."""
    try:
        statuses = [os.lstat(folder / info.filename[len(SITE) :]) for info in members]
    except OSError:
        return False
    return all(
        stat.S_ISREG(status.st_mode)
        and status.st_size == info.file_size
        and status.st_mtime == _UNPACKED_MTIME
        for info, status in zip(members, statuses)  # noqa: B905  (older Pythons must reach their error message)
    )


def _unpack(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path) -> None:
    """Unpack into `folder`, which appears once it is complete. The caller holds the lock."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    for leftover in (temporary, folder):
        if os.path.lexists(leftover):
            _remove(leftover)
    for info in members:
        path = Path(archive.extract(info, temporary))
        os.utime(path, (path.stat().st_atime, _UNPACKED_MTIME))
    (temporary / SITE).rename(folder)
    temporary.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
