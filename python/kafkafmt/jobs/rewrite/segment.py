"""Rewrite one segment, in bounded memory, atomically, and once. A subclass of `SegmentRewrite` changes the batches.

A written segment has a sidecar, with its source and options. Brokers ignore files of such a name (LogLoader ignores
unknown suffixes). A segment counts as done only if its sidecar matches the present source, the options, and the target
files. So a second run writes only what is missing.

Concurrent attempts at one segment write separate temporary files. They check and change the target only under a lock.
So one attempt commits, and the others find the segment done.

Compaction merges source segments, and retention deletes them. Their written segments are removed by the commit of the
segment that has their offsets now. The sidecar lists them as outdated before the new segment is renamed; after that
they are removed. So after a kill the target has the old segments, or the new one and some of the old ones. Readers
return no offset twice (`log.overlaps`), and the next run removes the old ones.

Records below the source's log start offset are deleted. This offset is written to the target's
`log-start-offset-checkpoint` before any segment is committed, for brokers and for all readers here. It is never
lowered.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import NotRegularFileError, read_regular, replace_file
from kafkafmt._util.locks import locked_file
from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.jobs.files import Progress, damage_row, is_deleted, is_expected_tail, is_there
from kafkafmt.jobs.rewrite.log_starts import carry_log_start, is_log_start_carried
from kafkafmt.jobs.rewrite.tasks import OnCorrupt, RewriteError, SegmentReport, SegmentTask, intact_ranges
from kafkafmt.log import (
    AbortedTransaction,
    PartitionLog,
    SegmentWriter,
    find_damage,
    remove_stale_temporaries,
)
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.segment import (
    LOG_SUFFIX,
    MAX_OFFSET,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    is_segment_file_name,
)
from kafkafmt.records.base import MemoryRecords
from kafkafmt.storage import StoragePath, storage_of

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

# A larger result is split into several segments: many small records below v2 may exceed this.
MAX_SEGMENT_BYTES = 2**31 - 1
_SIDECAR_VERSION = 1
# The suffixes of a broker's files while compaction replaces segments.
_BEING_COMPACTED = (".cleaned", ".swap")

_Report = TypeVar("_Report", bound=SegmentReport)
# Creates the attempt at a segment.
Rewrite: TypeAlias = "Callable[[SegmentTask, _Report], SegmentRewrite]"


class RewriteOptions(Protocol):
    """The options that every rewrite has.

    on_corrupt: "fail": a segment with damage fails; "skip": damaged batches are left out and reported.
    force: replace segments that were written with other options.
    max_batch_bytes: the most bytes that a batch may decompress to.
    """

    @property
    def on_corrupt(self) -> OnCorrupt: ...
    @property
    def force(self) -> bool: ...
    @property
    def max_batch_bytes(self) -> int: ...


class SegmentRewrite(ABC):
    """One attempt at one segment."""

    # The past participle of what a rewrite does, for messages.
    done: str

    def __init__(
        self, task: SegmentTask, options: RewriteOptions, report: SegmentReport, progress: Progress | None
    ) -> None:
        self.task = task
        self.segment = task.segment
        self.report = report
        self.progress = progress
        # Read before the segment: if batches are appended meanwhile, the next run writes it again.
        self.source = _source_state(task.segment.path)
        self.lock = task.sidecar.with_name(f".{task.sidecar.name}.lock")
        self._options = options

    @abstractmethod
    def chunks(self, ranges: Sequence[tuple[int, int | None]]) -> Iterator[memoryview]:
        """Yield the new batches of ranges of the source. It starts anew at each call.

        A chunk is whole batches, and valid until the next one is requested. Runs are read through `watched`.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the options that determine the result, for the sidecar. The result is replaced only with `force`."""

    @abstractmethod
    def settings_in_words(self, found: dict[str, Any]) -> str:
        """Return other settings, those of a sidecar, as the end of a sentence that says how a segment was written."""

    @abstractmethod
    def outcome(self) -> dict[str, Any]:
        """Return the counts of the last `chunks`, for the sidecar."""

    @abstractmethod
    def complete_report(self, outcome: dict[str, Any]) -> None:
        """Set the counts of the report from `outcome`, or from a sidecar with its entries."""

    def fits(self, found: dict[str, Any]) -> bool:
        """Whether a sidecar with the same settings says that the result is the same."""
        return True

    def extra_settings(self) -> dict[str, Any]:
        """Return options for the sidecar that change the result only in some cases, which `fits` knows."""
        return {}

    @property
    def has_transactions(self) -> bool:
        """Whether the result keeps the transactions of the source."""
        return True

    def refuse_too_large(self, position: int | None) -> None:  # noqa: B027 - most rewrites have no limit
        """Raise MemoryPlanError if the batch at `position` decompresses to more than the memory allows."""

    def run(self) -> None:
        """Write the segment, unless that was done already. Raises KafkaFormatError, OSError and ValueError."""
        self.report.source_bytes = self.source["source_bytes"]
        with lock_log_directory(self.task.target_folder.parent):
            self._rewrite()

    def _rewrite(self) -> None:
        folder = self.task.target_folder
        folder.mkdir(parents=True, exist_ok=True)
        self.task.sidecars.folder.mkdir(parents=True, exist_ok=True)
        carry_log_start(self.task)
        with locked_file(self.lock, remove=True):
            if self.adopt_done():
                self._remove_stale(self._stale(), {})
                return
            self._outdated()
        remove_stale_temporaries(folder)
        try:
            self._write_or_leave_out()
        except FileExistsError:
            with locked_file(self.lock, remove=True):
                if not self.adopt_done():
                    raise

    def _write_or_leave_out(self) -> None:
        try:
            self._write([(0, None)])
        except KafkaFormatError as error:
            if isinstance(error, DecompressionLimitError):
                self.refuse_too_large(error.position)
            self.report.damage = self._damage(error)
            if self._options.on_corrupt == "fail" or not self.report.damage:
                raise
            self.progress = None
            self._write(intact_ranges(self.report.damage))

    def _write(self, ranges: Sequence[tuple[int, int | None]]) -> None:
        """Rewrite `ranges` of the source, and commit the result."""
        writers: list[SegmentWriter] = []
        try:
            writers.append(self._writer(self.segment.base_offset))
            for chunk in self.chunks(ranges):
                if writers[-1].size_in_bytes + len(chunk) > MAX_SEGMENT_BYTES and writers[-1].size_in_bytes:
                    first = next(MemoryRecords(chunk).batches())
                    writers.append(self._writer(first.base_offset))
                writers[-1].append(chunk)
            if self.has_transactions:
                self._add_aborted_transactions(writers)
            self._commit(writers)
        finally:
            for writer in writers:
                writer.abort()

    def _writer(self, base_offset: int) -> SegmentWriter:
        return SegmentWriter(self.task.target_folder, base_offset, replace=True)

    def _commit(self, writers: Sequence[SegmentWriter]) -> None:
        """Commit the segments, the one with the source's name last, unless another attempt has done so."""
        with locked_file(self.lock, remove=True):
            if not self.adopt_done():
                outdated, stale = self._outdated(), self._stale()
                for sizes in stale.values():
                    outdated |= sizes
                targets = {writer.path.name: writer.size_in_bytes for writer in writers}
                self._refuse_others(targets.keys() - outdated.keys())
                self._write_sidecar(targets, outdated)
                for writer in reversed(writers):
                    writer.commit()
                if outdated or stale:
                    self._remove(outdated.keys() - targets.keys())
                    self._remove_stale(stale, targets)
                    self._write_sidecar(targets, {})
                self.report.target_bytes = sum(writer.size_in_bytes for writer in writers)
                self.complete_report(self.outcome())

    def watched(self, runs: Iterator[BatchRun]) -> Iterator[BatchRun]:
        """Report the bytes of each run as progress."""
        for run in runs:
            if self.progress is not None:
                self.progress(run.end_position - int(run.index["position"][0]))
            yield run

    def _add_aborted_transactions(self, writers: Sequence[SegmentWriter]) -> None:
        """Add each aborted transaction to the segment with its marker."""
        starts = [writer.base_offset for writer in writers]
        for transaction in self._aborted_transactions(writers[-1].next_offset):
            writers[max(bisect_right(starts, transaction.last_offset) - 1, 0)].add_aborted_transactions(
                [transaction]
            )

    def _aborted_transactions(self, end_offset: int) -> list[AbortedTransaction]:
        """Return the transactions whose abort marker is in the source; read from the log if the index is damaged."""
        found = self.segment.aborted_transactions()
        if found is not None:
            return found
        log = PartitionLog(self.segment.path.parent)
        aborted = log.scan_aborted_transactions(end_offset)
        return [one for one in aborted if one.last_offset >= self.segment.base_offset]

    def _damage(self, error: KafkaFormatError) -> list[dict[str, Any]]:
        """Return all damage if it is to be skipped, otherwise that of `error`; empty if that is not damage."""
        limit = self._options.max_batch_bytes
        if self._options.on_corrupt == "skip":
            with self.segment.open(max_decompressed_bytes=limit) as records:
                damage = [
                    found
                    for found in find_damage(records, deep=True, strict=False)
                    if not is_expected_tail(found, is_active=self.segment.is_active)
                ]
            for found in damage:
                if found.kind == "invalid":  # a batch that is larger than the memory is "invalid", too
                    self.refuse_too_large(found.position)
            return [damage_row(found) for found in damage]
        if error.position is None or error.path != str(self.segment.path):
            return []
        with self.segment.open(error.position, max_decompressed_bytes=limit) as records:
            first = next(find_damage(records, deep=True, strict=False), None)
        return [] if first is None or first.position != error.position else [damage_row(first)]

    def _stale(self) -> dict[Path, dict[str, int]]:
        """Return the sidecars of segments without a source, with the names and sizes of these segments.

        Empty while the source is being compacted: a broker renames the old segments before the new one exists.
        """
        folder = self.segment.path.parent
        with storage_of(folder).entries(folder) as entries:
            if not self.task.stale or any(entry.name.endswith(_BEING_COMPACTED) for entry in entries):
                return {}
        end_offset = MAX_OFFSET
        if self.segment.is_active:
            end_offset = self.segment.base_offset
            with contextlib.suppress(KafkaFormatError):
                end_offset = self.segment.find_next_offset()
        stale = {}
        for base_offset in self.task.stale:
            sidecar = self.task.sidecars.of(base_offset)
            found = read_sidecar(sidecar)
            if found is None:
                continue
            source = folder / PurePosixPath(found["source"]).name
            if found["source"] != str(source) or is_there(source):
                continue
            sizes = self._target_sizes(found)
            if base_offset < end_offset:
                stale[sidecar] = sizes
            else:
                self.report.kept += [str(self.task.target_folder / name) for name in sorted(sizes)]
        return stale

    def _remove_stale(self, stale: dict[Path, dict[str, int]], targets: dict[str, int]) -> None:
        """Remove stale segments, except `targets`, and then their sidecars, so that a run after a kill can continue."""
        for sidecar, sizes in stale.items():
            names = sorted(sizes.keys() - targets.keys())
            self._remove(names)
            sidecar.unlink(missing_ok=True)
            self.report.removed += [str(self.task.target_folder / name) for name in names]

    def other_options(self) -> str | None:
        """Return a text on the other settings with which the segment was written; None if none, or with `force`."""
        found = None if self._options.force else read_sidecar(self.task.sidecar)
        if found is None or found["source"] != str(self.segment.path) or not self._target_sizes(found):
            return None
        return None if self._has_settings(found) else self.settings_in_words(found)

    def _has_settings(self, found: dict[str, Any]) -> bool:
        return all(found.get(name) == value for name, value in self.settings().items())

    def _fits(self, found: dict[str, Any]) -> bool:
        """Whether this rewrite would have the same result as the one of the sidecar `found`."""
        return (
            {**found, **self._wanted()} == found
            and self._has_settings(found)
            # Without skipped damage, the source had none.
            and (not found.get("damage") or self._options.on_corrupt == "skip")
            and self.fits(found)
        )

    def _wanted(self) -> dict[str, Any]:
        return {"version": _SIDECAR_VERSION, "source": str(self.segment.path), **self.source}

    def remove_lock(self) -> None:
        """Remove the lock file of a killed attempt. Waits for a running attempt, which removes it itself."""
        if self.lock.exists():
            with locked_file(self.lock, remove=True):
                pass

    def adopt_done(self) -> bool:
        """Return whether this segment was written already, and if so, complete the report."""
        found = read_sidecar(self.task.sidecar)
        if found is None or found["outdated"] or not self._fits(found):
            return False
        sizes = self._target_sizes(found)
        if not sizes or sizes != found["targets"]:
            return False
        self.report.status, self.report.target_bytes = "unchanged", sum(sizes.values())
        self.report.damage = list(found.get("damage", []))
        self.complete_report(found)
        return True

    def _target_sizes(self, found: dict[str, Any]) -> dict[str, int]:
        """Return names and sizes of the existing segments that a sidecar lists."""
        names = {*found["targets"], *found["outdated"]}
        paths = [self.task.target_folder / name for name in names]
        return {path.name: path.stat().st_size for path in paths if path.exists()}

    def _outdated(self) -> dict[str, int]:
        """Return names and sizes of the segments of an earlier run, of an older source or with other options.

        Raises FileExistsError if the target has a segment that no rewrite of this source has written.
        """
        found = read_sidecar(self.task.sidecar)
        if found is None:
            self._refuse_others([self.task.target.name])
            return {}
        sizes = self._target_sizes(found)
        if sizes and found["source"] != str(self.segment.path):
            self._refuse(self.task.target_folder / min(sizes), f"it was made from {found['source']}")
        if (other := self.other_options()) is not None:
            message = f"was {self.done} {other}: force replaces it"
            raise FileExistsError(errno.EEXIST, message, str(self.task.target))
        self._refuse_others({self.task.target.name} - sizes.keys())
        for name, size in sizes.items():
            # After a killed commit, some segments are new, and some are those that they were to replace.
            if size not in (found["targets"].get(name), found["outdated"].get(name)):
                self._refuse_others([name])
        return sizes

    def _refuse_others(self, names: Iterable[str]) -> None:
        """Raise FileExistsError if one of these segments exists: the sidecar does not list it."""
        for name in names:
            path = self.task.target_folder / name
            if path.exists():
                sidecar = self.task.sidecar.name
                is_there = self.task.sidecar.exists()
                what = "does not tell of it" if is_there else "is not there"
                self._refuse(path, f"no known result of this command: {sidecar} {what}")

    def _refuse(self, path: Path, reason: str) -> NoReturn:
        way = (
            f"remove it and {self.task.sidecar.name}, or choose another target folder, to have it {self.done}"
        )
        raise FileExistsError(errno.EEXIST, f"is in the way, {reason}; {way}", str(path))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.task.target_folder / name
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                path.with_suffix(suffix).unlink(missing_ok=True)

    def _write_sidecar(self, targets: dict[str, int], outdated: dict[str, int]) -> None:
        """Write the sidecar. This must be done before segments are committed, so that none is without a sidecar.

        While it lists outdated segments, these may still exist in place of the targets.
        """
        content = {
            **self._wanted(),
            **self.settings(),
            **self.extra_settings(),
            "targets": targets,
            "outdated": outdated,
            **self.outcome(),
            "damage": self.report.damage,
        }
        replace_file(self.task.sidecar, (json.dumps(content) + "\n").encode())


def rewrite_segment(task: SegmentTask, rewrite: Rewrite[_Report], report: _Report) -> _Report:
    """Write one segment, unless that was done already, and return its report.

    Damage and errors of the file system are reported in the result, not raised.
    """
    started = time.perf_counter()
    try:
        rewrite(task, report).run()
    except (KafkaFormatError, OSError, ValueError) as error:
        report.fail(error)
        if isinstance(error, FileNotFoundError) and is_deleted(task.segment.path):
            report.status = "gone"
    report.seconds = time.perf_counter() - started
    return report


def split_unchanged(
    tasks: Sequence[SegmentTask], rewrite: Rewrite[_Report], report_of: Callable[[SegmentTask], _Report]
) -> tuple[list[_Report], list[SegmentTask]]:
    """Return the reports of segments that earlier runs have written, and the remaining tasks.

    Raises RewriteError if earlier runs had other settings, unless the option `force` is set.
    """
    unchanged, left = [], []
    log_starts = LogStartOffsets()
    for task in tasks:
        report = report_of(task)
        try:
            attempt = rewrite(task, report)
            if (other := attempt.other_options()) is not None:
                folder = task.target_folder.parent
                raise RewriteError(
                    f"{folder}: holds segments that were {attempt.done} {other}: --force replaces them"
                )
            is_done = attempt.adopt_done() and not task.stale and is_log_start_carried(task, log_starts)
        except OSError:
            is_done = False
        if is_done:
            attempt.remove_lock()
            unchanged.append(report)
        else:
            left.append(task)
    return unchanged, left


def _source_state(path: StoragePath) -> dict[str, int]:
    found = path.stat()
    return {"source_bytes": found.st_size, "source_mtime_ns": found.st_mtime_ns}


def read_sidecar(path: Path) -> dict[str, Any] | None:
    """Read a sidecar; None if there is none, or if it is not one of kafkafmt. Raises NotRegularFileError."""
    try:
        found = json.loads(read_regular(path))
    except NotRegularFileError:
        raise
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("source"), str):
        return None
    targets, outdated = found.get("targets"), found.get("outdated")
    if not isinstance(targets, dict) or not isinstance(outdated, dict):
        return None
    return found if all(map(is_segment_file_name, (*targets, *outdated))) else None
