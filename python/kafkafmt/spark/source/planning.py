"""What the driver does: from paths to tasks, each a few splits of segments, cut where batches begin.

Nothing is decompressed, but for the one batch that a timestamp is looked for in. Of a segment the driver reads its
indexes where a bound lies in it or it is to be cut, and its headers where there are none. For committed reads it
reads the headers of each log's last segment, or of all of them where a broker's `.snapshot` and `.txnindex` files
are missing.
"""

from __future__ import annotations

import contextlib
import difflib
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.datasource import InputPartition

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex, transactions_from_bytes
from kafkafmt.log.segment import (
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    SegmentIndexes,
    SegmentRange,
)
from kafkafmt.log.splitting import split_points
from kafkafmt.log.transactions import TransactionTracker, parse_producer_snapshot
from kafkafmt.spark.files import SegmentFile, list_segments, open_records, read_sidecar
from kafkafmt.spark.locations import without_secrets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.records import Records
    from kafkafmt.spark.source.options import Bound, ReadOptions

# What a split costs beside its bytes: opening a file, a task's share of work.
_OPEN_COST_BYTES = 64 * 1024
_MAX_OFFSET = 2**63 - 1
# A bound or a cut costs round trips to a store, most of them one after the other.
_PLANNED_AT_ONCE = 16

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Split:
    """A stretch of a segment, from the beginning of a batch to that of another or to the end.

    start_offset, end_offset: records in front of the one, and from the other on, are left out; None: none are.
    is_log_end: it ends where its log does, so that a batch may be cut off there.
    aborted: the transactions whose records are left out.
    """

    segment: SegmentFile
    start: int
    end: int
    start_offset: int | None = None
    end_offset: int | None = None
    is_log_end: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


class ReadTask(InputPartition):
    """Splits that one task reads, in order."""

    def __init__(self, splits: Sequence[Split]) -> None:
        super().__init__(None)
        self.splits = tuple(splits)


def plan(options: ReadOptions) -> list[ReadTask]:
    """The tasks of a read, in the order of topics, partitions and offsets; one without splits where there is nothing.

    Raises FileNotFoundError and ValueError, in one line, for paths that hold no log, topics that are not there and
    offsets outside the log, and KafkaFormatError for damage that is in the way.
    """
    with ThreadPoolExecutor(_PLANNED_AT_ONCE) as threads:
        of_logs = list(threads.map(lambda log: list(log.splits()), find_logs(options)))
    return list(_tasks(list(chain.from_iterable(of_logs)), options.split_bytes))


def _tasks(splits: Sequence[Split], most_bytes: int) -> Iterator[ReadTask]:
    """A task costs more than a small split, so that those share one."""
    together: list[Split] = []
    size = 0
    for split in splits:
        cost = split.end - split.start + _OPEN_COST_BYTES
        if together and size + cost > most_bytes:
            yield ReadTask(together)
            together, size = [], 0
        together.append(split)
        size += cost
    yield ReadTask(together)


def find_logs(options: ReadOptions) -> list[Log]:
    """The logs of the partitions that are asked for."""
    folders: dict[str, list[SegmentFile]] = {}
    for segment in list_segments(options.paths, options.file_system):
        folders.setdefault(posixpath.dirname(segment.uri), []).append(_named(segment, options))
    logs = [
        Log(folder, tuple(sorted(segments, key=lambda segment: segment.base_offset)), options)
        for folder, segments in folders.items()
    ]
    topics = {log.topic for log in logs if log.topic is not None}
    missing = options.topics.unmatched(topics)
    if missing is not None:
        near = difflib.get_close_matches(missing, topics, 3, cutoff=0)
        paths = ", ".join(map(without_secrets, options.paths))
        raise ValueError(f"no topic {missing!r} in {paths}: found {', '.join(near) or 'none'}")
    chosen = [log for log in logs if _is_chosen(log, options)]
    _ensure_distinct(chosen)
    for name, bound in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        _ensure_all_named(name, bound, chosen)
    return sorted(chosen, key=lambda log: (log.topic_partition or ("", 0), log.folder))


def _named(segment: SegmentFile, options: ReadOptions) -> SegmentFile:
    if options.topic_partition is None or segment.topic_partition is not None:
        return segment
    return replace(segment, topic_partition=options.topic_partition)


def _is_chosen(log: Log, options: ReadOptions) -> bool:
    return options.topics.is_everything or (log.topic is not None and log.topic in options.topics)


def _ensure_distinct(logs: Sequence[Log]) -> None:
    folders: dict[TopicPartition, str] = {}
    for log in logs:
        if log.topic_partition is not None:
            other = folders.setdefault(log.topic_partition, log.folder)
            if other != log.folder:
                both = f"{other} and {log.folder}"
                raise ValueError(
                    f"partition {log.topic_partition} is in {both}: its records would come twice"
                )


def _ensure_all_named(name: str, bound: Bound, logs: Sequence[Log]) -> None:
    """As Spark's Kafka source has it: offsets are given for all partitions that are read, and for no other."""
    if bound.offsets is None:
        return
    missing = [str(log) for log in logs if log.topic_partition not in bound.offsets]
    if missing:
        raise ValueError(
            f"{name}: expected an offset for every partition, found none for {', '.join(missing)}"
        )
    unknown = set(bound.offsets) - {log.topic_partition for log in logs}
    if unknown:
        raise ValueError(f"{name}: {', '.join(map(str, sorted(unknown)))}: no such partition here")


@dataclass(frozen=True)
class Log:
    """The segments of one partition, by base offset, and what is asked of them."""

    folder: str
    segments: tuple[SegmentFile, ...]
    options: ReadOptions

    def __str__(self) -> str:
        return str(self.topic_partition or self.folder)

    @property
    def topic_partition(self) -> TopicPartition | None:
        return self.segments[0].topic_partition

    @property
    def topic(self) -> str | None:
        return self.topic_partition.topic if self.topic_partition is not None else None

    def splits(self) -> Iterator[Split]:
        """What is to be read, in order."""
        start, end = self._offsets()
        aborted: tuple[AbortedTransaction, ...] = ()
        if self.options.isolation == "read_committed":
            aborted, stable = self._transactions
            end = stable if end is None or (stable is not None and stable < end) else end
        if start is not None and end is not None and start >= end:
            return
        for number, segment in enumerate(self.segments):
            next_base = self._base_offset(number + 1)
            if (end is not None and segment.base_offset >= end) or (
                start is not None and next_base is not None and next_base <= start
            ):
                continue
            yield from self._segment_splits(
                Split(
                    segment,
                    0,
                    segment.size_in_bytes,
                    start_offset=start if start is not None and start > segment.base_offset else None,
                    end_offset=end if end is not None and (next_base is None or end < next_base) else None,
                    is_log_end=next_base is None,
                    aborted=_between(aborted, segment.base_offset, next_base),
                )
            )

    def _base_offset(self, number: int) -> int | None:
        return self.segments[number].base_offset if number < len(self.segments) else None

    def _segment_splits(self, whole: Split) -> Iterator[Split]:
        """The part of a segment in which its bounds lie, cut where it is large."""
        is_large = whole.end > self.options.split_bytes
        if whole.start_offset is None and whole.end_offset is None and not is_large:
            if whole.end:
                yield whole
            return
        segment = whole.segment
        indexes = read_indexes(segment)
        start, end = whole.start, whole.end
        if whole.start_offset is not None or whole.end_offset is not None:
            with self._open(segment) as records, contextlib.suppress(KafkaFormatError):
                start, end = _narrowed(whole, indexes, records)  # else the task that comes to it tells
        if end - start <= 0:
            return
        ranges = [(start, end)]
        if end - start > self.options.split_bytes:
            with self._open(segment, start, end) as records:
                ranges = split_points(records, self.options.split_bytes, indexes.offset_index)
        for first, stop in ranges:
            yield replace(
                whole, start=first, end=stop, is_log_end=whole.is_log_end and stop == segment.size_in_bytes
            )

    @contextlib.contextmanager
    def _open(self, segment: SegmentFile, start: int = 0, end: int | None = None) -> Iterator[SegmentRange]:
        end = segment.size_in_bytes if end is None else end
        limit = self.options.max_decompressed_bytes
        with open_records(segment, start, end, max_decompressed_bytes=limit) as records:
            yield SegmentRange(records, is_active=segment is self.segments[-1])

    def _read_through(self, segment: SegmentFile, read: Callable[[SegmentRange], _Found]) -> _Found:
        """What `read` makes of a segment; behind damage that is not to stop the read, it goes on with the rest."""
        position = 0
        while True:
            with self._open(segment, position) as records:
                try:
                    return read(records)
                except KafkaFormatError as error:
                    if self.options.on_corrupt == "fail" or error.position is None:
                        raise records.described(error) from None
                    position = records.position_after(error)

    def _offsets(self) -> tuple[int | None, int | None]:
        """Start and end offset; None for those of the log."""
        start = self._offset("startingOffsets", self.options.starting)
        if start is None and self.options.starting.timestamp is not None:
            start = _MAX_OFFSET  # nothing here is as late
        end = self._offset("endingOffsets", self.options.ending)
        by_time = self.options.starting.timestamp is not None or self.options.ending.timestamp is not None
        if start is not None and end is not None and start > end and not by_time:
            raise ValueError(f"partition {self}: startingOffsets {start} is behind endingOffsets {end}")
        return start, end

    def _offset(self, name: str, bound: Bound) -> int | None:
        if bound.timestamp is not None:
            return self._find_timestamp(bound.timestamp)
        if bound.offsets is None or self.topic_partition is None:
            return None
        offset = bound.offsets[self.topic_partition]
        if offset is None:
            return None
        first, last = self.segments[0].base_offset, self._end_offset
        if offset < first or (last is not None and offset > last):
            log = f"the log has {first} to {'its end' if last is None else last}"
            raise ValueError(f"partition {self}: {name} {offset} is outside the log: {log} ({self.folder})")
        return offset

    @cached_property
    def _end_offset(self) -> int | None:
        """The offset behind the last whole batch; None where damage hides it, that is not to stop the read."""
        segment = self.segments[-1]
        try:
            with self._open(segment) as records:
                return read_indexes(segment).find_next_offset(records)
        except KafkaFormatError:
            if self.options.on_corrupt == "fail":
                raise
            return None

    def _find_timestamp(self, timestamp: int) -> int | None:
        """The offset of the first record with `timestamp` or a later one."""
        for segment in self.segments:
            indexes = read_indexes(segment, by_time=True)
            found = self._read_through(segment, partial(indexes.find_timestamp, timestamp=timestamp))
            if found is not None:
                return found.offset
        return None

    @cached_property
    def _transactions(self) -> tuple[tuple[AbortedTransaction, ...], int | None]:
        """The aborted transactions, and the offset of the first that has not ended (Kafka's last stable offset)."""
        indexed = self._indexed_transactions()
        aborted, open_transactions = indexed if indexed is not None else ([], {})
        tracker = TransactionTracker(open_transactions)
        for segment in self.segments if indexed is None else self.segments[-1:]:
            aborted += self._track(tracker, segment)
        return tuple(aborted), tracker.first_open_offset

    def _indexed_transactions(self) -> tuple[list[AbortedTransaction], dict[int, int]] | None:
        """Those aborted in front of the last segment, and those open there; None where a broker left no such files.

        A segment without a `.txnindex` has none aborted, where the broker's snapshot of its producers is there.
        """
        *closed, last = self.segments
        snapshot = parse_producer_snapshot(read_sidecar(last, SNAPSHOT_SUFFIX) or b"")
        if snapshot is None:
            return None
        aborted = []
        for segment in closed:
            data = read_sidecar(segment, TRANSACTION_INDEX_SUFFIX)
            found = None if data is None else transactions_from_bytes(data, segment.base_offset)
            if found is None:
                return None
            aborted += found
        return aborted, snapshot

    def _track(self, tracker: TransactionTracker, segment: SegmentFile) -> list[AbortedTransaction]:
        aborted: list[AbortedTransaction] = []

        def follow(records: SegmentRange) -> None:
            for run in records.runs(reuse_memory=True):
                aborted.extend(tracker.add(run))

        self._read_through(segment, follow)
        return aborted


def _narrowed(whole: Split, indexes: SegmentIndexes, records: Records) -> tuple[int, int]:
    """The bytes of a segment in which its bounds lie."""
    start, end = whole.start, whole.end
    if whole.start_offset is not None:
        row = indexes.find_row(records, whole.start_offset)
        start = end if row is None else int(row["position"])
    if whole.end_offset is not None:
        row = indexes.find_row(records, whole.end_offset)
        if row is not None:
            end = int(row["position"])
            if row["base_offset"] < whole.end_offset:  # of a wrapper it is not known
                end += int(row["size"])
    return start, end


def _between(
    aborted: Sequence[AbortedTransaction], start_offset: int, end_offset: int | None
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        one
        for one in aborted
        if one.last_offset >= start_offset and (end_offset is None or one.first_offset < end_offset)
    )


def read_indexes(segment: SegmentFile, *, by_time: bool = False) -> SegmentIndexes:
    """What is usable of the indexes beside a segment; of the time index only for a search `by_time`."""
    base_offset = segment.base_offset
    times = read_sidecar(segment, TIME_INDEX_SUFFIX) if by_time else b""
    return SegmentIndexes(
        base_offset,
        OffsetIndex.from_bytes(read_sidecar(segment, OFFSET_INDEX_SUFFIX) or b"", base_offset),
        TimeIndex.from_bytes(times or b"", base_offset),
    )
