"""How the archive for Spark's executors unpacks itself. `archive` puts this file into it, beside what it unpacks.

Python loads no native module from a zip. So the packages at the top of the archive only stand in for the real
ones: when one is imported, `become` unpacks all that the archive holds into a folder of this user, once a machine,
puts that on `sys.path` ahead of the archive, and runs the real package in place of the stand-in.

The folder is under the one for temporary files (TMPDIR), nobody but this user may enter it, and it is named by its
content. Workers that come at once wait for the first one; files that were changed or cleaned away since are noticed
and unpacked again. An archive for another platform makes way for whatever comes behind it on `sys.path`.

This runs before kafkafmt is there: it imports the standard library only.
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
SITE = "kafkafmt-site/"  # no name of a module: nothing is imported from there while it is in the zip

_UNPACKED_MTIME = 315532800  # 1980, the first that a zip knows: a file with another one was changed


def become(name: str) -> None:
    """Make the stand-in `name`, which is being imported, the package of that name. Raises ImportError."""
    module = sys.modules[name]
    stand_in = module.__spec__
    spec = _find(name, __file__.rpartition(os.sep)[0])  # the archive, as `sys.path` names it
    assert spec.loader is not None
    assert spec.submodule_search_locations is not None
    module.__path__ = spec.submodule_search_locations
    module.__file__ = spec.origin
    module.__loader__ = spec.loader
    spec.loader.exec_module(module)
    # Only now, as other threads wait for a module as long as the spec that it came with is being loaded. Where the
    # package was that of another archive, it has its own by now.
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
    """The folder, named by `digest`, that holds what is under SITE in the archive; unpacked where need be."""
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
    """A folder of this user that nobody else may enter, always the same one.

    Names under /tmp can be guessed, and others may take them first: what is not ours is passed over.
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
        status = folder.lstat()  # a link is not followed: it may point elsewhere the next time
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def _is_whole(folder: Path, members: list[zipfile.ZipInfo]) -> bool:
    """Whether all files are there as they were unpacked: whoever cleans /tmp may take some of them."""
    try:
        statuses = [os.lstat(folder / info.filename[len(SITE) :]) for info in members]
    except OSError:
        return False
    return all(
        stat.S_ISREG(status.st_mode)
        and status.st_size == info.file_size
        and status.st_mtime == _UNPACKED_MTIME
        for info, status in zip(members, statuses)  # noqa: B905  (older Pythons are to get as far as being told)
    )


def _unpack(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path) -> None:
    """Unpack into `folder`, which is there only once it is whole. The caller holds the lock."""
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
