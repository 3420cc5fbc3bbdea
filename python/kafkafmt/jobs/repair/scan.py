"""Read the files of a partition's folder once: the chains of sound batches, the damage, and wrong indexes.

A candidate for a segment is each regular file whose name ends in `.log`: the offset in the name may be the damage. A
file that ends in `.log.swap` is one, too: if a broker was killed during a compaction, it may have the only copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kafkafmt._util.files import NotRegularFileError
from kafkafmt.errors import KafkaFormatError
from kafkafmt.jobs.repair.chains import ChainBuilder
from kafkafmt.log.damage import Damage, find_damage
from kafkafmt.log.index_checks import IndexCheck
from kafkafmt.log.isolation import TransactionTracker
from kafkafmt.log.segment import LOG_SUFFIX, Segment, SegmentRecords, is_segment_file_name
from kafkafmt.records.runs import slice_run, with_batch
from kafkafmt.records.trimming import base_offset_of
from kafkafmt.storage import RemotePath, StoragePath, read_file, storage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_SWAP_SUFFIX = ".swap"

Progress = Callable[[int], None]
_Path = TypeVar("_Path", Path, RemotePath, Path | RemotePath)


@dataclass
class ScannedFile:
    """A file of batches.

    base_offset: the offset in its name; None if the name is not that of a segment.
    is_active: its name is the last of its log, so its end may be incomplete.
    chains: of `CHAIN_DTYPE`.
    damage: the damaged ranges. index_findings: what is wrong with the `.index` and the `.timeindex`.
    """

    path: StoragePath
    base_offset: int | None
    is_active: bool
    size_in_bytes: int
    chains: NDArray[np.void]
    damage: list[Damage] = field(default_factory=list)
    index_findings: list[str] = field(default_factory=list)

    def open(self) -> SegmentRecords:
        """Open the records of the file, which are then a context manager. Raises OSError."""
        return SegmentRecords(self.path, is_active=True)


def files_of(folder: _Path) -> list[_Path]:
    """Return the paths of all files and folders in a folder, by name. Raises OSError."""
    storage = storage_of(folder)
    with storage.entries(folder) as entries:
        return sorted((storage.path_of(folder, entry) for entry in entries), key=lambda path: path.name)


def log_files(folder: _Path) -> tuple[list[_Path], list[_Path]]:
    """Return the candidates for segments in a folder, by name, and others with such a name that are no regular files.

    A file that is deleted meanwhile is none of them.

    Raises OSError.
    """
    found, others = list[_Path](), list[_Path]()
    for path in files_of(folder):
        if path.name.endswith((LOG_SUFFIX, LOG_SUFFIX + _SWAP_SUFFIX)):
            if path.is_file():
                found.append(path)
            elif isinstance(path, RemotePath) or os.path.lexists(path):
                others.append(path)
    return found, others


def read_if_there(path: StoragePath) -> bytes | None:
    """Read a file; None if it is missing or no regular file. Raises OSError."""
    try:
        return read_file(path)
    except (FileNotFoundError, NotRegularFileError):
        return None


def scan_files(paths: list[StoragePath], *, deep: bool, progress: Progress | None) -> list[ScannedFile]:
    """Scan the candidates of a folder, by name. Raises OSError. deep: as in `find_damage`."""
    named = [path for path in paths if is_segment_file_name(path.name)]
    last = named[-1] if named else None
    return [_scan_file(path, path == last, deep, progress) for path in paths]


def _scan_file(path: StoragePath, is_active: bool, deep: bool, progress: Progress | None) -> ScannedFile:
    is_named = is_segment_file_name(path.name)
    chains, refused = ChainBuilder(), list[Damage]()
    indexes = IndexCheck.of(Segment(path, is_active)) if is_named else None

    def add(run: BatchRun, first: int, stop: int) -> None:
        rows = run.index[first:stop]
        wanted = np.ones(len(rows), np.bool_)
        for number in rows["is_control"].nonzero()[0].tolist():
            error = _marker_error(run, first + number)
            if error is not None:
                wanted[number] = False
                refused.append(_invalid(path, error))
        numbers = wanted.nonzero()[0]
        sound = rows if wanted.all() else rows[wanted]
        chains.add(sound, lambda number: base_offset_of(run, first + int(numbers[number])))
        if indexes is not None and len(sound):
            indexes.add(sound)

    with SegmentRecords(path, is_active=True) as records:
        damage = list(find_damage(records, deep=deep, ascending=False, progress=progress, passed=add))
        size = records.size_in_bytes
    damage = sorted([*damage, *refused], key=lambda one: one.position)
    findings = indexes.findings() if indexes is not None and not damage else []
    base_offset = int(path.name[:20]) if is_segment_file_name(path.name.removesuffix(_SWAP_SUFFIX)) else None
    return ScannedFile(path, base_offset, is_active, size, chains.chains(), damage, findings)


def _marker_error(run: BatchRun, number: int) -> KafkaFormatError | None:
    """Return the error of a control batch that brokers cannot read; None if they can. Its CRC is valid."""
    try:
        list(TransactionTracker().add(slice_run(run, number, number + 1)))
    except KafkaFormatError as error:
        return with_batch(error, run, number)
    return None


def _invalid(path: StoragePath, error: KafkaFormatError) -> Damage:
    assert error.position is not None
    assert error.next_position is not None
    return Damage(
        kind="invalid",
        path=path,
        position=error.position,
        end_position=error.next_position,
        base_offset=error.base_offset,
        last_offset=error.last_offset,
        expected_offset=None,
        next_offset=None,
        message=error.message,
    )
