"""One segment of a log: a file of record batches, and finding offsets and timestamps in it.

A search starts at the place an index names, after checking against the log that a batch begins there and that
nothing before it can be the answer; else at the beginning. So a missing, stale or damaged index costs time and
not the right answer, with one exception: where timestamps do not ascend, a damaged `.timeindex` that agrees with
the log at the entry used can hide an earlier record of a search by timestamp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from _kafkafmt.layout import LOG_OVERHEAD
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.decoding import locate
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.log.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    read_transaction_index,
)
from kafkafmt.records import RUN_BYTES, FileRecords, Records, RecordsRange
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np

    from _kafkafmt.scan import BatchRun

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
_FILE_NAME = re.compile(r"\d{20}\.log")
MAX_OFFSET = 2**63 - 1

_Found = TypeVar("_Found")

# What is entered while a batch is decompressed: a lock bounds how many are at a time.
Turn: TypeAlias = AbstractContextManager[Any]
NO_TURN: Turn = nullcontext()

# Searches read less at a time than readers do: with an index the answer is near.
_SEARCH_BYTES = 64 * 1024


def segment_file_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """The name of a segment's file.

    >>> segment_file_name(170)
    '00000000000000000170.log'
    """
    return f"{base_offset:020d}{suffix}"


def is_segment_file_name(name: str) -> bool:
    """Is it twenty digits, an offset, and `.log`?"""
    return _FILE_NAME.fullmatch(name) is not None and int(name[:20]) <= MAX_OFFSET


class SegmentRecords(FileRecords):
    """The records of a segment: a `FileRecords` that reports bytes at the end that are no whole batch.

    Of an active segment, which a broker may be writing or have been writing when it died, a batch that is cut
    off and a tail of zeros are left out. Anywhere else they are damage, as is a cut-off batch in front of a
    valid one: its length is a lie.
    """

    def __init__(
        self,
        path: Path,
        start: int = 0,
        end: int | None = None,
        *,
        is_active: bool,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        super().__init__(path, start, end, max_decompressed_bytes=max_decompressed_bytes)
        self._is_active = is_active
        self._is_whole = end is None

    def runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """As `Records.runs`; raises CorruptRecordError, all batches handed out, for a tail that is damage."""
        reached = self.start_position if position is None else position
        for run in super().runs(position, run_bytes=run_bytes, reuse_memory=reuse_memory):
            reached = run.end_position
            yield run
        if self._is_whole and reached < self.end_position:
            check_tail(self, reached, is_active=self._is_active)


class SegmentRange(RecordsRange):
    """A stretch of a segment, wherever that is read from: it reports damage at its end.

    From `position` on in `source`, whose end is the segment's or where a batch begins. is_active: it is that of
    the active segment, where a batch that is cut off and a tail of zeros are left out. `source` stays the caller's
    to close.
    """

    def __init__(self, source: Records, position: int | None = None, *, is_active: bool) -> None:
        start = source.start_position if position is None else position
        super().__init__(source, start, source.end_position)
        self._is_active = is_active

    def runs(
        self, position: int | None = None, *, run_bytes: int = RUN_BYTES, reuse_memory: bool = False
    ) -> Iterator[BatchRun]:
        """As `Records.runs`; raises CorruptRecordError, all batches handed out, for a tail that is damage."""
        reached = self.start_position if position is None else position
        for run in self._source.runs(reached, run_bytes=run_bytes, reuse_memory=reuse_memory):
            reached = run.end_position
            yield run
        if reached < self.end_position:
            check_tail(self, reached, is_active=self._is_active)


def check_tail(records: Records, position: int, *, is_active: bool) -> None:
    """Raise CorruptRecordError where the bytes from `position` on, which are no whole batch, are damage.

    They are none at the end of an active segment, unless a valid batch stands in them.
    """
    left, found = records.end_position - position, records.end_position
    size = min(LOG_OVERHEAD, left)
    start = bytes(records._read(position, size, None))  # less if the file was cut meanwhile
    if start == bytes(size):  # and so is all the rest, as the runs have found
        message = f"expected no bytes behind the last batch, found {left} zeros"
    else:
        message = f"expected a whole batch in the last {left} bytes, found a part of one"
        found = records.position_after(CorruptRecordError(message, position=position))
    if found < records.end_position:
        message = f"batch reaches past the end of the segment, but a valid one begins at {found}"
    elif is_active:
        return
    raise records.described(CorruptRecordError(message, position=position))


@dataclass(frozen=True)
class Segment:
    """A segment: the file at `path`, named for its base offset, and the indexes beside it.

    is_active: it is the last of its log, so its end may be missing. Cheap to make and to pickle: nothing is
    read until asked for, an index once. Raises ValueError for a name that is no segment's.
    """

    path: Path
    is_active: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not is_segment_file_name(self.path.name):
            raise ValueError(f"{self.path}: expected a name of 20 digits and {LOG_SUFFIX}, a segment's")

    def __reduce__(self) -> tuple[type[Segment], tuple[Path, bool]]:
        return Segment, (self.path, self.is_active)

    def __str__(self) -> str:
        return str(self.path)

    @cached_property
    def base_offset(self) -> int:
        """The offset that the file is named for; no record in it has a lower one."""
        return int(self.path.stem)

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition whose folder it lies in; None where the folder is not named for one."""
        return TopicPartition.from_folder_name(self.path.absolute().parent.name)

    @property
    def size_in_bytes(self) -> int:
        """The file's size now. Raises FileNotFoundError once it is deleted."""
        return self.path.stat().st_size

    @cached_property
    def offset_index(self) -> OffsetIndex:
        """What is usable of `.index`; empty where nothing is."""
        return OffsetIndex.read(self.path.with_suffix(OFFSET_INDEX_SUFFIX), self.base_offset)

    @cached_property
    def time_index(self) -> TimeIndex:
        """What is usable of `.timeindex`; empty where nothing is."""
        return TimeIndex.read(self.path.with_suffix(TIME_INDEX_SUFFIX), self.base_offset)

    def aborted_transactions(self) -> list[AbortedTransaction] | None:
        """What `.txnindex` says: the transactions whose abort marker is here. None where it is damaged."""
        path = self.path.with_suffix(TRANSACTION_INDEX_SUFFIX)
        return read_transaction_index(path, self.base_offset, is_active=self.is_active)

    def open(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> SegmentRecords:
        """Its records, from byte `start`, a batch's beginning, to `end`.

        A context manager. Raises FileNotFoundError where retention or compaction has deleted the file; once
        open, it stays readable.
        """
        return SegmentRecords(
            self.path, start, end, is_active=self.is_active, max_decompressed_bytes=max_decompressed_bytes
        )

    @cached_property
    def indexes(self) -> SegmentIndexes:
        """The two indexes by which it is searched."""
        return SegmentIndexes(self.base_offset, self.offset_index, self.time_index)

    def find_offset(self, offset: int) -> int | None:
        """The position of the batch that holds `offset`, or of the first behind it; None past the last batch.

        As Kafka's LogSegment.translateOffset. Raises KafkaFormatError where damage is in the way.
        """
        with self.open() as records:
            row = self.indexes.find_row(records, offset)
        return None if row is None else int(row["position"])

    def search_start(self, records: SegmentRecords, offset: int) -> int:
        """Where a batch begins, at or in front of the first one that ends at `offset` or later."""
        return self.indexes.search_start(records, offset)

    def find_timestamp(
        self,
        timestamp: int | datetime,
        start_offset: int = 0,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        turn: Turn = NO_TURN,
    ) -> TimestampOffset | None:
        """The first record with `timestamp` or a higher one; None where there is none.

        timestamp: milliseconds, or an aware datetime.

        start_offset: records below it are passed over. turn: is entered while a batch is decompressed. As Kafka's
        LogSegment.findOffsetByTimestamp. Raises KafkaFormatError where damage is in the way.
        """
        wanted_ms = milliseconds(timestamp)
        with self.open(max_decompressed_bytes=max_decompressed_bytes) as records:
            return self.indexes.find_timestamp(records, wanted_ms, start_offset, turn)

    def find_next_offset(self) -> int:
        """The offset behind its last whole batch; its base offset where it holds none.

        As Kafka's LogSegment.readNextOffset. Raises KafkaFormatError where damage is in the way.
        """
        with self.open() as records:
            return self.indexes.find_next_offset(records)


@dataclass(frozen=True)
class SegmentIndexes:
    """The indexes of a segment, and searches by them in its records, wherever those are read from."""

    base_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex

    def search_start(self, records: Records, offset: int) -> int:
        """Where a batch begins, at or in front of the first one that ends at `offset` or later."""
        position = self.offset_index.position_at_or_below(offset)
        return position if position and begins_batch(records, position, self.base_offset, offset) else 0

    def find_row(self, records: Records, offset: int) -> np.void | None:
        """The row, in the shallow index, of the first batch that ends at `offset` or later."""
        return find_row(records, offset, self.search_start(records, offset))

    def find_timestamp(
        self, records: Records, timestamp: int, start_offset: int = 0, turn: Turn = NO_TURN
    ) -> TimestampOffset | None:
        """The first record from `start_offset` on with `timestamp` (milliseconds) or a higher one, or None.

        turn: is entered while a batch is decompressed.
        """
        start = self._start_for_timestamp(records, timestamp)
        return _search(
            records, start, lambda runs: _first_at_or_after(records, runs, timestamp, start_offset, turn)
        )

    def find_next_offset(self, records: Records) -> int:
        """The offset behind the last whole batch; the base offset where there is none."""
        last = self.find_last_row(records)
        return self.base_offset if last is None else int(last["last_offset"]) + 1

    def find_last_row(self, records: Records) -> np.void | None:
        """The row, in the shallow index, of the last whole batch."""
        return _search(records, self.search_start(records, MAX_OFFSET), _last_row)

    def _start_for_timestamp(self, records: Records, timestamp: int) -> int:
        """Where a batch begins, at or in front of the first one with a record at `timestamp` or later."""
        entry = self.time_index.last_below(timestamp)
        if entry is None:
            return 0
        try:
            row = self.find_row(records, entry.offset)
        except KafkaFormatError:
            return 0
        if row is None or row["max_timestamp"] != entry.timestamp or row["base_offset"] > entry.offset:
            return 0
        return int(row["position"])


def begins_batch(records: Records, position: int, base_offset: int, offset: int) -> bool:
    """Does a valid batch begin at `position`, with a first offset from `base_offset` to `offset`?

    So are then all offsets in front of it below `offset`: what an index says, held against the log.
    """
    try:
        run = next(records.runs(position, run_bytes=_SEARCH_BYTES), None)
        if run is None:
            return False
        run.ensure_valid(0, 1)
    except KafkaFormatError:
        return False
    row = run.index[0]
    # A compressed v0/v1 wrapper tells its last offset alone; it is above all that come before, too.
    first = row["base_offset"] if row["base_offset"] >= 0 else row["last_offset"]
    return bool(base_offset <= first <= offset)


def find_row(records: Records, offset: int, start: int) -> np.void | None:
    """The row, in the shallow index, of the first batch from `start` on that ends at `offset` or later.

    start: where a batch is thought to begin; all in front of it end below `offset`.
    """
    return _search(records, start, lambda runs: _first_row(runs, offset))


def _search(records: Records, start: int, search: Callable[[Iterator[BatchRun]], _Found]) -> _Found:
    """What a search finds from `start` on, or from the beginning where batches do not go on from there.

    For what begins at `start` may be a batch by its looks alone: one inside the value of a record.
    """
    if start:
        try:
            return search(records.runs(start, run_bytes=_SEARCH_BYTES, reuse_memory=True))
        except KafkaFormatError:
            pass
    return search(records.runs(run_bytes=_SEARCH_BYTES, reuse_memory=True))


def _first_row(runs: Iterable[BatchRun], offset: int) -> np.void | None:
    for run in runs:
        reaches = run.index["last_offset"] >= offset
        if reaches.any():
            row: np.void = run.index[reaches.argmax()]
            return row
    return None


def _last_row(runs: Iterable[BatchRun]) -> np.void | None:
    row: np.void | None = None
    for run in runs:
        row = run.index[-1]
    return row


def _first_at_or_after(
    records: Records, runs: Iterable[BatchRun], timestamp: int, start_offset: int, turn: Turn
) -> TimestampOffset | None:
    for run in runs:
        may_hold = (run.index["max_timestamp"] >= timestamp) & (run.index["last_offset"] >= start_offset)
        for number in may_hold.nonzero()[0].tolist():
            try:
                with turn:
                    found = _first_in(run, number, timestamp, start_offset, records.max_decompressed_bytes)
            except KafkaFormatError as error:
                raise records.described(error) from None
            if found is not None:
                return found
    return None


def _first_in(
    run: BatchRun, number: int, timestamp: int, start_offset: int, limit: int
) -> TimestampOffset | None:
    """The first record of one batch with `timestamp` or a higher one."""
    located = locate(run, number, number + 1, verify=True, limit=limit)
    timestamps = located.timestamps()
    late = (timestamps >= timestamp) & (located.offsets() >= start_offset)
    if not late.any():
        return None
    first = int(late.argmax())
    return TimestampOffset(int(timestamps[first]), int(located.offsets()[first]))
