"""Rewrite one segment, in bounded memory, atomically, and once. A subclass of `SegmentRewrite` changes the batches.

A written segment has a sidecar, with its source and options. Brokers ignore files of such a name (LogLoader ignores
unknown suffixes). A segment counts as done only if its sidecar matches the present source, the options, and the target
files. So a second run writes only what is missing.

Concurrent attempts at one segment write separate temporary files. They check and change a local target only under a
lock. So one attempt commits, and the others find the segment done. `targets` says how a segment is written to a store.

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
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.jobs.files import Progress, damage_row, is_expected_tail, is_there
from kafkafmt.jobs.rewrite.sidecars import is_made_from, source_state
from kafkafmt.jobs.rewrite.targets import target_of
from kafkafmt.jobs.rewrite.tasks import OnCorrupt, SegmentReport, SegmentTask, intact_ranges
from kafkafmt.log import (
    AbortedTransaction,
    PartitionLog,
    SegmentWriter,
    find_damage,
)
from kafkafmt.log.segment import (
    MAX_OFFSET,
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
        self.source = source_state(task.segment.path)
        self.target = target_of(task)
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
        with self.target.opened():
            self._rewrite()

    def _rewrite(self) -> None:
        with self.target.locked():
            if self.adopt_done():
                self._remove_stale(self._stale(), {})
                return
            self._outdated()
        self.target.forget_dead()
        try:
            self._write_or_leave_out()
        except FileExistsError:
            with self.target.locked():
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
            writers.append(self.target.writer(self.segment.base_offset))
            for chunk in self.chunks(ranges):
                if writers[-1].size_in_bytes + len(chunk) > MAX_SEGMENT_BYTES and writers[-1].size_in_bytes:
                    first = next(MemoryRecords(chunk).batches())
                    writers.append(self.target.writer(first.base_offset))
                writers[-1].append(chunk)
            if self.has_transactions:
                self._add_aborted_transactions(writers)
            self._commit(writers)
        finally:
            for writer in writers:
                writer.abort()

    def _commit(self, writers: Sequence[SegmentWriter]) -> None:
        """Commit the segments, the one with the source's name last, unless another attempt has done so."""
        with self.target.locked():
            if not self.adopt_done():
                outdated, stale = self._outdated(), self._stale()
                for sizes in stale.values():
                    outdated |= sizes
                targets = {writer.path.name: writer.size_in_bytes for writer in writers}
                self._refuse_others(targets.keys() - outdated.keys())
                self._write_sidecar(targets, outdated)
                for writer in reversed(writers):
                    self.target.commit(writer)
                if outdated or stale:
                    self.target.remove_segments(outdated.keys() - targets.keys())
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

    def _stale(self) -> dict[StoragePath, dict[str, int]]:
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
            found = self.target.read_sidecar(sidecar)
            if found is None:
                continue
            source = folder / PurePosixPath(found["source"]).name
            if not is_made_from(found, source) or is_there(source):
                continue
            sizes = self._target_sizes(found)
            if base_offset < end_offset:
                stale[sidecar] = sizes
            else:
                self.report.kept += [str(self.task.target_folder / name) for name in sorted(sizes)]
        return stale

    def _remove_stale(self, stale: dict[StoragePath, dict[str, int]], targets: dict[str, int]) -> None:
        """Remove stale segments, except `targets`, and then their sidecars, so that a run after a kill can continue."""
        for sidecar, sizes in stale.items():
            names = sorted(sizes.keys() - targets.keys())
            self.target.remove_segments(names)
            self.target.remove_sidecar(sidecar)
            self.report.removed += [str(self.task.target_folder / name) for name in names]

    def other_options(self) -> str | None:
        """Return a text on the other settings with which the segment was written; None if none, or with `force`."""
        found = None if self._options.force else self.target.read_sidecar(self.task.sidecar)
        if found is None or not is_made_from(found, self.segment.path) or not self._target_sizes(found):
            return None
        return None if self._has_settings(found) else self.settings_in_words(found)

    def _has_settings(self, found: dict[str, Any]) -> bool:
        return all(found.get(name) == value for name, value in self.settings().items())

    def _fits(self, found: dict[str, Any]) -> bool:
        """Whether this rewrite would have the same result as the one of the sidecar `found`."""
        return (
            {**found, "version": _SIDECAR_VERSION, **self.source} == found
            and is_made_from(found, self.segment.path)
            and self._has_settings(found)
            # Without skipped damage, the source had none.
            and (not found.get("damage") or self._options.on_corrupt == "skip")
            and self.fits(found)
        )

    def adopt_done(self) -> bool:
        """Return whether this segment was written already, and if so, complete the report."""
        found = self.target.read_sidecar(self.task.sidecar)
        if found is None or found["outdated"] or not self._fits(found):
            return False
        sizes = self._target_sizes(found)
        if not sizes or sizes != found["targets"] or not self.target.has_indexes(sizes):
            return False
        self.report.status, self.report.target_bytes = "unchanged", sum(sizes.values())
        self.report.damage = list(found.get("damage", []))
        self.complete_report(found)
        return True

    def _target_sizes(self, found: dict[str, Any]) -> dict[str, int]:
        """Return names and sizes of the existing segments that a sidecar lists."""
        return self.target.sizes({*found["targets"], *found["outdated"]})

    def _outdated(self) -> dict[str, int]:
        """Return names and sizes of the segments of an earlier run, of an older source or with other options.

        Raises FileExistsError if the target has a segment that no rewrite of this source has written.
        """
        found = self.target.read_sidecar(self.task.sidecar)
        if found is None:
            self._refuse_others([self.task.target.name])
            return {}
        sizes = self._target_sizes(found)
        if sizes and not is_made_from(found, self.segment.path):
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
            if self.target.has_segment(name):
                sidecar = self.task.sidecar.name
                what = "does not tell of it" if is_there(self.task.sidecar) else "is not there"
                self._refuse(
                    self.task.target_folder / name, f"no known result of this command: {sidecar} {what}"
                )

    def _refuse(self, path: StoragePath, reason: str) -> NoReturn:
        way = (
            f"remove it and {self.task.sidecar.name}, or choose another target folder, to have it {self.done}"
        )
        raise FileExistsError(errno.EEXIST, f"is in the way, {reason}; {way}", str(path))

    def _write_sidecar(self, targets: dict[str, int], outdated: dict[str, int]) -> None:
        """Write the sidecar. This must be done before segments are committed, so that none is without a sidecar.

        While it lists outdated segments, these may still exist in place of the targets.
        """
        content = {
            "version": _SIDECAR_VERSION,
            "source": str(self.segment.path),
            **self.source,
            **self.settings(),
            **self.extra_settings(),
            "targets": targets,
            "outdated": outdated,
            **self.outcome(),
            "damage": self.report.damage,
        }
        self.target.write_sidecar(self.task.sidecar, (json.dumps(content) + "\n").encode())
