"""One segment into one of another format or codec, in bounded memory, atomically, and once.

A converted segment has a sidecar, `<base offset>.converted`, which says what it was made from and how; brokers pass
over files of that name (LogLoader knows its suffixes and ignores others). The segment counts as done only where its
sidecar fits the source as it is now, the options, and what is there. So a second run does what is missing.

Attempts at one segment at the same time each write temporaries of their own. What is there is looked at and changed
only under a lock, so one attempt wins, and the others find that it is done.

Compaction merges segments, and retention deletes them. What earlier runs made of those goes in the commit of the
segment that has their offsets now: the sidecar names them as outdated before the new segment is renamed, and they are
removed behind that. So after a kill the target has the old segments, or the new one and some of the old: readers hand
out no offset of these twice (`log.overlaps`), and the next run removes them.

Records below the source's log start offset are deleted. The target's `log-start-offset-checkpoint` says so before any
segment is committed, for brokers and for all readers here; it is never lowered.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import NotRegularFileError, open_regular, read_regular, replace_file
from kafkafmt.codecs.measuring import decompressed_bytes
from kafkafmt.conversion import ConversionStats
from kafkafmt.converted_chunks import ConvertedChunks
from kafkafmt.errors import DecompressionLimitError, KafkaFormatError
from kafkafmt.jobs.convert.log_starts import carry_log_start, is_log_start_carried
from kafkafmt.jobs.convert.memory import ConvertMemory, ConvertMemoryError
from kafkafmt.jobs.convert.tasks import (
    SIDECAR_SUFFIX,
    ConvertError,
    ConvertOptions,
    SegmentReport,
    SegmentTask,
    intact_ranges,
)
from kafkafmt.jobs.files import damage_row, is_deleted, is_expected_tail
from kafkafmt.log import (
    AbortedTransaction,
    PartitionLog,
    Segment,
    SegmentRecords,
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
    segment_file_name,
)
from kafkafmt.records import MemoryRecords
from kafkafmt.sizes import at_least_text, size_text
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

# A segment that grows past this, as one of many small records does below v2, becomes several.
MAX_SEGMENT_BYTES = 2**31 - 1
_SIDECAR_VERSION = 1
# What a broker has in a folder while compaction replaces segments.
_BEING_COMPACTED = (".cleaned", ".swap")

Progress = Callable[[int], None]


def convert_segment(
    task: SegmentTask, options: ConvertOptions, progress: Progress | None = None
) -> SegmentReport:
    """Convert one segment, unless that was done already.

    Never raises for what the data or the file system is: the report tells. `progress` is called with the bytes
    of the source that were read since its last call.
    """
    report = SegmentReport.of(task)
    started = time.perf_counter()
    try:
        _Conversion(task, options, report, progress).run()
    except (KafkaFormatError, OSError, ValueError) as error:
        report.fail(error)
        if isinstance(error, FileNotFoundError) and is_deleted(task.segment.path):
            report.status = "gone"
    report.seconds = time.perf_counter() - started
    return report


def split_unchanged(
    tasks: Sequence[SegmentTask], options: ConvertOptions
) -> tuple[list[SegmentReport], list[SegmentTask]]:
    """The reports of segments that earlier runs converted, and the tasks that are left to do.

    Raises ConvertError if earlier runs had another to_magic, codec or level, unless `options.force` is set.
    """
    unchanged, left = [], []
    log_starts = LogStartOffsets()
    for task in tasks:
        report = SegmentReport.of(task)
        try:
            conversion = _Conversion(task, options, report, None)
            if (other := conversion.other_options()) is not None:
                raise ConvertError(
                    f"{task.target_folder.parent}: holds segments that were converted {other}: --force replaces them"
                )
            is_done = conversion.adopt_done() and not task.stale and is_log_start_carried(task, log_starts)
        except OSError:
            is_done = False
        if is_done:
            conversion.remove_lock()
            unchanged.append(report)
        else:
            left.append(task)
    return unchanged, left


class _WatchedRecords(SegmentRecords):
    """The records of a segment; tells how far they were read, and reads no batch that is larger than the memory."""

    def __init__(
        self,
        segment: Segment,
        start: int,
        end: int | None,
        options: ConvertOptions,
        progress: Progress | None,
    ) -> None:
        super().__init__(segment.path, start, end, is_active=segment.is_active)
        self._options = options
        self._progress = progress
        self._reached = start

    def runs(self, *args: Any, **kwargs: Any) -> Iterator[BatchRun]:
        for run in super().runs(*args, **kwargs):
            end = run.end_position
            if self._progress is not None and end > self._reached:
                self._progress(end - self._reached)
                self._reached = end
            yield run

    def _read(self, position: int, size: int, memory: bytearray | None) -> memoryview | bytes:
        bound = self._options.memory
        if bound is not None and size > max(bound.max_batch_bytes, self._options.chunk_size):
            raise _too_large(position, size, bound)
        return super()._read(position, size, memory)


class _Conversion:
    """One attempt at one segment."""

    def __init__(
        self, task: SegmentTask, options: ConvertOptions, report: SegmentReport, progress: Progress | None
    ) -> None:
        self.task = task
        self.segment = task.segment
        self.options = options
        self.report = report
        self.progress = progress
        # Taken before anything is read: what is appended meanwhile makes the next run convert again.
        self.source = _source_state(task.segment.path)
        self.stats = ConversionStats()
        self.lock = task.sidecar.with_name(f".{task.sidecar.name}.lock")

    def run(self) -> None:
        self.report.source_bytes = self.source["source_bytes"]
        with lock_log_directory(self.task.target_folder.parent):
            self._convert()

    def _convert(self) -> None:
        folder = self.task.target_folder
        folder.mkdir(parents=True, exist_ok=True)
        carry_log_start(self.task)
        with _locked(self.lock):
            if self.adopt_done():
                self._remove_stale(self._stale(), {})
                return
            self._outdated()
        remove_stale_temporaries(folder)
        try:
            self._write_or_leave_out()
        except FileExistsError:
            with _locked(self.lock):
                if not self.adopt_done():
                    raise

    def _write_or_leave_out(self) -> None:
        try:
            self._write([(0, None)])
        except KafkaFormatError as error:
            if isinstance(error, DecompressionLimitError):
                self._refuse_too_large(error.position)
            self.report.damage = self._damage(error)
            if self.options.on_corrupt == "fail" or not self.report.damage:
                raise
            self.stats, self.progress = ConversionStats(), None
            self._write(intact_ranges(self.report.damage))

    def _write(self, ranges: Sequence[tuple[int, int | None]]) -> None:
        """Write what is in `ranges` of the source. All is there once the segment of the source's name is."""
        writers: list[SegmentWriter] = []
        try:
            writers.append(self._writer(self.segment.base_offset))
            for chunk in self._chunks(ranges):
                if writers[-1].size_in_bytes + len(chunk) > MAX_SEGMENT_BYTES and writers[-1].size_in_bytes:
                    first = next(MemoryRecords(chunk).batches())
                    writers.append(self._writer(first.base_offset))
                writers[-1].append(chunk)
            if self.options.to_magic not in (0, 1):
                self._add_aborted_transactions(writers)
            self._commit(writers)
        finally:
            for writer in writers:
                writer.abort()

    def _writer(self, base_offset: int) -> SegmentWriter:
        return SegmentWriter(self.task.target_folder, base_offset, replace=True)

    def _commit(self, writers: Sequence[SegmentWriter]) -> None:
        """Commit, the segment of the source's name last, unless another attempt was faster."""
        with _locked(self.lock):
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
                self.report.records_converted = self.stats.records_converted
                self.report.partial_messages = self.stats.partial_messages

    def _chunks(self, ranges: Sequence[tuple[int, int | None]]) -> Iterator[memoryview]:
        options = self.options
        for start, end in ranges:
            with _WatchedRecords(self.segment, start, end, options, self.progress) as records:
                yield from ConvertedChunks(
                    records,
                    options.conversion(),
                    chunk_size=options.chunk_size,
                    stats=self.stats,
                    reuse_memory=True,
                )

    def _add_aborted_transactions(self, writers: Sequence[SegmentWriter]) -> None:
        """Each to the segment that holds its marker."""
        starts = [writer.base_offset for writer in writers]
        for transaction in self._aborted_transactions(writers[-1].next_offset):
            writers[max(bisect_right(starts, transaction.last_offset) - 1, 0)].add_aborted_transactions(
                [transaction]
            )

    def _aborted_transactions(self, end_offset: int) -> list[AbortedTransaction]:
        """Those whose abort marker is in the segment, out of the log where the index is damaged."""
        found = self.segment.aborted_transactions()
        if found is not None:
            return found
        log = PartitionLog(self.segment.path.parent)
        aborted = log.scan_aborted_transactions(end_offset)
        return [one for one in aborted if one.last_offset >= self.segment.base_offset]

    def _refuse_too_large(self, position: int | None) -> None:
        """Raise ConvertMemoryError where the batch there decompresses to more than there is memory for."""
        memory = self.options.memory
        if memory is None or position is None:
            return
        with self.segment.open(position) as records:
            run = next(records.runs(run_bytes=self.options.chunk_size))
            size = decompressed_bytes(int(run.index["codec"][0]), run.payload(0))
        if size is not None and size > memory.max_batch_bytes:
            raise _too_large(position, size, memory, " decompressed")

    def _damage(self, error: KafkaFormatError) -> list[dict[str, Any]]:
        """All damage where it is to be left out, else what `error` is about; none where that is no damage."""
        limit = self.options.max_batch_bytes
        if self.options.on_corrupt == "skip":
            with self.segment.open(max_decompressed_bytes=limit) as records:
                damage = [
                    found
                    for found in find_damage(records, deep=True, strict=False)
                    if not is_expected_tail(found, is_active=self.segment.is_active)
                ]
            for found in damage:
                if found.kind == "invalid":  # which a batch is called as well that is larger than the memory
                    self._refuse_too_large(found.position)
            return [damage_row(found) for found in damage]
        if error.position is None or error.path != str(self.segment.path):
            return []
        with self.segment.open(error.position, max_decompressed_bytes=limit) as records:
            first = next(find_damage(records, deep=True, strict=False), None)
        return [] if first is None or first.position != error.position else [damage_row(first)]

    def _stale(self) -> dict[Path, dict[str, int]]:
        """The sidecars of segments that have no source any more; the names and sizes of what they tell of.

        Nothing while the source is being compacted: a broker renames the old segments before the new one is there.
        """
        folder = self.segment.path.parent
        with os.scandir(folder) as entries:
            if not self.task.stale or any(entry.name.endswith(_BEING_COMPACTED) for entry in entries):
                return {}
        end_offset = MAX_OFFSET
        if self.segment.is_active:
            end_offset = self.segment.base_offset
            with contextlib.suppress(KafkaFormatError):
                end_offset = self.segment.find_next_offset()
        stale = {}
        for base_offset in self.task.stale:
            sidecar = self.task.target_folder / segment_file_name(base_offset, SIDECAR_SUFFIX)
            found = _read_sidecar(sidecar)
            if found is None or Path(found["source"]).parent != folder or os.path.lexists(found["source"]):
                continue
            sizes = self._target_sizes(found)
            if base_offset < end_offset:
                stale[sidecar] = sizes
            else:
                self.report.kept += [str(self.task.target_folder / name) for name in sorted(sizes)]
        return stale

    def _remove_stale(self, stale: dict[Path, dict[str, int]], targets: dict[str, int]) -> None:
        """Remove segments, `targets` excepted, and then their sidecars: a run after a kill finds what is left."""
        for sidecar, sizes in stale.items():
            names = sorted(sizes.keys() - targets.keys())
            self._remove(names)
            sidecar.unlink(missing_ok=True)
            self.report.removed += [str(self.task.target_folder / name) for name in names]

    def other_options(self) -> str | None:
        """How else than is asked for the segment was converted, in words; None if it was not, or `force` is set."""
        found = None if self.options.force else _read_sidecar(self.task.sidecar)
        if found is None or found["source"] != str(self.segment.path) or not self._target_sizes(found):
            return None
        made = found.get("to_magic"), found.get("codec"), found.get("level")
        if made == (self.options.to_magic, _name(self.options.codec), self.options.level):
            return None
        names = ("--to-magic", "--codec", "--level")
        given = [f"{name} {value}" for name, value in zip(names, made, strict=True) if value is not None]
        return f"with {' '.join(given)}"

    def _fits(self, found: dict[str, Any]) -> bool:
        """Would this conversion make what the sidecar `found` tells of?"""
        return (
            {**found, **self._wanted()} == found
            and (found.get("codec"), found.get("level")) == (_name(self.options.codec), self.options.level)
            # Made without a fallback, it had no use for one; made without leaving anything out, nothing is damaged.
            and found.get("zstd_fallback") in (None, _name(self.options.zstd_fallback))
            and (not found.get("damage") or self.options.on_corrupt == "skip")
        )

    def _wanted(self) -> dict[str, Any]:
        return {
            "version": _SIDECAR_VERSION,
            "source": str(self.segment.path),
            **self.source,
            "to_magic": self.options.to_magic,
        }

    def remove_lock(self) -> None:
        """Remove the lock file that a killed attempt left; waits for an attempt at work, which removes it itself."""
        if self.lock.exists():
            with _locked(self.lock):
                pass

    def adopt_done(self) -> bool:
        """Has this segment been converted already? If so, the report says so."""
        found = _read_sidecar(self.task.sidecar)
        if found is None or found["outdated"] or not self._fits(found):
            return False
        sizes = self._target_sizes(found)
        if not sizes or sizes != found["targets"]:
            return False
        self.report.status, self.report.target_bytes = "unchanged", sum(sizes.values())
        self.report.records_converted = int(found.get("records_converted", 0))
        self.report.damage = list(found.get("damage", []))
        self.report.partial_messages = int(found.get("partial_messages", 0))
        return True

    def _target_sizes(self, found: dict[str, Any]) -> dict[str, int]:
        """Names and sizes of the segments that a sidecar tells of, of those that are there."""
        names = {*found["targets"], *found["outdated"]}
        paths = [self.task.target_folder / name for name in names]
        return {path.name: path.stat().st_size for path in paths if path.exists()}

    def _outdated(self) -> dict[str, int]:
        """Names and sizes of what an earlier conversion made: its source was older then, or its options others.

        Raises FileExistsError where a segment stands in the way that no conversion of this source made.
        """
        found = _read_sidecar(self.task.sidecar)
        if found is None:
            self._refuse_others([self.task.target.name])
            return {}
        sizes = self._target_sizes(found)
        if sizes and found["source"] != str(self.segment.path):
            self._refuse(self.task.target_folder / min(sizes), f"it was made from {found['source']}")
        if (other := self.other_options()) is not None:
            message = f"was converted {other}: force replaces it"
            raise FileExistsError(errno.EEXIST, message, str(self.task.target))
        self._refuse_others({self.task.target.name} - sizes.keys())
        for name, size in sizes.items():
            # Of a commit that was killed, some may be the new ones and some those they were to replace.
            if size not in (found["targets"].get(name), found["outdated"].get(name)):
                self._refuse_others([name])
        return sizes

    def _refuse_others(self, names: Iterable[str]) -> None:
        """Refuse to replace segments of these names, of which the sidecar does not tell."""
        for name in names:
            path = self.task.target_folder / name
            if path.exists():
                sidecar = self.task.sidecar.name
                is_there = self.task.sidecar.exists()
                what = "does not tell of it" if is_there else "is not there"
                self._refuse(path, f"no result of a conversion that is known: {sidecar} {what}")

    def _refuse(self, path: Path, reason: str) -> NoReturn:
        way = f"remove it and {self.task.sidecar.name}, or choose another target folder, to have it converted"
        raise FileExistsError(errno.EEXIST, f"is in the way, {reason}; {way}", str(path))

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            path = self.task.target_folder / name
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX):
                path.with_suffix(suffix).unlink(missing_ok=True)

    def _write_sidecar(self, targets: dict[str, int], outdated: dict[str, int]) -> None:
        """Before segments are committed: without them it means nothing, and no segment of ours lacks it.

        As long as it tells of outdated ones, they may be what is there.
        """
        content = {
            **self._wanted(),
            "zstd_fallback": _name(self.options.zstd_fallback),
            "codec": _name(self.options.codec),
            "level": self.options.level,
            "targets": targets,
            "outdated": outdated,
            "records_converted": self.stats.records_converted,
            "partial_messages": self.stats.partial_messages,
            "damage": self.report.damage,
        }
        replace_file(self.task.sidecar, (json.dumps(content) + "\n").encode())


def _too_large(position: int, size: int, memory: ConvertMemory, how: str = "") -> ConvertMemoryError:
    return ConvertMemoryError(
        f"batch at position {position}: expected at most {memory.max_batch_bytes} bytes{how}, which {memory.jobs} jobs "
        f"have room for in {size_text(memory.total_bytes)}, found {size}: "
        f"--memory {at_least_text(memory.enough_for(size))} would do"
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on the file at `path`, which is there only meanwhile; none on file systems without locks."""
    while True:
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # the one who held it has removed it
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _name(codec: Codec | None) -> str | None:
    return None if codec is None else codec.name.lower()


def _source_state(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"source_bytes": found.st_size, "source_mtime_ns": found.st_mtime_ns}


def _read_sidecar(path: Path) -> dict[str, Any] | None:
    """What a sidecar says; None where there is none, or none of ours."""
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
