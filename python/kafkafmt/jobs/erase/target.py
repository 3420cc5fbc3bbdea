"""The folders of an erasure, from its first segment until the new log directory is published.

Beside the target DST there is `.DST.erasing` meanwhile:

    .DST.erasing/log/       the new log directory, which becomes DST
    .DST.erasing/state/     a file for each segment: its source, its counts and its erased offsets

A rename of `log` to DST publishes the result. So DST is complete and proven, or it does not exist. The next run
continues one that was killed. If it was killed after the rename, the next run prints the report from `state`.

If DST is in a store, this folder is a private one below the local folder for temporary files. The files of `log` are
uploaded when they are proven. `kafkafmt.storage.publication` says how readers are kept from a part of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafkafmt._util.files import make_folder, publish, replace_file, sync_path
from kafkafmt._util.locks import locked_file
from kafkafmt.jobs.erase.batches import COUNTS
from kafkafmt.jobs.erase.options import FROM_SEGMENT_START, EraseOptions, settings_of
from kafkafmt.jobs.rewrite import (
    RewriteError,
    SegmentTask,
    ensure_folders,
    is_made_from,
    plan_segments,
    read_sidecar,
    source_state,
    target_of,
)
from kafkafmt.log import partition_metadata
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX
from kafkafmt.log.topic_configs import FILE_NAME as TOPICS_INI
from kafkafmt.log.topics import Topics
from kafkafmt.storage import RemotePath, StoragePath, read_file, storage_of, write_file
from kafkafmt.storage.publication import INCOMPLETE, ensure_new, private_folder, publish_folder
from kafkafmt.types import TopicPartition

_COMMAND = "erase"
_SIDECAR_SUFFIX = ".erased"
# Files of a partition that do not depend on its records.
_CARRIED_FILE = re.compile(
    rf"leader-epoch-checkpoint|{re.escape(partition_metadata.FILE_NAME)}|\d{{20}}{re.escape(SNAPSHOT_SUFFIX)}"
)


@dataclass(frozen=True)
class EraseTarget:
    """The folder into which an erasure writes: `path`, which must not exist or be empty."""

    path: StoragePath

    @property
    def working(self) -> Path:
        """The folder of an unfinished erasure."""
        if isinstance(self.path, RemotePath):
            return private_folder(_COMMAND) / hashlib.sha256(str(self.path).encode()).hexdigest()[:32]
        path = self.path.absolute()
        if not path.name:
            raise RewriteError(f"{path}: expected a new or an empty folder")
        return path.with_name(f".{path.name}.erasing")

    @property
    def log(self) -> Path:
        """The new log directory, before it is published."""
        return self.working / "log"

    @property
    def state(self) -> Path:
        """The folder of the folders of sidecars, one for each partition."""
        return self.working / "state"

    @contextlib.contextmanager
    def locked(self, source: StoragePath) -> Iterator[None]:
        """Wait for other erasures into this folder, and keep others out during the block.

        Raises RewriteError, before anything is created, if it cannot be the target for `source`.
        """
        ensure_folders(source, self.path)
        if isinstance(self.path, Path):
            make_folder(self.path.absolute().parent)
        with locked_file(self.working.with_name(f"{self.working.name}.lock"), remove=True):
            yield

    @property
    def is_published(self) -> bool:
        """Whether an earlier run has published the result, and was killed before it removed its state."""
        return (isinstance(self.path, RemotePath) or not self.log.exists()) and self._is_complete()

    def _is_complete(self) -> bool:
        """Whether the target is complete, and has all segments that the state lists, with their sizes."""
        sidecars = [(one.parent, read_sidecar(one)) for one in self.state.glob(f"*/*{_SIDECAR_SUFFIX}")]
        if not sidecars:
            return False
        found = {name: status.st_size for name, status in storage_of(self.path).walk(self.path)}
        return INCOMPLETE not in found and all(
            found.get(f"{folder.name}/{name}") == size
            for folder, one in sidecars
            for name, size in (one or {"targets": {"": -1}})["targets"].items()
        )

    def ensure_published_with(
        self,
        options: EraseOptions,
        source: StoragePath,
        topics: Topics = None,
        *,
        from_segment_start: bool = False,
    ) -> None:
        """Raise RewriteError if the run that has published the result was not the same.

        The same are the keys and options, the partitions, the ids of their topics, and the segments that the source
        still has, which must not have changed. Retention may have raised the log start offsets, and deleted segments
        below them, since.
        """
        tasks = self._tasks(source, self.path, topics, from_segment_start)
        expected = {task.sidecar: task.segment.path for task in tasks}
        firsts: dict[StoragePath, StoragePath] = {}
        for path in sorted(expected, key=str):
            firsts.setdefault(path.parent, path)
        sidecars: dict[StoragePath, dict[str, Any] | None] = {
            path: read_sidecar(path) for path in self.state.glob(f"*/*{_SIDECAR_SUFFIX}")
        }
        for path in sorted({*expected, *sidecars}, key=str):
            segment, found = expected.get(path), sidecars.get(path)
            first = firsts.get(path.parent)
            if segment is None and first is not None and str(path) < str(first):  # now below the log start
                segment = expected[first].with_name(f"{path.stem}{LOG_SUFFIX}")
            if segment is None or found is None or not is_made_from(found, segment):
                raise RewriteError(
                    f"{self.path}: an earlier run has written it from other segments: "
                    f"expected {segment or 'none'}, found {found['source'] if found else 'none'}: name a new folder"
                )
            if path in expected and {**found, **source_state(segment)} != found:
                raise RewriteError(
                    f"{self.path}: {segment} has changed since an earlier run has written it: name a new folder"
                )
        self._ensure_same_topics(tasks)
        wanted = {**settings_of(options), FROM_SEGMENT_START: from_segment_start}
        if not all(
            {**one, **wanted} == one and (not one.get("damage") or options.on_corrupt == "skip")
            for one in filter(None, sidecars.values())
        ):
            raise RewriteError(
                f"{self.path}: an earlier run has written it with other keys or options: name a new folder"
            )

    def _ensure_same_topics(self, tasks: Sequence[SegmentTask]) -> None:
        """Raise RewriteError if a topic was created anew since the result was published."""
        for target, folder in sorted(_folders(tasks).items(), key=str):
            expected, found = read_topic_id(folder), read_topic_id(target)
            if expected != found:
                raise RewriteError(
                    f"{target}: expected topic id {expected or 'none'}, as {folder} has it, found {found or 'none'}: "
                    "name a new folder"
                )

    def plan(
        self, source: StoragePath, topics: Topics = None, *, from_segment_start: bool = False
    ) -> list[SegmentTask]:
        """List the segments of a log directory or partition folder as tasks, as `plan_segments`.

        Raises RewriteError also if the target exists and is not empty.
        """
        ensure_folders(source, self.path)
        if isinstance(self.path, RemotePath):
            ensure_new(self.path, _COMMAND)
        elif self.path.exists() and any(self.path.iterdir()):
            raise RewriteError(f"{self.path}: expected a new or an empty folder, found files in it")
        return self._tasks(source, self.log, topics, from_segment_start)

    def _tasks(
        self, source: StoragePath, target: StoragePath, topics: Topics, from_segment_start: bool
    ) -> list[SegmentTask]:
        return plan_segments(
            source,
            target,
            topics,
            _SIDECAR_SUFFIX,
            sidecar_root=self.state,
            from_segment_start=from_segment_start,
        )

    def remove_deleted(self, tasks: Sequence[SegmentTask]) -> None:
        """Remove the segments of an earlier run whose records are all below the log start offset now. Raises OSError.

        Their source may still be there: a broker deletes it later.
        """
        firsts: dict[StoragePath, SegmentTask] = {}
        for task in sorted(tasks, key=lambda task: task.segment.base_offset):
            firsts.setdefault(task.target_folder, task)
        for task in firsts.values():
            target, first = target_of(task), task.segment.base_offset
            for base in sorted(task.sidecars.base_offsets()):
                if base < first:
                    sidecar = task.sidecars.of(base)
                    target.remove_segments((read_sidecar(sidecar) or {"targets": ()})["targets"])
                    target.remove_sidecar(sidecar)

    def carry_files(self, tasks: Sequence[SegmentTask]) -> None:
        """Copy the files of the partitions that do not depend on records. Raises OSError.

        These are leader epochs, the topic id and snapshots of producer states; also `topics.ini` of the log directory.
        """
        folders = _folders(tasks)
        for target, folder in folders.items():
            with storage_of(folder).entries(folder) as entries:
                names = sorted(entry.name for entry in entries if _CARRIED_FILE.fullmatch(entry.name))
            for name in names:
                with contextlib.suppress(FileNotFoundError):  # a broker removes old snapshots
                    write_file(target / name, read_file(folder / name))
        for directory in {folder.parent for folder in folders.values()}:
            with contextlib.suppress(FileNotFoundError):
                replace_file(self.log / TOPICS_INI, read_file(directory / TOPICS_INI))

    def unproven(self, proven: Iterable[StoragePath]) -> list[Path]:
        """Return the segments in the new log directory that are not among `proven`."""
        return sorted(set(self.log.glob(f"*/*{LOG_SUFFIX}")) - set(proven))

    def publish(self) -> None:
        """Rename the new log directory to the target, durably, or upload it. Raises OSError."""
        if isinstance(self.path, RemotePath):
            publish_folder(self.log, self.path, _COMMAND)
            return
        for folder in self.log.iterdir():
            if folder.is_dir():
                sync_path(folder)
        publish(self.log, self.path.absolute())

    def remove_state(self) -> None:
        """Remove what is left of the erasure beside the target."""
        shutil.rmtree(self.working, ignore_errors=True)


def _folders(tasks: Iterable[SegmentTask]) -> dict[StoragePath, StoragePath]:
    """Return the source folder of each target folder."""
    return {task.target_folder: task.segment.path.parent for task in tasks}


def partition_rows(target: EraseTarget) -> Iterator[dict[str, Any]]:
    """Iterate the report: a dictionary for each partition, from the files of its segments, before they are removed.

    It has the fields of `EraseCounts`, `damage`, and `erased_offsets`: ranges of the first and the last offset.
    """
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted(target.state.iterdir()):
            yield _partition_row(target.path / folder.name, sorted(folder.glob(f"*{_SIDECAR_SUFFIX}")))


def _partition_row(folder: StoragePath, sidecars: Sequence[Path]) -> dict[str, Any]:
    where = TopicPartition.from_folder_name(folder.name)
    topic, partition = where or (None, None)
    row: dict[str, Any] = {"topic": topic, "partition": partition, "target": str(folder)}
    row |= {"segments": len(sidecars), **dict.fromkeys(COUNTS, 0), "damage": [], "erased_offsets": []}
    for path in sidecars:
        found = read_sidecar(path)
        if found is None:
            raise RewriteError(f"{path}: expected the description of a segment, found other content")
        for name in COUNTS:
            row[name] += found[name]
        row["damage"] += found["damage"]
        row["erased_offsets"] += found["erased_offsets"]
    return row
