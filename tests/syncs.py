"""What was made durable (fsync), so that a test can show that a writer has left nothing out."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path

import pytest


class Syncs:
    """The files and folders that were flushed, as they were then."""

    def __init__(self) -> None:
        self._contents: dict[tuple[int, int], tuple[int, int]] = {}
        self._entries: dict[tuple[int, int], set[tuple[str, int]]] = {}

    @classmethod
    def noted(cls, monkeypatch: pytest.MonkeyPatch) -> Syncs:
        """Note each flush of this process from now on."""
        syncs, fsync = cls(), os.fsync

        def noted_fsync(descriptor: int) -> None:
            syncs._note(descriptor)
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted_fsync)
        return syncs

    def lost(self, folder: Path, but_for: Collection[str] = (".lock",)) -> list[str]:
        """What a power failure could take of a folder that is durable itself.

        Files that were changed after their last flush, and entries that were made after that of their folder.
        but_for: names of files and folders that may be lost.
        """
        found = []
        for path in [folder, *sorted(folder.rglob("*"))]:
            if not {*path.relative_to(folder).parts}.isdisjoint(but_for):
                continue
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                if self._contents.get(_key(status)) != (status.st_mtime_ns, status.st_size):
                    found.append(str(path.relative_to(folder)))
                continue
            names = {name for name, _ in _entries(path) - self._entries.get(_key(status), set())}
            found += [f"the entry of {(path / name).relative_to(folder)}" for name in names - {*but_for}]
        return sorted(found)

    def _note(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._entries[_key(status)] = _entries(descriptor)
        else:
            self._contents[_key(status)] = status.st_mtime_ns, status.st_size


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _entries(folder: Path | int) -> set[tuple[str, int]]:
    """The names in a folder with their inodes: a file that another one has replaced is a new entry."""
    with os.scandir(folder) as entries:
        return {(entry.name, entry.inode()) for entry in entries}
