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
    error: why it could not be read, or not to its end.
    """

    size_in_bytes: int = 0
    tail_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def walk_file(file: LogFile, passed: Passed, *, deep: bool, progress: Progress | None = None) -> Walked:
    """Walk through a file as `find_damage` does, handing sound batches to `passed`.

    Never raises for what the data or the file system is.
    """
    walked = Walked()
    try:
        with file.open() as records:
            walked.size_in_bytes = records.size_in_bytes
            for found in find_damage(records, deep=deep, progress=progress, passed=passed):
                if is_expected_tail(found, is_active=file.is_active):
                    walked.tail_bytes = found.size_in_bytes
                else:
                    walked.damage.append({**damage_row(found), "path": file.name})
    except (KafkaFormatError, OSError, EOFError) as error:
        walked.error = error_in_words(error, file.name)
    return walked


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
