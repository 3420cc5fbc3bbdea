"""What is to be converted, how, and what became of it: plain values that travel to other processes and machines."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kafkafmt.down_conversion import DEFAULT_CHUNK_SIZE
from kafkafmt.log import Damage, LogDirectory, PartitionLog, Segment
from kafkafmt.types import Codec

SIDECAR_SUFFIX = ".converted"

OnCorrupt = Literal["fail", "skip"]
Status = Literal["converted", "unchanged", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class ConvertOptions:
    """How segments are converted.

    to_magic: 0, 1 or 2.
    on_corrupt: "fail" gives a segment with damage up; "skip" leaves the damaged batches out and tells of them.
    zstd_fallback: the codec that zstd batches get below v2, which has no zstd; None gives the segment up.
    chunk_size: source bytes that are read and converted at a time.
    """

    to_magic: int
    on_corrupt: OnCorrupt = "fail"
    zstd_fallback: Codec | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE


@dataclass(frozen=True)
class SegmentTask:
    """A segment to convert, and the partition folder that the result goes to."""

    segment: Segment
    target_folder: Path
    source_bytes: int

    @property
    def target(self) -> Path:
        return self.target_folder / self.segment.path.name

    @property
    def sidecar(self) -> Path:
        return self.target.with_suffix(SIDECAR_SUFFIX)


@dataclass
class SegmentReport:
    """What became of one segment.

    status: "converted"; "unchanged": it was converted by an earlier run; "failed": nothing of it is there.
    damage: what was left out, or, of a failed segment, what it failed at.
    error, error_type: why it failed, with path, position and offsets where those are known; the exception's class.
    """

    path: str
    target: str
    topic: str | None
    partition: int | None
    base_offset: int
    status: Status = "converted"
    source_bytes: int = 0
    target_bytes: int = 0
    records_converted: int = 0
    seconds: float = 0.0
    damage: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None

    @classmethod
    def of(cls, task: SegmentTask) -> SegmentReport:
        """A report on a segment of which nothing is known yet."""
        path = task.segment.path
        topic, partition = task.segment.topic_partition or (None, None)
        base_offset = task.segment.base_offset
        return cls(str(path), str(task.target), topic, partition, base_offset, source_bytes=task.source_bytes)

    def fail(self, error: Exception) -> SegmentReport:
        """Note why nothing came of it; returns itself."""
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        elif self.path not in message:
            message = f"{self.path}: {message}"
        self.status, self.error, self.error_type = "failed", message, type(error).__name__
        return self


class ConvertError(ValueError):
    """Source and target folders that a conversion cannot start with."""


def plan(source: Path, target: Path, topics: str | None = None) -> list[SegmentTask]:
    """The segments under a log directory or partition folder, largest first.

    topics: a shell pattern that names of topics must match. Raises ConvertError where there is nothing to do or
    the target lies in the source.
    """
    if not source.is_dir():
        raise ConvertError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConvertError(f"{target}: the target folder is in the source folder {source}")
    if target.exists() and not target.is_dir():
        raise ConvertError(f"{target}: not a folder")
    tasks = []
    found = False
    for log in partition_logs(source):
        found = True
        if topics is None or fnmatch.fnmatchcase(
            log.topic_partition.topic if log.topic_partition else "", topics
        ):
            folder = target / log.path.resolve().name
            if folder.resolve() == log.path.resolve():
                raise ConvertError(f"{target}: the segments of {log.path} would go into that folder itself")
            tasks += [_task(segment, folder) for segment in log.segments()]
    if not found:
        raise ConvertError(
            f"{source}: no segments here, neither in it nor in folders named <topic>-<partition>"
        )
    if not tasks:
        raise ConvertError(f"{source}: no topic matches {topics!r}")
    return sorted(tasks, key=lambda task: (-task.source_bytes, task.segment.path))


def partition_logs(source: Path) -> list[PartitionLog]:
    """The logs under a log directory, or the one in a folder that itself holds segments."""
    log = PartitionLog(source)
    if log.segments():
        return [log]
    directory = LogDirectory(source)
    return [directory.partition(found) for found in directory.partitions()]


def _task(segment: Segment, folder: Path) -> SegmentTask:
    segment = Segment(segment.path.resolve(), segment.is_active)
    return SegmentTask(segment, folder.resolve(), segment.size_in_bytes)


def damage_row(damage: Damage) -> dict[str, Any]:
    """A stretch of damage as the fields of a report."""
    return {**asdict(damage), "path": None if damage.path is None else str(damage.path)}


def intact_ranges(damage: Sequence[dict[str, Any]]) -> list[tuple[int, int | None]]:
    """The positions between damaged stretches: start and end, None for the end of the file."""
    starts = [0, *(stretch["end_position"] for stretch in damage)]
    ends = [*(stretch["position"] for stretch in damage), None]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end is None or start < end]
