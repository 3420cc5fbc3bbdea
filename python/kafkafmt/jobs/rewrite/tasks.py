"""Tasks and reports of a rewrite: plain values, which can be sent to other processes and machines."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kafkafmt._util.files import NotRegularFileError
from kafkafmt._util.user_errors import UserError
from kafkafmt.jobs.files import error_in_words
from kafkafmt.jobs.rewrite.sidecars import Sidecars
from kafkafmt.log import PartitionLog, Segment
from kafkafmt.log.directory import no_segments_message, partition_logs
from kafkafmt.log.listing import ensure_regular
from kafkafmt.log.topics import Topics, is_chosen, selection_error
from kafkafmt.storage import RemotePath, StoragePath, no_folder_reason, side_by_side

if TYPE_CHECKING:
    from typing_extensions import Self

# A URI whose `//` became `/`, as it was converted to a `Path`.
_COLLAPSED_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")

OnCorrupt = Literal["fail", "skip"]


@dataclass(frozen=True)
class SegmentTask:
    """A segment to rewrite, and the partition folder for the result.

    sidecars: the folder and the suffix of the files that say what the segments were made from.
    log_start_offset: the log start offset of the target; None: remove it from the target.
    stale: base offsets of written segments in the target folder without a listed source, from this segment to before
        the next one. The first segment has also those before it.
    """

    segment: Segment
    target_folder: StoragePath
    source_bytes: int
    sidecars: Sidecars
    log_start_offset: int | None = 0
    stale: tuple[int, ...] = ()

    @property
    def target(self) -> StoragePath:
        """The path of the written segment."""
        return self.target_folder / self.segment.path.name

    @property
    def sidecar(self) -> StoragePath:
        """The path of the file that says what the segment was made from."""
        return self.sidecars.of(self.segment.base_offset)


@dataclass
class SegmentReport:
    """The result for one segment.

    status: "written", or another word for it; "unchanged": an earlier run has written it; "gone": retention or
        compaction deleted the source meanwhile; "failed": nothing of it was written.
    removed: written segments without a source, which were removed after this one was committed.
    kept: written segments without a source that begin at or after the end of the source's log. Retention and
        compaction do not remove the end of a log, so these stay, and the user should check them.
    damage: the damage that was left out; for a failed segment, the damage at which it failed.
    error: why it failed, with path, position and offsets if known. error_type: the class of the exception.
    """

    path: str
    target: str
    topic: str | None
    partition: int | None
    base_offset: int
    status: str = "written"
    source_bytes: int = 0
    target_bytes: int = 0
    seconds: float = 0.0
    damage: list[dict[str, Any]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    error: str | None = None
    error_type: str | None = None

    @classmethod
    def of(cls, task: SegmentTask) -> Self:
        """Create the report of a task that has not run yet."""
        path = task.segment.path
        topic, partition = task.segment.topic_partition or (None, None)
        base_offset = task.segment.base_offset
        return cls(str(path), str(task.target), topic, partition, base_offset, source_bytes=task.source_bytes)

    def fail(self, error: Exception) -> Self:
        """Set status and error of a failed segment. Returns this report."""
        self.status, self.error = "failed", error_in_words(error, self.path)
        self.error_type = type(error).__name__
        return self


class RewriteError(UserError, ValueError):
    """A rewrite cannot start with these source and target folders."""


def ensure_folders(source: StoragePath, target: StoragePath) -> None:
    """Raise RewriteError if these folders cannot be the source and the target of a rewrite."""
    if isinstance(target, Path) and _COLLAPSED_URI.match(str(target)):
        raise RewriteError(f"{target}: expected a local folder to write to, found a URI")
    if isinstance(target, RemotePath) and not target.storage.is_writable:
        raise RewriteError(f"{target}: expected a folder or a store to write to, found a read-only view")
    if isinstance(source, Path) and _COLLAPSED_URI.match(str(source)) and not source.exists():
        raise RewriteError(f"{source}: expected a folder, mounted where it is remote, found a URI")
    reason = no_folder_reason(source)
    if reason is not None:
        raise RewriteError(f"{source}: {reason}")
    if is_within(target, source):
        raise RewriteError(f"{target}: the target folder is in the source folder {source}")
    reason = no_folder_reason(target) if target.exists() else None
    if reason is not None:
        raise RewriteError(f"{target}: {reason}")


def is_within(path: StoragePath, folder: StoragePath) -> bool:
    """Whether a path is a folder, or in it."""
    if isinstance(path, Path) and isinstance(folder, Path):
        return path.resolve().is_relative_to(folder.resolve())
    return f"{_stored_at(path)}/".startswith(f"{_stored_at(folder)}/")


def _stored_at(path: StoragePath) -> str:
    """Return the URI of a path; for a path in a view, that of the store which the view shows."""
    if isinstance(path, Path):
        return path.resolve().as_uri()
    *_, uri = str(path).partition("!")[0].rpartition("+") if "!" in str(path) else ("", str(path))
    return uri


def plan_segments(
    source: StoragePath,
    target: StoragePath,
    topics: Topics,
    sidecar_suffix: str,
    *,
    sidecar_root: StoragePath | None = None,
    from_segment_start: bool = False,
) -> list[SegmentTask]:
    """List the segments of a log directory or partition folder as tasks, largest first.

    topics: names and globs, each of which must match a topic. If None, Kafka's own topics of a log directory are left
        out (see `kafkafmt.log.topics`).
    sidecar_root: the folder of the folders of sidecars, one for each partition. If None, they are beside the segments.
    from_segment_start: rewrite also segments whose records are all below the log start offset, and set no log start
        offset in the target.

    Links keep the names under which they are listed. Segments that a broker deletes meanwhile are left out. Raises
    RewriteError if there is nothing to do, if the target is in the source, or if two partitions would get the same
    folder. Raises CheckpointError for a malformed `log-start-offset-checkpoint`.
    """
    ensure_folders(source, target)
    folder = source.resolve() if source.name == ".." else source.absolute()
    found = partition_logs(folder, from_segment_start=from_segment_start)
    if not found:
        raise RewriteError(no_segments_message(source))
    logs = list(found)
    if len(logs) > 1 and logs[0].path == logs[1].path.parent:
        raise RewriteError(
            f"{source}: expected a log directory or a partition folder, found segments beside folders of partitions"
        )
    chosen = [log for log in found if is_chosen(log.topic_partition, topics, is_named=log.path == folder)]
    error = selection_error((log.topic_partition for log in found), topics, is_empty=not chosen)
    if error is not None:
        raise RewriteError(f"{source}: {error}")
    for log in chosen:
        _ensure_regular(found[log])
    folders = [
        (log, folder, Sidecars(_sidecar_folder(folder, sidecar_root), sidecar_suffix))
        for log, folder in _target_folders(chosen, target.absolute())
    ]
    written = side_by_side(
        lambda one: one[2].base_offsets(), folders, in_parallel=isinstance(target, RemotePath)
    )
    tasks = [
        task
        for (log, folder, sidecars), bases in zip(folders, written, strict=True)
        for task in _tasks(log, found[log], folder, sidecars, bases)
    ]
    return sorted(tasks, key=lambda task: (-task.source_bytes, str(task.segment)))


def _ensure_regular(segments: Sequence[Segment]) -> None:
    try:
        ensure_regular(segments)
    except NotRegularFileError as error:
        raise RewriteError(f"{error.filename}: {error.strerror}") from None


def _target_folders(
    logs: Sequence[PartitionLog], target: StoragePath
) -> Iterator[tuple[PartitionLog, StoragePath]]:
    """Iterate over the logs with their target folders. Raises RewriteError if two logs would share a folder."""
    sources = {log.path: str(log.path.resolve()) for log in logs}
    taken = {sources[log.path]: log for log in logs}
    for log in logs:
        folder = target / log.path.name
        resolved = str(folder.resolve())
        other = taken.setdefault(resolved, log)
        if resolved == sources[log.path]:
            raise RewriteError(f"{target}: the segments of {log.path} would go into that folder itself")
        if other is not log:
            raise RewriteError(
                f"{folder}: the segments of {log.path} would go into the folder of {other.path}"
            )
        yield log, folder


def _sidecar_folder(folder: StoragePath, root: StoragePath | None) -> StoragePath:
    return folder if root is None else root.absolute() / folder.name


def _tasks(
    log: PartitionLog,
    segments: Sequence[Segment],
    folder: StoragePath,
    sidecars: Sidecars,
    written: set[int],
) -> Iterator[SegmentTask]:
    with contextlib.suppress(FileNotFoundError):
        bases = [segment.base_offset for segment in segments]
        start = None if log.from_segment_start else log.log_start_offset
        if start is not None and bases and start <= bases[0]:
            start = 0  # the name of the first segment implies it
        stale = sorted(written - set(bases))
        first = max(bisect_right(bases, start or 0) - 1, 0)  # all records of earlier segments are deleted
        for number, segment in enumerate(segments[first:], first):
            from_offset = 0 if number == first else segment.base_offset
            end_offset = bases[number + 1] if number + 1 < len(bases) else None
            of_segment = tuple(
                base for base in stale if base >= from_offset and (end_offset is None or base < end_offset)
            )
            with contextlib.suppress(FileNotFoundError):
                yield SegmentTask(segment, folder, segment.size_in_bytes, sidecars, start, of_segment)


def intact_ranges(damage: Sequence[dict[str, Any]]) -> list[tuple[int, int | None]]:
    """Return the ranges between the damaged ones: start and end positions; None is the end of the file."""
    starts = [0, *(found["end_position"] for found in damage)]
    ends = [*(found["position"] for found in damage), None]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end is None or start < end]
