"""What is to be converted, how, and what became of it: plain values that travel to other processes and machines."""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.conversion import ConversionOptions
from kafkafmt.converted_chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.jobs.convert.memory import ConvertMemory
from kafkafmt.jobs.files import error_in_words
from kafkafmt.log import LogDirectory, PartitionLog, Segment
from kafkafmt.log.directory import no_segments_message
from kafkafmt.log.segment import is_segment_file_name, segment_file_name
from kafkafmt.log.topics import topic_filter
from kafkafmt.types import Codec

SIDECAR_SUFFIX = ".converted"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

OnCorrupt = Literal["fail", "skip"]
Status = Literal["converted", "unchanged", "gone", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class ConvertOptions:
    """How segments are converted.

    to_magic: 0, 1 or 2; None leaves each batch its own format.
    on_corrupt: "fail" gives a segment with damage up; "skip" leaves the damaged batches out and tells of them.
    zstd_fallback: the codec that zstd batches get below v2, which has no zstd; None gives the segment up.
    chunk_size: source bytes that are read and converted at a time.
    codec, level: what all batches are to be compressed with; None leaves each its own.
    memory: what all processes may hold; None: no bound but that of one batch, 256 MiB decompressed.
    force: replace segments that were converted with another to_magic, codec or level.

    Raises ValueError for what cannot be, and for what changes nothing.
    """

    to_magic: int | None = None
    on_corrupt: OnCorrupt = "fail"
    zstd_fallback: Codec | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE
    codec: Codec | None = None
    level: int | None = None
    memory: ConvertMemory | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.on_corrupt not in get_args(OnCorrupt):
            raise ValueError(f"on_corrupt: expected fail or skip, found {self.on_corrupt!r}")
        if self.chunk_size < 1:
            raise ValueError(f"chunk_size: expected 1 or more, found {self.chunk_size}")
        self.conversion()

    def conversion(self) -> ConversionOptions:
        """What becomes of each batch."""
        return ConversionOptions(
            self.to_magic,
            zstd_fallback=self.zstd_fallback,
            codec=self.codec,
            level=self.level,
            max_decompressed_bytes=self.max_batch_bytes,
        )

    @property
    def max_batch_bytes(self) -> int:
        """The most that a batch may decompress to, and of what is bounded in memory, that it may be stored in."""
        return DEFAULT_MAX_DECOMPRESSED_BYTES if self.memory is None else self.memory.max_batch_bytes


@dataclass(frozen=True)
class SegmentTask:
    """A segment to convert, and the partition folder that the result goes to.

    log_start_offset: below which the target's records are deleted, too; None: the target is to have no such offset.
    stale: base offsets of converted segments in the target folder, from this segment to in front of the next one,
        whose source was not listed. Of the first segment those before it belong to it, too.
    """

    segment: Segment
    target_folder: Path
    source_bytes: int
    log_start_offset: int | None = 0
    stale: tuple[int, ...] = ()

    @property
    def target(self) -> Path:
        return self.target_folder / self.segment.path.name

    @property
    def sidecar(self) -> Path:
        return self.target.with_suffix(SIDECAR_SUFFIX)


@dataclass
class SegmentReport:
    """What became of one segment.

    status: "converted"; "unchanged": it was converted by an earlier run; "gone": retention or compaction deleted the
        source meanwhile; "failed": nothing of it is there.
    removed: converted segments that have no source any more, which went when this one was there.
    kept: converted segments without a source that begin where the source's log ends, or behind that. Retention and
        compaction do not remove the end of a log, so they stay, and need a look.
    damage: what was left out, or, of a failed segment, what it failed at.
    partial_messages: wrappers that ended in a part of a message. It was left out, as readers leave it out.
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
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    partial_messages: int = 0
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
        self.status, self.error = "failed", error_in_words(error, self.path)
        self.error_type = type(error).__name__
        return self


class ConvertError(ValueError):
    """Source and target folders that a conversion cannot start with."""


def plan(
    source: Path, target: Path, topics: str | None = None, *, from_segment_start: bool = False
) -> list[SegmentTask]:
    """The segments under a log directory or partition folder, largest first.

    topics: a shell pattern that names of topics must match; without one Kafka's own are left out of a log directory:
    see `kafkafmt.log.topics`. from_segment_start: segments whose records are all
    deleted, as `log-start-offset-checkpoint` says, are converted nevertheless, and the target shows all records.

    Folders and segments go by the names they are listed under, wherever those link to; what a broker deletes
    meanwhile is passed over. Raises ConvertError where there is nothing to do, the target lies in the source, or two
    partitions would go into one folder; CheckpointError for a malformed `log-start-offset-checkpoint`.
    """
    if _URI.match(str(source)) and not source.exists():
        raise ConvertError(f"{source}: expected a folder, mounted where it is remote, found a URI")
    if not source.is_dir():
        raise ConvertError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConvertError(f"{target}: the target folder is in the source folder {source}")
    if target.exists() and not target.is_dir():
        raise ConvertError(f"{target}: not a folder")
    folder = source.resolve() if source.name == ".." else source.absolute()
    found = partition_logs(folder, from_segment_start=from_segment_start)
    if not found:
        raise ConvertError(no_segments_message(source))
    if len(found) > 1 and found[0].path == found[1].path.parent:
        raise ConvertError(
            f"{source}: expected a log directory or a partition folder, found segments beside folders of partitions"
        )
    is_meant = topic_filter(topics)
    chosen = [log for log in found if is_meant(_topic(log)) or (topics is None and log.path == folder)]
    if not chosen:
        what = "no topic but Kafka's own" if topics is None else f"no topic matches {topics!r}"
        raise ConvertError(f"{source}: {what}")
    tasks = [
        task for log, folder in _target_folders(chosen, target.absolute()) for task in _tasks(log, folder)
    ]
    return sorted(tasks, key=lambda task: (-task.source_bytes, task.segment.path))


def partition_logs(source: Path, *, from_segment_start: bool = False) -> list[PartitionLog]:
    """The log in a folder that itself holds segments, and those in the folders of partitions under it.

    from_segment_start: as `PartitionLog` has it.
    """
    own = PartitionLog(source, from_segment_start=from_segment_start)
    logs = [own] if own.segments() else []
    if logs and own.topic_partition is not None:
        return logs
    return logs + LogDirectory(source).logs(from_segment_start=from_segment_start)


def _topic(log: PartitionLog) -> str:
    return log.topic_partition.topic if log.topic_partition else ""


def _target_folders(logs: Sequence[PartitionLog], target: Path) -> Iterator[tuple[PartitionLog, Path]]:
    """Each log and the folder that it goes to, which is that of no other log here."""
    sources = {log.path: log.path.resolve() for log in logs}
    taken = {sources[log.path]: log for log in logs}
    for log in logs:
        folder = target / log.path.name
        resolved = folder.resolve()
        other = taken.setdefault(resolved, log)
        if resolved == sources[log.path]:
            raise ConvertError(f"{target}: the segments of {log.path} would go into that folder itself")
        if other is not log:
            raise ConvertError(
                f"{folder}: the segments of {log.path} would go into the folder of {other.path}"
            )
        yield log, folder


def _tasks(log: PartitionLog, folder: Path) -> Iterator[SegmentTask]:
    with contextlib.suppress(FileNotFoundError):
        segments = log.segments()
        bases = [segment.base_offset for segment in segments]
        start = None if log.from_segment_start else log.log_start_offset
        if start is not None and bases and start <= bases[0]:
            start = 0  # the name of the first segment says it as well
        stale = _stale(folder, bases)
        first = max(bisect_right(bases, start or 0) - 1, 0)  # all records of those before it are deleted
        for number, segment in enumerate(segments[first:], first):
            from_offset = 0 if number == first else segment.base_offset
            end_offset = bases[number + 1] if number + 1 < len(bases) else None
            of_segment = tuple(
                base for base in stale if base >= from_offset and (end_offset is None or base < end_offset)
            )
            with contextlib.suppress(FileNotFoundError):
                yield SegmentTask(segment, folder, segment.size_in_bytes, start, of_segment)


def _stale(folder: Path, bases: Sequence[int]) -> list[int]:
    """Base offsets of the converted segments in a target folder that no listed source segment is named for."""
    if not folder.is_dir():
        return []
    try:
        with os.scandir(folder) as entries:
            names = {Path(entry.name).stem for entry in entries if entry.name.endswith(SIDECAR_SUFFIX)}
    except FileNotFoundError:
        return []
    known = {segment_file_name(base, "") for base in bases}
    return sorted(int(name) for name in names - known if is_segment_file_name(f"{name}.log"))


def intact_ranges(damage: Sequence[dict[str, Any]]) -> list[tuple[int, int | None]]:
    """The positions between damaged stretches: start and end, None for the end of the file."""
    starts = [0, *(stretch["end_position"] for stretch in damage)]
    ends = [*(stretch["position"] for stretch in damage), None]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end is None or start < end]
