"""Where one attempt at a segment writes: a local folder, or a folder of a store.

Both have the same steps, in this order: read the sidecar of earlier attempts, write segments to temporary files, write
the sidecar, commit the segments, remove outdated ones, write the sidecar again.

`LocalTarget` renames files, under a lock. A store has no renames and no locks. `StoreTarget` replaces them as follows.

**What makes a segment visible.** A segment is built in a temporary local folder, and uploaded as whole objects. Readers
list `.log` objects. So the `.log` is the commit of a segment, and its indexes are uploaded before it. A store publishes
an object as a whole, so no reader gets a part of one.

**Replaced segments.** The indexes of the old `.log` would be wrong for the new one, and the other way round. So the old
indexes are deleted first, and the new ones are uploaded after the `.log`. Meanwhile readers find no index, and scan.

**Concurrent attempts** (speculation of Spark, several processes). Attempts at the same segment with the same options
write identical bytes. So each object has the same content, whichever attempt wrote it last. An attempt checks again,
before it commits, whether another one is done, or has other options. Without locks this check cannot exclude an
attempt that was delayed between the check and its upload. If the options or the source have changed meanwhile, its
segment has another size than the sidecar says. The next run then writes the segment again. So run commands with
different options one after the other.

**Killed attempts.** The sidecar is written first, and lists the segments and their sizes. A segment is done if its
`.log` has that size, its indexes exist, and nothing is listed as outdated. Until then the next run writes it again. A
killed upload leaves no object. The temporary folder is removed by the next attempt on that machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import make_folder, replace_file
from kafkafmt._util.locks import locked_file
from kafkafmt._util.staging import StagedFolder
from kafkafmt.jobs.rewrite.log_starts import carry_log_start
from kafkafmt.jobs.rewrite.sidecars import read_sidecar
from kafkafmt.jobs.rewrite.tasks import SegmentTask
from kafkafmt.log import SegmentWriter, remove_stale_temporaries
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from kafkafmt.storage import RemotePath, RemoteStatus, StoragePath, storage_of, write_file
from kafkafmt.storage.publication import private_folder

_INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
_STAGING_NAME = "rewrite"


class SegmentTarget(Protocol):
    """The target of one attempt at a segment. Its methods raise OSError."""

    def opened(self) -> AbstractContextManager[None]:
        """Prepare the target for `writer`, and release it after the block."""

    def locked(self) -> AbstractContextManager[None]:
        """Exclude other attempts during the block, if the target can; in any case see what they have written."""

    def writer(self, base_offset: int) -> SegmentWriter:
        """Return the writer of a new segment, invisible until `commit`."""

    def commit(self, writer: SegmentWriter) -> None:
        """Make a segment visible. It replaces one of the same name."""

    def read_sidecar(self, path: StoragePath) -> dict[str, Any] | None:
        """Return the content of a sidecar; None if there is none."""

    def write_sidecar(self, path: StoragePath, data: bytes) -> None:
        """Write a sidecar, durably."""

    def remove_sidecar(self, path: StoragePath) -> None:
        """Remove a sidecar."""

    def has_segment(self, name: str) -> bool:
        """Whether there is a `.log` of this name, complete or not."""

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Return the sizes of those segments that exist."""

    def has_indexes(self, names: Iterable[str]) -> bool:
        """Whether the segments have their indexes. A local commit renames these first, so they are there."""

    def remove_segments(self, names: Iterable[str]) -> None:
        """Remove segments with their indexes."""

    def forget_dead(self) -> None:
        """Remove what a killed attempt has left, beside the segments."""


def target_of(task: SegmentTask) -> SegmentTarget:
    """Return the target of an attempt at a segment."""
    folder = task.target_folder
    return LocalTarget(task, folder) if isinstance(folder, Path) else StoreTarget(task, folder)


class LocalTarget:
    """A local folder. Attempts commit by renames, one after the other."""

    def __init__(self, task: SegmentTask, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._sidecar = _local(task.sidecar)
        self.lock = self._sidecar.with_name(f".{self._sidecar.name}.lock")

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with lock_log_directory(self._folder.parent):
            make_folder(self._folder)
            make_folder(self._sidecar.parent)
            carry_log_start(self._task, self._folder.parent)
            yield

    def locked(self) -> AbstractContextManager[None]:
        return locked_file(self.lock, remove=True)

    def writer(self, base_offset: int) -> SegmentWriter:
        return SegmentWriter(self._folder, base_offset, replace=True)

    def commit(self, writer: SegmentWriter) -> None:
        writer.commit()

    def read_sidecar(self, path: StoragePath) -> dict[str, Any] | None:
        return read_sidecar(path)

    def write_sidecar(self, path: StoragePath, data: bytes) -> None:
        replace_file(_local(path), data)

    def remove_sidecar(self, path: StoragePath) -> None:
        _local(path).unlink(missing_ok=True)

    def has_segment(self, name: str) -> bool:
        return (self._folder / name).exists()

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        paths = [self._folder / name for name in names]
        return {path.name: path.stat().st_size for path in paths if path.exists()}

    def has_indexes(self, names: Iterable[str]) -> bool:
        return True

    def remove_segments(self, names: Iterable[str]) -> None:
        for name in names:
            for suffix in (LOG_SUFFIX, *_INDEX_SUFFIXES, TRANSACTION_INDEX_SUFFIX):
                (self._folder / name).with_suffix(suffix).unlink(missing_ok=True)

    def forget_dead(self) -> None:
        remove_stale_temporaries(self._folder)

    def remove_lock(self) -> None:
        """Remove the lock file of a killed attempt. Waits for a running attempt, which removes it itself."""
        if self.lock.exists():
            with self.locked():
                pass


class StoreTarget:
    """A folder of a store. listing: the files of the folder, if they are known; else the store is asked for each."""

    def __init__(self, task: SegmentTask, folder: RemotePath) -> None:
        self._task, self._folder = task, folder
        self._staged: StagedFolder | None = None
        self._sidecars: dict[str, dict[str, Any] | None] = {}
        self.listing: Mapping[str, RemoteStatus] | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        self._staged = StagedFolder(private_folder(_STAGING_NAME) / "segment")
        try:
            yield
        finally:
            self._staged.remove()
            self._staged = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.listing = None
        self._sidecars.clear()
        yield

    def writer(self, base_offset: int) -> SegmentWriter:
        assert self._staged is not None, "within opened()"
        # In a subfolder: the writer locks its folder, and the staged folder is locked already.
        return SegmentWriter(self._staged.path / "segments", base_offset)

    def commit(self, writer: SegmentWriter) -> None:
        log = writer.commit()
        indexes = [log.with_suffix(suffix) for suffix in _INDEX_SUFFIXES]
        transactions = log.with_suffix(TRANSACTION_INDEX_SUFFIX)
        if transactions.exists():
            indexes.append(transactions)
        if self.has_segment(log.name):
            self._delete(log.name, (*_INDEX_SUFFIXES, TRANSACTION_INDEX_SUFFIX))
            self._put([log, *indexes])
        else:
            self._delete(log.name, () if transactions in indexes else (TRANSACTION_INDEX_SUFFIX,))
            self._put([*indexes, log])

    def read_sidecar(self, path: StoragePath) -> dict[str, Any] | None:
        if path.name not in self._sidecars:
            self._sidecars[path.name] = read_sidecar(path)
        return self._sidecars[path.name]

    def write_sidecar(self, path: StoragePath, data: bytes) -> None:
        self._sidecars.clear()
        write_file(path, data)

    def remove_sidecar(self, path: StoragePath) -> None:
        self._sidecars.clear()
        storage_of(path).delete(path)

    def has_segment(self, name: str) -> bool:
        return self._at(name).exists()

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        found = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found[name] = self._at(name).stat().st_size
        return found

    def has_indexes(self, names: Iterable[str]) -> bool:
        return all(
            self._at(name).with_suffix(suffix).exists() for name in names for suffix in _INDEX_SUFFIXES
        )

    def remove_segments(self, names: Iterable[str]) -> None:
        for name in names:
            self._delete(name, (LOG_SUFFIX, *_INDEX_SUFFIXES, TRANSACTION_INDEX_SUFFIX))

    def forget_dead(self) -> None:
        """Do nothing: an attempt leaves no object that is not listed in its sidecar."""

    def _at(self, name: str) -> RemotePath:
        if self.listing is None:
            return self._folder / name
        path = f"{self._folder.path}/{name}"
        return RemotePath(self._folder.storage, path, self.listing.get(name), self.listing)

    def _put(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._folder.storage.put(path, self._folder / path.name)

    def _delete(self, name: str, suffixes: Iterable[str]) -> None:
        for suffix in suffixes:
            path = self._folder / Path(name).with_suffix(suffix).name
            if path.exists():  # some stores create a folder when a missing object is deleted
                path.storage.delete(path)


def _local(path: StoragePath) -> Path:
    assert isinstance(path, Path), "a sidecar is in the storage of its segment"
    return path
