"""What the driver does at the end of a job: find each staged segment its place, and have all of them be there.

A commit holds two locks: that of the log directory, which keeps brokers out, and one that other commits wait for. It
finishes first what a killed driver has begun there, and writes nothing that a reader sees before all is known to fit.
Offsets that are counted on begin behind the log that is there then; they are written over the staged ones in place, 8
bytes a batch.
"""

from __future__ import annotations

import errno
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

from kafkafmt._util.directory_lock import DirectoryLockedError, lock_log_directory
from kafkafmt.log.appender import ensure_not_open
from kafkafmt.log.directory import PartitionLog
from kafkafmt.log.segment import LOG_SUFFIX, segment_file_name
from kafkafmt.spark.sink.manifest import Manifest, PlacedSegment, StreamBatch, put_segment
from kafkafmt.spark.sink.offsets import move_offsets
from kafkafmt.spark.sink.staging import (
    POSITIONS_SUFFIX,
    StagedSegment,
    locked,
    owner_of,
    remove,
    stagings,
    sync,
)
from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)
_AT_ONCE = 8
_REMEDY = 'repartition("topic", "partition").sortWithinPartitions("offset") gives each partition to one task'

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Commit:
    """How segments are placed. overwrite: in place of the logs of the partitions that are written, not behind them."""

    folder: Path
    keeps_offsets: bool
    overwrite: bool = False

    def run(self, staging: str, segments: Sequence[StagedSegment], batch: StreamBatch | None = None) -> None:
        """Have all segments be there; those of a partition in the order of tasks, within it by offset.

        A batch of a stream that was committed before is left out. Raises DirectoryLockedError if a broker runs on the
        folder, BlockingIOError if another writer has one of the logs open, ValueError for offsets that overlap with
        each other or with the log, KafkaFormatError where damage hides the end of that, and OSError; nothing has
        happened then, but where the manifest is written already, which stays to be applied.
        """
        path = self.folder / staging
        with lock_log_directory(self.folder), locked(self.folder):
            _roll_forward(self.folder)
            if batch is not None and batch.is_committed(self.folder):
                _LOG.warning("%s: batch %d of this stream is there already", self.folder, batch.number)
                remove(path)
            elif segments:
                self._manifest(path, segments, batch).apply(path)
            if batch is not None:
                _remove_older(self.folder, batch.query)

    def _manifest(
        self, staging: Path, segments: Sequence[StagedSegment], batch: StreamBatch | None
    ) -> Manifest:
        """The manifest, written, of segments that are all in place and carry their offsets."""
        partitions: dict[TopicPartition, list[StagedSegment]] = {}
        for segment in segments:
            partitions.setdefault(segment.topic_partition, []).append(segment)
        _in_threads(lambda segment: self._ensure_staged(staging, segment), segments)
        _in_threads(lambda where: ensure_not_open(self.folder / str(where)), partitions)
        bases = _in_threads(lambda item: self._base_offsets(*item), partitions.items())
        placed = [
            (segment, base)
            for found, bases_of in zip(partitions.values(), bases, strict=True)
            for segment, base in sorted(zip(found, bases_of, strict=True), key=lambda pair: pair[1])
        ]
        _in_threads(lambda pair: _move(staging, *pair), placed)
        targets = [PlacedSegment(str(one.topic_partition), one.stem, base) for one, base in placed]
        manifest = Manifest(tuple(targets), batch=batch)
        if self.overwrite:
            manifest = Manifest(replaced=_folders(staging, targets), batch=batch)
        manifest.write(staging)
        return manifest

    def _ensure_staged(self, staging: Path, segment: StagedSegment) -> None:
        path = staging / f"{segment.stem}{LOG_SUFFIX}"
        found = path.stat().st_size if path.exists() else "no file"
        if found != segment.size_in_bytes:
            message = (
                f"expected {segment.size_in_bytes} bytes that a task wrote, found {found}: driver and "
                "executors have to share this folder"
            )
            raise FileNotFoundError(errno.ENOENT, message, str(path))

    def _base_offsets(self, where: TopicPartition, segments: list[StagedSegment]) -> list[int]:
        """The base offset of each segment in its log."""
        path = self.folder / str(where)
        log = PartitionLog(path) if path.exists() and not self.overwrite else None
        if self.keeps_offsets:
            ordered = sorted(segments, key=lambda segment: segment.base_offset)
            for before, after in pairwise(ordered):
                if after.base_offset < before.next_offset:
                    raise ValueError(
                        f"partition {where}: offsets {_range(before)} and {_range(after)} overlap: {_REMEDY}"
                    )
            if log is not None:
                _ensure_free(log, where, ordered)
            return [segment.base_offset for segment in segments]
        spans = (segment.next_offset - segment.base_offset for segment in segments)
        return list(accumulate(spans, initial=0 if log is None else log.closed_end_offset()))[:-1]


def abort(folder: Path, names: Iterable[str]) -> None:
    """Remove what a job staged. Where it is committed, finish it: there is no way back.

    If a broker runs on the folder, what is committed is left to the next write. The job's own hidden folder is removed
    nevertheless: a broker does not start with such a folder in its log directory.
    """
    try:
        with lock_log_directory(folder), locked(folder):
            for name in names:
                _finish(folder / name, or_else_remove=True)
    except DirectoryLockedError:
        for name in names:
            if Manifest.read(folder / name) is None:
                remove(folder / name)


def recover(folder: str | os.PathLike[str], *, remove_staging: bool = False) -> None:
    """Finish the commits to a log directory that a killed driver left, and remove what dead jobs staged.

    remove_staging: what cannot be told dead, too, as of a driver on another machine; only where no job writes to
    the folder. Every write to the folder does this first, but for that. Raises DirectoryLockedError, before anything is
    touched, if a broker runs on the folder.
    """
    path = Path(folder)
    with lock_log_directory(path), locked(path):
        for staging in _roll_forward(path):
            if remove_staging:
                remove(staging)


def _roll_forward(folder: Path) -> list[Path]:
    """Finish commits, remove what dead jobs staged; the staging folders that are left."""
    for staging in stagings(folder):
        owner = owner_of(staging)
        _finish(staging, or_else_remove=owner is not None and owner.is_dead())
    return stagings(folder)


def _finish(staging: Path, *, or_else_remove: bool) -> None:
    manifest = Manifest.read(staging)
    if manifest is not None:
        manifest.apply(staging)
    elif or_else_remove:
        remove(staging)


def _remove_older(folder: Path, query: str) -> None:
    """Remove what failed batches of a stream staged, which runs one batch at a time."""
    for staging in stagings(folder):
        owner = owner_of(staging)
        if owner is not None and owner.query == query:
            remove(staging)


def _ensure_free(log: PartitionLog, where: TopicPartition, segments: Sequence[StagedSegment]) -> None:
    """Raise ValueError where the log has offsets of the segments, which ascend, or one that begins among them."""
    there = log.segments()
    bases = [segment.base_offset for segment in there]
    if there and segments[-1].base_offset >= bases[-1]:
        log.closed_end_offset()
    ends: dict[int, int] = {}
    for segment in segments:
        after = bisect_right(bases, segment.base_offset)
        for number in range(max(after - 1, 0), min(after + 1, len(there))):
            if number not in ends:
                ends[number] = there[number].find_next_offset()
            if bases[number] < min(segment.next_offset, ends[number]) and segment.base_offset < ends[number]:
                raise ValueError(
                    f"partition {where}: offsets {_range(segment)} overlap with those that are there, "
                    f"{bases[number]} to {ends[number] - 1} ({there[number].path})"
                )
            if segment.base_offset < bases[number] < segment.next_offset:
                name = segment_file_name(bases[number])
                raise ValueError(f"partition {where}: {name} begins within offsets {_range(segment)}")


def _range(segment: StagedSegment) -> str:
    return f"{segment.base_offset} to {segment.next_offset - 1}"


def _move(staging: Path, segment: StagedSegment, base_offset: int) -> None:
    if base_offset != segment.base_offset:
        log, positions = (staging / f"{segment.stem}{suffix}" for suffix in (LOG_SUFFIX, POSITIONS_SUFFIX))
        move_offsets(log, positions, base_offset - segment.base_offset)


def _folders(staging: Path, segments: Sequence[PlacedSegment]) -> tuple[str, ...]:
    """Put the segments into folders that are to be those of their partitions; the names of these."""
    numbers: dict[str, int] = {}
    for segment in segments:
        number = numbers.setdefault(segment.partition, len(numbers))
        path = staging / f"{number}.new"
        path.mkdir(exist_ok=True)
        put_segment(staging / segment.stem, path, segment.base_offset)
    sync([staging / f"{number}.new" for number in numbers.values()])
    return tuple(numbers)


def _in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(function, items))
