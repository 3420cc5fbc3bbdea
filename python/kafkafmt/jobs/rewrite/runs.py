"""Surround a whole run: lock the target of a local one; say when the target in a store is complete.

A run into a store ends with an object that lists all segments of the run, as `kafkafmt-convert.json`:

    {"version": 1, "source": "/logs", "settings": {...}, "segments": {"orders-0/00000000000000000000.log": 1234}}

It exists only if the last run has succeeded. The run removes it before its first change, and writes it last, after it
has compared the sizes of all segments with a listing. Log directories of readers and brokers may have this file.

The log start offsets of all partitions are written at the beginning, before any segment, in one object.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.jobs.rewrite.log_starts import carry_log_starts
from kafkafmt.jobs.rewrite.sidecars import read_sidecar
from kafkafmt.jobs.rewrite.tasks import SegmentReport, SegmentTask
from kafkafmt.storage import RemotePath, StoragePath, read_file, side_by_side, storage_of, write_file
from kafkafmt.storage.remote import RemoteEntry

_VERSION = 1


@dataclass(frozen=True)
class RunDescription:
    """A run, for its manifest. name: the name of the manifest, without `.json`."""

    name: str
    source: str
    settings: dict[str, Any]


class Run:
    """A run that writes. Local ones need no manifest, since their segments are complete if they are there."""

    def begin(self, left: Sequence[SegmentTask]) -> None:
        """Note the segments that the run is going to write, before it begins."""

    def end(self, reports: Sequence[SegmentReport]) -> None:
        """Note the results of all segments. Raises OSError."""


@contextlib.contextmanager
def writing_to(
    target: StoragePath, tasks: Sequence[SegmentTask], description: RunDescription
) -> Iterator[Run]:
    """Yield the run that writes `tasks` into a target. Raises DirectoryLockedError, CheckpointError and OSError."""
    if isinstance(target, Path):
        with lock_log_directory(target):
            yield Run()
    else:
        yield StoreRun(target, tasks, description)


class StoreRun(Run):
    """A run that writes into a store."""

    def __init__(self, target: RemotePath, tasks: Sequence[SegmentTask], description: RunDescription) -> None:
        self._target, self._tasks, self._description = target, tasks, description
        self._manifest = target / f"{description.name}.json"

    def begin(self, left: Sequence[SegmentTask]) -> None:
        if left and self._manifest.exists():
            self._target.storage.delete(self._manifest)
        carry_log_starts(self._tasks, self._target)

    def end(self, reports: Sequence[SegmentReport]) -> None:
        # Another run, into other partitions, may have overwritten the checkpoint meanwhile.
        carry_log_starts(self._tasks, self._target)
        if any(report.status in ("failed", "gone") or report.kept for report in reports):
            return
        segments: dict[str, int] = {}
        for found in side_by_side(self._written, self._folders(), in_parallel=True):
            segments.update(found)
        content = {
            "version": _VERSION,
            "source": self._description.source,
            "settings": self._description.settings,
            "segments": dict(sorted(segments.items())),
        }
        data = (json.dumps(content, indent=1) + "\n").encode()
        if self._present() != data:
            write_file(self._manifest, data)

    def _folders(self) -> list[list[SegmentTask]]:
        """Return the tasks of each target folder."""
        folders: dict[str, list[SegmentTask]] = {}
        for task in self._tasks:
            folders.setdefault(str(task.target_folder), []).append(task)
        return list(folders.values())

    def _written(self, tasks: Sequence[SegmentTask]) -> dict[str, int]:
        """Return the sizes of the segments of one folder. Raises OSError if the listing differs from the sidecars."""
        folder = tasks[0].target_folder
        with storage_of(folder).entries(folder) as entries:
            sizes = {entry.name: entry.status.st_size for entry in entries if isinstance(entry, RemoteEntry)}
        written = {}
        for task in tasks:
            found = read_sidecar(task.sidecar)
            if found is None or found["outdated"]:
                raise OSError(
                    errno.EIO, "expected the result of this run, found another one", str(task.sidecar)
                )
            for name, size in found["targets"].items():
                if sizes.get(name) != size:
                    message = (
                        f"expected {size} bytes, found {sizes.get(name, 'no file')}: run the command again"
                    )
                    raise OSError(errno.EIO, message, str(folder / name))
                written[f"{folder.name}/{name}"] = size
        return written

    def _present(self) -> bytes | None:
        try:
            return read_file(self._manifest)
        except FileNotFoundError:
            return None
