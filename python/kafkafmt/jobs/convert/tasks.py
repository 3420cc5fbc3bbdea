"""Tasks, options and reports of a conversion: plain values, which can be sent to other processes and machines."""

from __future__ import annotations

import contextlib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kafkafmt._util.user_errors import UserError
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.convert.chunks import DEFAULT_CHUNK_SIZE
from kafkafmt.convert.options import ConversionOptions
from kafkafmt.jobs.convert.memory import ConvertMemory
from kafkafmt.jobs.files import error_in_words
from kafkafmt.log import PartitionLog, Segment
from kafkafmt.log.directory import no_segments_message, partition_logs
from kafkafmt.log.segment import is_segment_file_name, segment_file_name
from kafkafmt.log.topics import is_chosen
from kafkafmt.storage import StoragePath, is_uri
from kafkafmt.types import Codec

SIDECAR_SUFFIX = ".converted"
# A URI whose `//` became `/`, as it was converted to a `Path`.
_COLLAPSED_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

OnCorrupt = Literal["fail", "skip"]
Status = Literal["converted", "unchanged", "gone", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion.

    to_magic: 0, 1 or 2; None keeps the format of each batch.
    on_corrupt: "fail": a segment with damage fails; "skip": damaged batches are left out and reported.
    zstd_fallback: the codec for zstd batches below v2, where zstd does not exist; None: such a segment fails.
    chunk_size: source bytes that are read and converted at once.
    codec, level: the compression of all batches; None keeps that of each batch.
    memory: the limit of all processes; None: no limit, except 256 MiB for a decompressed batch.
    force: replace segments that were converted with another to_magic, codec or level.

    Raises ValueError for invalid options, and for options that change nothing.
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
        """Return the options for each batch."""
        return ConversionOptions(
            self.to_magic,
            zstd_fallback=self.zstd_fallback,
            codec=self.codec,
            level=self.level,
            max_decompressed_bytes=self.max_batch_bytes,
        )

    @property
    def max_batch_bytes(self) -> int:
        """The most bytes that a batch may decompress to; with `memory` also the most that it may be stored in."""
        return DEFAULT_MAX_DECOMPRESSED_BYTES if self.memory is None else self.memory.max_batch_bytes


@dataclass(frozen=True)
class SegmentTask:
    """A segment to convert, and the partition folder for the result.

    log_start_offset: the log start offset of the target; None: remove it from the target.
    stale: base offsets of converted segments in the target folder without a listed source, from this segment to before
        the next one. The first segment has also those before it.
    """

    segment: Segment
    target_folder: Path
    source_bytes: int
    log_start_offset: int | None = 0
    stale: tuple[int, ...] = ()

    @property
    def target(self) -> Path:
        """The path of the converted segment."""
        return self.target_folder / self.segment.path.name

    @property
    def sidecar(self) -> Path:
        """The path of the file `.converted` beside it, which says what the segment was made from."""
        return self.target.with_suffix(SIDECAR_SUFFIX)


@dataclass
class SegmentReport:
    """The result for one segment.

    status: "converted"; "unchanged": an earlier run has converted it; "gone": retention or compaction deleted the
        source meanwhile; "failed": nothing of it was written.
    removed: converted segments without a source, which were removed after this one was committed.
    kept: converted segments without a source that begin at or after the end of the source's log. Retention and
        compaction do not remove the end of a log, so these stay, and the user should check them.
    damage: the damage that was left out; for a failed segment, the damage at which it failed.
    partial_messages: wrappers that ended with an incomplete message. It was left out, as by readers.
    error: why it failed, with path, position and offsets if known. error_type: the class of the exception.
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
        """Create the report of a task that has not run yet."""
        path = task.segment.path
        topic, partition = task.segment.topic_partition or (None, None)
        base_offset = task.segment.base_offset
        return cls(str(path), str(task.target), topic, partition, base_offset, source_bytes=task.source_bytes)

    def fail(self, error: Exception) -> SegmentReport:
        """Set status and error of a failed segment. Returns this report."""
        self.status, self.error = "failed", error_in_words(error, self.path)
        self.error_type = type(error).__name__
        return self


class ConvertError(UserError, ValueError):
    """A conversion cannot start with these source and target folders."""


def plan(
    source: StoragePath, target: Path, topics: str | None = None, *, from_segment_start: bool = False
) -> list[SegmentTask]:
    """List the segments of a log directory or partition folder as tasks, largest first.

    topics: a shell pattern that topic names must match. If None, Kafka's own topics of a log directory are left out
        (see `kafkafmt.log.topics`).
    from_segment_start: convert also segments whose records are all below the log start offset, and set no log start
        offset in the target.

    Links keep the names under which they are listed. Segments that a broker deletes meanwhile are left out. Raises
    ConvertError if there is nothing to do, if the target is in the source, or if two partitions would get the same
    folder. Raises CheckpointError for a malformed `log-start-offset-checkpoint`.
    """
    if is_uri(str(target)) or _COLLAPSED_URI.match(str(target)):
        raise ConvertError(f"{target}: expected a local folder to write to, found a URI")
    if isinstance(source, Path) and _COLLAPSED_URI.match(str(source)) and not source.exists():
        raise ConvertError(f"{source}: expected a folder, mounted where it is remote, found a URI")
    if not source.is_dir():
        raise ConvertError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}")
    if isinstance(source, Path) and target.resolve().is_relative_to(source.resolve()):
        raise ConvertError(f"{target}: the target folder is in the source folder {source}")
    if target.exists() and not target.is_dir():
        raise ConvertError(f"{target}: not a folder")
    folder = source.resolve() if source.name == ".." else source.absolute()
    found = partition_logs(folder, from_segment_start=from_segment_start)
    if not found:
        raise ConvertError(no_segments_message(source))
    logs = list(found)
    if len(logs) > 1 and logs[0].path == logs[1].path.parent:
        raise ConvertError(
            f"{source}: expected a log directory or a partition folder, found segments beside folders of partitions"
        )
    chosen = [log for log in found if is_chosen(log.topic_partition, topics, is_named=log.path == folder)]
    if not chosen:
        what = "no topic but Kafka's own" if topics is None else f"no topic matches {topics!r}"
        raise ConvertError(f"{source}: {what}")
    tasks = [
        task
        for log, folder in _target_folders(chosen, target.absolute())
        for task in _tasks(log, found[log], folder)
    ]
    return sorted(tasks, key=lambda task: (-task.source_bytes, str(task.segment)))


def _target_folders(logs: Sequence[PartitionLog], target: Path) -> Iterator[tuple[PartitionLog, Path]]:
    """Iterate over the logs with their target folders. Raises ConvertError if two logs would share a folder."""
    sources: dict[StoragePath, StoragePath] = {log.path: log.path.resolve() for log in logs}
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


def _tasks(log: PartitionLog, segments: Sequence[Segment], folder: Path) -> Iterator[SegmentTask]:
    with contextlib.suppress(FileNotFoundError):
        bases = [segment.base_offset for segment in segments]
        start = None if log.from_segment_start else log.log_start_offset
        if start is not None and bases and start <= bases[0]:
            start = 0  # the name of the first segment implies it
        stale = _stale(folder, bases)
        first = max(bisect_right(bases, start or 0) - 1, 0)  # all records of earlier segments are deleted
        for number, segment in enumerate(segments[first:], first):
            from_offset = 0 if number == first else segment.base_offset
            end_offset = bases[number + 1] if number + 1 < len(bases) else None
            of_segment = tuple(
                base for base in stale if base >= from_offset and (end_offset is None or base < end_offset)
            )
            with contextlib.suppress(FileNotFoundError):
                yield SegmentTask(segment, folder, segment.size_in_bytes, start, of_segment)


def _stale(folder: Path, bases: Sequence[int]) -> list[int]:
    """Return the base offsets of converted segments in a target folder that no listed source segment has."""
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
    """Return the ranges between the damaged ones: start and end positions; None is the end of the file."""
    starts = [0, *(found["end_position"] for found in damage)]
    ends = [*(found["position"] for found in damage), None]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end is None or start < end]
