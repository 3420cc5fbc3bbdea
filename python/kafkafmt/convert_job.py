"""The conversion of a log directory, segment by segment: what the command line and the Spark job both run.

`plan` lists the segments, `convert_segment` converts one in bounded memory, `convert_in_processes` many at once.
Each converted segment has a sidecar, `<base offset>.converted`, which says what it was made of and how; brokers
pass over files of that name (LogLoader knows its suffixes and ignores others). A segment counts as done only
where its sidecar fits the source as it is now, the options, and the segment that is there. So a second run does
what is missing, and two attempts at one segment at the same time end with one of the two, which are the same.

Only segments are converted, and transaction indexes kept where they still mean something: in format v2. Other
files of a partition folder (leader epochs, producer snapshots, metadata) are a broker's own and are left behind.
"""

from __future__ import annotations

import errno
import fnmatch
import json
import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from kafkafmt.conversion import ConversionStats
from kafkafmt.down_conversion import DEFAULT_CHUNK_SIZE, LazyDownConvertRecords
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log import (
    Damage,
    LogDirectory,
    PartitionLog,
    Segment,
    SegmentRecords,
    SegmentWriter,
    find_damage,
    remove_stale_temporaries,
)
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

SIDECAR_SUFFIX = ".converted"
_SIDECAR_VERSION = 1
_POLL_SECONDS = 0.1

OnCorrupt = Literal["fail", "skip"]
Status = Literal["converted", "unchanged", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True)
class ConvertOptions:
    """How segments are converted.

    to_magic: 0, 1 or 2.
    on_corrupt: "fail" gives a segment with damage up; "skip" leaves the damaged batches out and tells of them.
    zstd_fallback: the codec that zstd batches get below v2, which has no zstd; None gives the segment up.
    chunk_size: source bytes that are read and converted at a time.
    """

    to_magic: int
    on_corrupt: OnCorrupt = "fail"
    zstd_fallback: Codec | None = None
    chunk_size: int = DEFAULT_CHUNK_SIZE


@dataclass(frozen=True)
class SegmentTask:
    """A segment to convert, and the partition folder that the result goes to."""

    segment: Segment
    target_folder: Path
    source_bytes: int

    @property
    def target(self) -> Path:
        return self.target_folder / self.segment.path.name

    @property
    def sidecar(self) -> Path:
        return self.target.with_suffix(SIDECAR_SUFFIX)


@dataclass
class SegmentReport:
    """What became of one segment.

    status: "converted"; "unchanged": it was converted by an earlier run; "failed": nothing of it is there.
    damage: what was left out, or, of a failed segment, what it failed at.
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
        message = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        elif self.path not in message:
            message = f"{self.path}: {message}"
        self.status, self.error, self.error_type = "failed", message, type(error).__name__
        return self


Progress = Callable[[int], None]


class ConvertError(ValueError):
    """Source and target folders that a conversion cannot start with."""


def plan(source: Path, target: Path, topics: str | None = None) -> list[SegmentTask]:
    """The segments under a log directory or partition folder, largest first.

    topics: a shell pattern that names of topics must match. Raises ConvertError where there is nothing to do or
    the target lies in the source.
    """
    if not source.is_dir():
        raise ConvertError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}")
    if target.resolve().is_relative_to(source.resolve()):
        raise ConvertError(f"{target}: the target folder is in the source folder {source}")
    if target.exists() and not target.is_dir():
        raise ConvertError(f"{target}: not a folder")
    tasks = []
    found = False
    for log in partition_logs(source):
        found = True
        if topics is None or fnmatch.fnmatchcase(
            log.topic_partition.topic if log.topic_partition else "", topics
        ):
            folder = target / log.path.resolve().name
            if folder.resolve() == log.path.resolve():
                raise ConvertError(f"{target}: the segments of {log.path} would go into that folder itself")
            tasks += [_task(segment, folder) for segment in log.segments()]
    if not found:
        raise ConvertError(
            f"{source}: no segments here, neither in it nor in folders named <topic>-<partition>"
        )
    if not tasks:
        raise ConvertError(f"{source}: no topic matches {topics!r}")
    return sorted(tasks, key=lambda task: (-task.source_bytes, task.segment.path))


def partition_logs(source: Path) -> list[PartitionLog]:
    """The logs under a log directory, or the one in a folder that itself holds segments."""
    log = PartitionLog(source)
    if log.segments():
        return [log]
    directory = LogDirectory(source)
    return [directory.partition(found) for found in directory.partitions()]


def _task(segment: Segment, folder: Path) -> SegmentTask:
    segment = Segment(segment.path.resolve(), segment.is_active)
    return SegmentTask(segment, folder.resolve(), segment.size_in_bytes)


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
    report.seconds = time.perf_counter() - started
    return report


def damage_row(damage: Damage) -> dict[str, Any]:
    """A stretch of damage as the fields of a report."""
    return {**asdict(damage), "path": None if damage.path is None else str(damage.path)}


def intact_ranges(damage: Sequence[dict[str, Any]]) -> list[tuple[int, int | None]]:
    """The positions between damaged stretches: start and end, None for the end of the file."""
    starts = [0, *(stretch["end_position"] for stretch in damage)]
    ends = [*(stretch["position"] for stretch in damage), None]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if end is None or start < end]


class _WatchedRecords(SegmentRecords):
    """The records of a segment; tells how far they were read."""

    def __init__(self, segment: Segment, start: int, end: int | None, progress: Progress | None) -> None:
        super().__init__(segment.path, start, end, is_active=segment.is_active)
        self._progress = progress
        self._reached = start

    def runs(self, *args: Any, **kwargs: Any) -> Iterator[BatchRun]:
        for run in super().runs(*args, **kwargs):
            end = int(run.index["position"][-1]) + int(run.index["size"][-1])
            if self._progress is not None and end > self._reached:
                self._progress(end - self._reached)
                self._reached = end
            yield run


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

    def run(self) -> None:
        self.report.source_bytes = self.source["source_bytes"]
        if self._adopt_done():
            if self.progress is not None:
                self.progress(self.report.source_bytes)
            return
        self._refuse_foreign()
        self.task.target_folder.mkdir(parents=True, exist_ok=True)
        remove_stale_temporaries(self.task.target_folder)
        # Older than its source, or made with other options.
        self.task.target.unlink(missing_ok=True)
        try:
            self._write_or_leave_out()
        except FileExistsError:
            # Another attempt at the same segment was faster.
            if not self._adopt_done():
                raise
        else:
            self.report.records_converted = self.stats.records_converted
            self.report.target_bytes = self.task.target.stat().st_size

    def _write_or_leave_out(self) -> None:
        try:
            self._write([(0, None)])
        except KafkaFormatError as error:
            self.report.damage = self._damage(error)
            if self.options.on_corrupt == "fail" or not self.report.damage:
                raise
            self.stats, self.progress = ConversionStats(), None
            self._write(intact_ranges(self.report.damage))

    def _write(self, ranges: Sequence[tuple[int, int | None]]) -> None:
        options = self.options
        with SegmentWriter(self.task.target_folder, self.segment.base_offset) as writer:
            for start, end in ranges:
                with _WatchedRecords(self.segment, start, end, self.progress) as records:
                    lazy = LazyDownConvertRecords(
                        records,
                        options.to_magic,
                        chunk_size=options.chunk_size,
                        zstd_fallback=options.zstd_fallback,
                    )
                    for chunk in lazy.chunks(self.stats):
                        writer.append(chunk)
            if options.to_magic == 2:
                writer.add_aborted_transactions(self.segment.aborted_transactions() or [])
            self._write_sidecar(writer.size_in_bytes)

    def _damage(self, error: KafkaFormatError) -> list[dict[str, Any]]:
        """All damage where it is to be left out, else what `error` is about; none where that is no damage."""
        if self.options.on_corrupt == "skip":
            with self.segment.open() as records:
                return [
                    damage_row(found) for found in find_damage(records, deep=True) if not self._is_tail(found)
                ]
        if error.position is None or error.path != str(self.segment.path):
            return []
        with self.segment.open(error.position) as records:
            first = next(find_damage(records, deep=True), None)
        return [] if first is None or first.position != error.position else [damage_row(first)]

    def _is_tail(self, damage: Damage) -> bool:
        return self.segment.is_active and damage.kind in ("truncated tail", "zero tail")

    def _fits(self, found: dict[str, Any]) -> bool:
        """Would this conversion make what the sidecar `found` tells of?"""
        return (
            {**found, **self._wanted()} == found
            # Made without a fallback, it had no use for one; made without leaving anything out, nothing is damaged.
            and found.get("zstd_fallback") in (None, self._zstd_fallback())
            and (not found.get("damage") or self.options.on_corrupt == "skip")
        )

    def _wanted(self) -> dict[str, Any]:
        return {"version": _SIDECAR_VERSION, **self.source, "to_magic": self.options.to_magic}

    def _zstd_fallback(self) -> str | None:
        codec = self.options.zstd_fallback
        return None if codec is None else codec.name.lower()

    def _adopt_done(self) -> bool:
        """Has this segment been converted already? If so, the report says so."""
        found = _read_sidecar(self.task.sidecar)
        if found is None or not self._fits(found):
            return False
        try:
            target_bytes = self.task.target.stat().st_size
        except FileNotFoundError:
            return False
        if target_bytes != found.get("target_bytes"):
            return False
        self.report.status, self.report.target_bytes = "unchanged", target_bytes
        self.report.records_converted = int(found.get("records_converted", 0))
        self.report.damage = list(found.get("damage", []))
        return True

    def _refuse_foreign(self) -> None:
        """Raise where a segment stands in the way that no conversion made."""
        target = self.task.target
        if target.exists() and _read_sidecar(self.task.sidecar) is None:
            message = (
                f"exists and is no result of a conversion: there is no {self.task.sidecar.name} beside it"
            )
            raise FileExistsError(errno.EEXIST, message, str(target))

    def _write_sidecar(self, target_bytes: int) -> None:
        """Before the segment is committed: without the segment it means nothing, and no segment of ours lacks it."""
        content = {
            **self._wanted(),
            "zstd_fallback": self._zstd_fallback(),
            "target_bytes": target_bytes,
            "records_converted": self.stats.records_converted,
            "damage": self.report.damage,
        }
        sidecar = self.task.sidecar
        # Not named as a segment writer's temporaries are, which others may take for stale.
        temporary = sidecar.with_name(f".{sidecar.name}.{secrets.token_hex(4)}")
        temporary.write_text(json.dumps(content) + "\n")
        temporary.rename(sidecar)


def _source_state(path: Path) -> dict[str, int]:
    found = path.stat()
    return {"source_bytes": found.st_size, "source_mtime_ns": found.st_mtime_ns}


def _read_sidecar(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def convert_in_processes(
    tasks: Sequence[SegmentTask], options: ConvertOptions, jobs: int, progress: Progress | None = None
) -> Generator[SegmentReport, None, None]:
    """Convert segments, `jobs` at once, each in a process of its own; reports come in the order they finish.

    Where this process dies, the others stop as well; where the iteration is given up, they do so soon.
    """
    if min(jobs, len(tasks)) <= 1:
        for task in tasks:
            yield convert_segment(task, options, progress)
        return
    context = multiprocessing.get_context("spawn")
    done_bytes, stop = context.Value("q", 0), context.Event()
    executor = ProcessPoolExecutor(min(jobs, len(tasks)), context, _start_worker, (done_bytes, stop))
    told = 0
    try:
        waiting = {executor.submit(_convert_in_worker, task, options): task for task in tasks}
        while waiting:
            finished, _ = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            if progress is not None:
                progress(done_bytes.value - told)
                told = done_bytes.value
            for future in finished:
                yield _outcome(future, waiting.pop(future))
    finally:
        stop.set()
        executor.shutdown(cancel_futures=True)


def _outcome(future: Future[SegmentReport], task: SegmentTask) -> SegmentReport:
    try:
        return future.result()
    except BrokenProcessPool:
        error = RuntimeError("a worker process was killed, perhaps for want of memory: try fewer jobs")
        return SegmentReport.of(task).fail(error)


class _Stopped(BaseException):
    """The parent process gave the conversion up."""


class _Worker:
    """What a worker process shares with its parent."""

    done_bytes: Synchronized[int]
    stop: Event


def _start_worker(done_bytes: Synchronized[int], stop: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and sets `stop`
    _Worker.done_bytes, _Worker.stop = done_bytes, stop
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _convert_in_worker(task: SegmentTask, options: ConvertOptions) -> SegmentReport:
    def progress(read_bytes: int) -> None:
        if _Worker.stop.is_set():
            raise _Stopped
        with _Worker.done_bytes.get_lock():
            _Worker.done_bytes.value += read_bytes

    return convert_segment(task, options, progress)
