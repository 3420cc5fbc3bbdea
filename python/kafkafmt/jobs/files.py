"""The files that jobs read, local or remote, and the scan that these jobs share."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log import Damage, find_damage

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.records.base import Records
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

Progress = Callable[[int], None]
Passed = Callable[["BatchRun", int, int], None]


class LogFile(Protocol):
    """A local or remote file of record batches.

    `str()` returns its path or URI. is_active: it is the last segment of its log, so its last batch may be incomplete.
    """

    @property
    def topic_partition(self) -> TopicPartition | None: ...

    @property
    def is_active(self) -> bool: ...

    def open(self, start: int = 0, end: int | None = None) -> AbstractContextManager[Records]: ...


@dataclass
class ScanResult:
    """The result of the scan of a file.

    tail_bytes: bytes after the last whole batch of an active segment; they are not damage.
    damage: a row for each damaged range.
    error: why the file could not be read to its end; None if it was.
    is_gone: the error is that the file was deleted after it was listed.
    """

    size_in_bytes: int = 0
    tail_bytes: int = 0
    damage: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None
    is_gone: bool = False


def scan_file(
    file: LogFile,
    passed: Passed,
    *,
    deep: bool,
    progress: Progress | None = None,
    from_offset: int = 0,
) -> ScanResult:
    """Scan a file with `find_damage`, and call `passed` with its sound batches.

    passed: called with a run, the number of the first batch, and the number after the last one.
    from_offset: batches that end below it are not passed.
    progress: called with the number of bytes read since its last call.

    Damage and errors of the file system are reported in the result, not raised.
    """
    scanned = ScanResult()

    def pass_wanted(run: BatchRun, first: int, stop: int) -> None:
        first += int(run.index["last_offset"][first:stop].searchsorted(from_offset))
        if first < stop:
            passed(run, first, stop)

    try:
        with file.open() as records:
            scanned.size_in_bytes = records.size_in_bytes
            for found in find_damage(records, deep=deep, progress=progress, passed=pass_wanted):
                if is_expected_tail(found, is_active=file.is_active):
                    scanned.tail_bytes = found.size_in_bytes
                else:
                    scanned.damage.append({**damage_row(found), "path": str(file)})
    except (KafkaFormatError, OSError) as error:
        scanned.error = error_in_words(error, str(file))
        scanned.is_gone = isinstance(error, FileNotFoundError)
    return scanned


def is_expected_tail(damage: Damage, *, is_active: bool) -> bool:
    """Whether the damage is an incomplete end of a log, as a running or crashed broker leaves it."""
    return is_active and damage.kind in ("truncated tail", "zero tail")


def damage_row(damage: Damage) -> dict[str, Any]:
    """Return the fields of the damage as a row of a report."""
    return {**asdict(damage), "path": None if damage.path is None else str(damage.path)}


def error_in_words(error: Exception, name: str) -> str:
    """Return the message of an error in one line that names the file."""
    message = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        message = f"{error.filename}: {error.strerror}"
    elif name not in message:
        message = f"{name}: {message}"
    return message


def is_there(path: StoragePath) -> bool:
    """Whether a file or folder exists at a path now; a broken link counts as one."""
    return os.path.lexists(path) if isinstance(path, Path) else path.unlisted().exists()


def is_deleted_folder(folder: StoragePath) -> bool:
    """Whether the folder of a partition was deleted; False if its log directory is missing, too."""
    now = folder if isinstance(folder, Path) else folder.unlisted()
    return not now.is_dir() and now.parent.is_dir()


def is_deleted(path: StoragePath) -> bool:
    """Whether a segment or its partition was deleted; False if the log directory is missing, too, or cannot be read."""
    with suppress(OSError):
        return not is_there(path) and path.absolute().parent.parent.is_dir()
    return False
