"""What a job that reads needs of a file, local or remote, and the walk through it that such jobs share."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log import Damage, find_damage
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.segment import is_segment_file_name

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.records import Records
    from kafkafmt.types import TopicPartition

Progress = Callable[[int], None]
Passed = Callable[["BatchRun", int, int], None]


class LogFile(Protocol):
    """A file of record batches, wherever it is.

    name: its path or URI. is_active: it is the last of its log, so that its end may be missing.
    """

    @property
    def name(self) -> str: ...

    @property
    def topic_partition(self) -> TopicPartition | None: ...

    @property
    def is_active(self) -> bool: ...

    def open(self, start: int = 0, end: int | None = None) -> AbstractContextManager[Records]: ...


@dataclass
class Walked:
    """What a walk through a file met.

    tail_bytes: bytes at the end of the last segment that are no whole batch, which is no damage there.
    error: why it could not be read, or not to its end. is_gone: that is because it was deleted since it was listed.
    """

    size_in_bytes: int = 0
    tail_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    is_gone: bool = False


def walk_file(
    file: LogFile,
    passed: Passed,
    *,
    deep: bool,
    progress: Progress | None = None,
    from_offset: int = 0,
) -> Walked:
    """Walk through a file as `find_damage` does, handing sound batches to `passed`.

    from_offset: batches that end below it are not handed out. Never raises for what the data or the file system is.
    """
    walked = Walked()

    def pass_wanted(run: BatchRun, first: int, stop: int) -> None:
        first += int(run.index["last_offset"][first:stop].searchsorted(from_offset))
        if first < stop:
            passed(run, first, stop)

    try:
        with file.open() as records:
            walked.size_in_bytes = records.size_in_bytes
            for found in find_damage(records, deep=deep, progress=progress, passed=pass_wanted):
                if is_expected_tail(found, is_active=file.is_active):
                    walked.tail_bytes = found.size_in_bytes
                else:
                    walked.damage.append({**damage_row(found), "path": file.name})
    except (KafkaFormatError, OSError, EOFError) as error:
        walked.error = error_in_words(error, file.name)
        walked.is_gone = isinstance(error, FileNotFoundError)
    return walked


class LowestOffsets:
    """The lowest offset that each file of a log hands out, while files are read in the order of their base offsets.

    Records below the log start offset are deleted, unless `from_segment_start` is set; and an offset that a segment
    before has is handed out by that one (`log.overlaps`).
    """

    def __init__(self, *, from_segment_start: bool = False) -> None:
        self._log_starts = None if from_segment_start else LogStartOffsets()
        self._reached: dict[Path, tuple[int, int]] = {}

    def start_of(self, path: Path) -> int:
        """Return the log start offset of the partition that a segment belongs to; 0 of a file that is no segment."""
        if self._log_starts is None or not is_segment_file_name(path.name):
            return 0
        return self._log_starts.of(path.absolute().parent)

    def of(self, path: Path) -> int:
        """Raises CheckpointError where `log-start-offset-checkpoint` is malformed."""
        return max(self.start_of(path), self.reached_before(path))

    def reached_before(self, path: Path) -> int:
        """Return the offset behind all that segments before this one have; 0 where none was read."""
        if not is_segment_file_name(path.name):
            return 0
        base_offset, reached = self._reached.get(path.parent, (-1, 0))
        return reached if base_offset < int(path.stem) else 0

    def add(self, path: Path, next_offset: int) -> None:
        """Take note of a segment that was read: all its offsets are below `next_offset`."""
        if is_segment_file_name(path.name):
            reached = max(self.reached_before(path), next_offset)
            self._reached[path.parent] = int(path.stem), reached


def is_expected_tail(damage: Damage, *, is_active: bool) -> bool:
    """Is it only what a running broker, or one that died, leaves at the end of a log?"""
    return is_active and damage.kind in ("truncated tail", "zero tail")


def damage_row(damage: Damage) -> dict[str, Any]:
    """A stretch of damage as the fields of a report."""
    return {**asdict(damage), "path": None if damage.path is None else str(damage.path)}


def error_in_words(error: Exception, name: str) -> str:
    """Why nothing came of a file, in one line that names it."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    elif name not in message:
        message = f"{name}: {message}"
    return message


def is_deleted(path: Path) -> bool:
    """Has a segment been deleted, or its partition? Not if the log directory is gone as well."""
    return not os.path.lexists(path) and path.absolute().parent.parent.is_dir()


def make_durable(folder: Path) -> None:
    """Have what was renamed in a folder be there for good."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
