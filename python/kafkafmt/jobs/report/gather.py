"""Gather the contents of a report: one walk over each log, as `verify` does, whose batches go into bins.

The memory is that of one run, of the bins, and of a row for each segment and each problem. Damage and errors of the
file system are in the report, not raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.jobs.files import LogFile, Progress
from kafkafmt.jobs.report.bins import BinBuilder, Bins
from kafkafmt.jobs.report.transactions import TransactionEnds
from kafkafmt.jobs.summary import saved_by_codec
from kafkafmt.jobs.verify import FileCheck, IndexedSegments, check_file, check_logs
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.decoding import decompressed_chunks
from kafkafmt.records.runs import first_timestamps, slice_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.segment import Segment
    from kafkafmt.storage import StoragePath

# Bins of all partitions together, and of one. Few partitions get the most, thousands get the least.
TOTAL_BINS = 65_536
MOST_BINS, LEAST_BINS = 1024, 8


class ReportFile(LogFile, Protocol):
    """A file of record batches. segment: None if the file is no segment."""

    @property
    def path(self) -> StoragePath: ...

    @property
    def segment(self) -> Segment | None: ...


class GroupPosition(NamedTuple):
    """The offset that a consumer group has committed for a partition: that of the next record it will read."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True)
class Problem:
    """A defect of a file.

    severity: "damage", "finding" and "note" as in `kafkafmt.jobs.verify`; "failed": the file could not be read; "gone":
        it was deleted after it was listed.
    file: its name. position, end_position: the damaged range; None if the problem has none.
    first_offset, last_offset: those that the range should have, as far as they are known.
    """

    severity: str
    file: str
    kind: str
    message: str
    position: int | None = None
    end_position: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None


@dataclass
class SegmentReport:
    """A segment, or another file of record batches.

    base_offset: by the name of the segment; None for another file. next_offset: after the last sound batch.
    first_timestamp, last_timestamp: the lowest and the highest in batch headers, in milliseconds; None if none has one.
    problems: the number of problems that are no notes.
    """

    file: str
    base_offset: int | None
    next_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    size_in_bytes: int = 0
    tail_bytes: int = 0
    batches: int = 0
    problems: int = 0

    def add_timestamps(self, rows: NDArray[np.void]) -> None:
        """Extend the range of timestamps by those of batches."""
        firsts, lasts = first_timestamps(rows), rows["max_timestamp"]
        firsts, lasts = firsts[firsts != -1], lasts[lasts != -1]
        if len(firsts):
            known = firsts.min() if self.first_timestamp is None else min(firsts.min(), self.first_timestamp)
            self.first_timestamp = int(known)
        if len(lasts):
            known = lasts.max() if self.last_timestamp is None else max(lasts.max(), self.last_timestamp)
            self.last_timestamp = int(known)


@dataclass
class PartitionReport:
    """A log, or a file that is in no log.

    name: that of the folder, or of the file. topic, partition: None if the name is not that of a partition.
    log_start_offset: records below it are deleted; 0 if no checkpoint has it.
    uncompressed_bytes: by Kafka's number of each codec, the size of its batches without compression; None if nothing
        was decompressed.
    """

    name: str
    topic: str | None
    partition: int | None
    bins: Bins
    log_start_offset: int = 0
    segments: list[SegmentReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    uncompressed_bytes: dict[int, int] | None = None

    @property
    def end_offset(self) -> int | None:
        """The offset after the last batch; None if there is no batch."""
        return max((one.next_offset for one in self.segments if one.next_offset is not None), default=None)

    @property
    def is_damaged(self) -> bool:
        """Whether there is damage, a finding, or a file that could not be read."""
        return any(problem.severity in ("damage", "finding", "failed") for problem in self.problems)


def gather_partitions(
    files: Iterable[ReportFile], *, deep: bool = False, progress: Progress | None = None
) -> Iterator[PartitionReport]:
    """Read files, and yield a report of each log, in the order of its first file.

    files: the segments of a log in the order of their base offsets. deep: decompress all batches and read every record.
    progress: called with the number of bytes read since its last call.

    Raises CheckpointError if a `log-start-offset-checkpoint` is malformed.
    """
    logs = _logs(files)
    most_bins = bins_for(len(logs))
    starts, indexed = LogStartOffsets(), IndexedSegments()
    for name, log in logs:
        yield _Reader(name, log, most_bins, deep, indexed).read(starts, progress)


def bins_for(partitions: int) -> int:
    """Return the most bins of a partition if there are so many: a power of two.

    >>> [bins_for(count) for count in (1, 64, 65, 1000, 100_000)]
    [1024, 1024, 512, 64, 8]
    """
    share = max(TOTAL_BINS // max(partitions, 1), 1)
    return min(max(1 << (share.bit_length() - 1), LEAST_BINS), MOST_BINS)


def count_logs(files: Iterable[ReportFile]) -> int:
    """Return the number of reports that `gather_partitions` yields for files."""
    return len(_logs(files))


def _logs(files: Iterable[ReportFile]) -> list[tuple[str, list[ReportFile]]]:
    """Group the files by log. A file that is no segment is alone."""
    logs: dict[StoragePath, list[ReportFile]] = {}
    for file in files:
        logs.setdefault(file.path if file.segment is None else file.path.parent, []).append(file)
    return [(path.absolute().name, log) for path, log in logs.items()]


class _Reader:
    """Reads the files of one log."""

    def __init__(
        self, name: str, files: Sequence[ReportFile], most_bins: int, deep: bool, indexed: IndexedSegments
    ) -> None:
        self._name, self._files, self._deep, self._indexed = name, files, deep, indexed
        self._builder = BinBuilder(most_bins)
        self._transactions = TransactionEnds()
        self._sizes: Counter[int] = Counter()
        self._segments: list[SegmentReport] = []

    def read(self, starts: LogStartOffsets, progress: Progress | None) -> PartitionReport:
        """Read all files."""
        first = self._files[0]
        checks = list(check_logs(self._check(file, progress) for file in self._files))
        problems = []
        for check, segment in zip(checks, self._segments, strict=True):
            found = list(_problems(check, segment.file))
            segment.problems = sum(problem.severity != "note" for problem in found)
            problems += found
        topic, partition = first.topic_partition or (None, None)
        return PartitionReport(
            self._name,
            topic,
            partition,
            self._builder.take(),
            0 if first.segment is None else starts.of(first.path.absolute().parent),
            self._segments,
            problems,
            dict(self._sizes) if self._deep else None,
        )

    def _check(self, file: ReportFile, progress: Progress | None) -> FileCheck:
        segment = SegmentReport(file.path.name, None if file.segment is None else file.segment.base_offset)
        self._segments.append(segment)

        def add(run: BatchRun, first: int, stop: int) -> None:
            self._add(segment, run, first, stop)

        indexed = self._indexed.of(file.segment)
        check = check_file(file, progress, indexed=indexed, deep=self._deep, passed=add)
        segment.size_in_bytes, segment.tail_bytes = check.size_in_bytes, check.tail_bytes
        segment.batches = check.batches
        return check

    def _add(self, segment: SegmentReport, run: BatchRun, first: int, stop: int) -> None:
        rows = run.index[first:stop]
        firsts, counts = rows["base_offset"].copy(), rows["count"].astype(np.int64)
        wrappers = (firsts < 0).nonzero()[0]
        reached = min(segment.next_offset or segment.base_offset or 0, np.iinfo(np.int64).max)
        before = np.append(reached, rows["last_offset"][:-1] + 1)
        firsts[wrappers] = np.minimum(before, rows["last_offset"])[wrappers]
        if self._deep:
            for number in wrappers.tolist():
                batch = RecordBatch(run, first + number)
                firsts[number], counts[number] = batch.base_offset, batch.count
            self._add_sizes(slice_run(run, first, stop))
        segment.add_timestamps(rows)
        segment.next_offset = int(rows["last_offset"][-1]) + 1
        number = self._builder.batches
        self._builder.add(rows, firsts, counts)
        self._builder.end(self._transactions.add(run, first, stop, number, self._builder.shift))

    def _add_sizes(self, run: BatchRun) -> None:
        """Add the sizes of batches without compression."""
        sizes = np.bincount(run.index["codec"], run.index["size"])
        self._sizes.update({codec: int(sizes[codec]) for codec in sizes.nonzero()[0].tolist()})
        limit = DEFAULT_MAX_DECOMPRESSED_BYTES
        for first, _, payloads in decompressed_chunks(run, verify=False, limit=limit):
            self._sizes.update(saved_by_codec(run, first, payloads))


def _problems(check: FileCheck, file: str) -> Iterator[Problem]:
    for row in check.damage:
        last, following = row["last_offset"], row["next_offset"]
        yield Problem(
            "damage",
            file,
            row["kind"],
            row["message"],
            row["position"],
            row["end_position"],
            row["base_offset"] if row["expected_offset"] is None else row["expected_offset"],
            last if following is None else following - 1,
        )
    for severity, rows in (("finding", check.findings), ("note", check.notes)):
        for one in rows:
            yield Problem(severity, file, one["kind"], one["message"])
    if check.error is not None:
        is_gone = check.status == "gone"
        message = "deleted since it was listed" if is_gone else check.error
        yield Problem("gone" if is_gone else "failed", file, "file", message)
