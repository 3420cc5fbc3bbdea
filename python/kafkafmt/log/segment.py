"""One segment of a log: a file of record batches, with searches for offsets and timestamps.

A search starts at the position from an index, after a check against the log: a batch begins there, and no earlier
batch can be the result. Otherwise it starts at the beginning. So a missing, stale or damaged index makes a search
slower, not wrong. There is one exception: if timestamps do not ascend, a damaged `.timeindex` that matches the log at
the used entry can hide an earlier record from a search by timestamp.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from _kafkafmt.wire.layout import LOG_OVERHEAD
from kafkafmt._util.closing import Closing
from kafkafmt._util.files import NotRegularFileError, irregular_in_words
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import CorruptRecordError, InvalidRecordError, KafkaFormatError
from kafkafmt.log.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    read_transaction_index,
)
from kafkafmt.records.base import Records, RunFilter
from kafkafmt.records.decoding import locate
from kafkafmt.records.file import SEGMENT_NAME, FileRecords
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.records.range import RecordsRange
from kafkafmt.records.runs import expected_of_last, first_offset
from kafkafmt.storage import AnyPath, StoragePath, read_file, storage_of, storage_path
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
MAX_OFFSET = 2**63 - 1
# The highest offset in a segment, relative to its base offset: as much as an index has.
MAX_RELATIVE_OFFSET = 2**31 - 1

_Found = TypeVar("_Found")

# A context that is entered while a batch is decompressed. A lock limits how many are decompressed at once.
Turn: TypeAlias = AbstractContextManager[Any]
NO_TURN: Turn = nullcontext()

# Searches read less at once than readers: with an index the result is near.
_SEARCH_BYTES = 64 * 1024


def segment_file_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Return the name of a segment's file.

    >>> segment_file_name(170)
    '00000000000000000170.log'
    """
    return f"{base_offset:020d}{suffix}"


def is_segment_file_name(name: str) -> bool:
    """Whether a file name is that of a segment: an offset in 20 digits, and `.log`."""
    return SEGMENT_NAME.fullmatch(name) is not None and int(name[:20]) <= MAX_OFFSET


class SegmentRange(RecordsRange):
    """The records of a segment in `source` from `position` on. Damage at its end raises CorruptRecordError.

    source: ends at the end of the segment, or where a batch begins. The caller closes it.
    is_active: the segment is the active one, where an incomplete batch and zeros at the end are ignored.
    """

    def __init__(
        self,
        source: Records,
        position: int | None = None,
        *,
        is_active: bool,
        run_filter: RunFilter | None = None,
    ) -> None:
        start = source.start_position if position is None else position
        super().__init__(source, start, source.end_position, run_filter)
        self._check_tail = partial(check_tail, is_active=is_active)


class SegmentRecords(SegmentRange, Closing):
    """The records of a segment file, which this opens and closes.

    At the end of an active segment, an incomplete batch and zeros are ignored: a broker may be writing it, or have
    crashed. In other segments they raise CorruptRecordError, as does an incomplete batch before a valid one, whose
    length is wrong. If `end` is given, the bytes before it may end within a batch.

    size_in_bytes: the listed size of the file; no byte after it is read.
    """

    def __init__(
        self,
        path: AnyPath,
        start: int = 0,
        end: int | None = None,
        *,
        is_active: bool,
        size_in_bytes: int | None = None,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        run_filter: RunFilter | None = None,
    ) -> None:
        self.path = storage_path(path)
        self._opened = storage_of(self.path).open_records(
            self.path,
            start,
            size_in_bytes if end is None else end,
            topic_partition=topic_partition,
            max_decompressed_bytes=max_decompressed_bytes,
        )
        super().__init__(self._opened, is_active=is_active, run_filter=run_filter)
        if end is not None:
            self._check_tail = None

    def __repr__(self) -> str:
        return f"SegmentRecords({str(self.path)!r}, start={self.start_position}, end={self.end_position})"

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def fileno(self) -> int:
        """Return the file descriptor of a local file. Raises ValueError if it is closed, and for a remote file."""
        if isinstance(self._opened, FileRecords):
            return self._opened.fileno()
        raise ValueError(f"{self.path}: expected a local file, which has a descriptor")

    def is_zero_from(self, position: int) -> bool:
        """Return whether all bytes from `position` to the end are zeros."""
        return self._opened.is_zero_from(position)

    def extend(self) -> None:
        """Move the end of the records to the present end of the file."""
        super().extend()
        self._opened.extend()
        self.end_position = self._opened.end_position


def check_tail(records: Records, position: int, *, is_active: bool) -> None:
    """Raise CorruptRecordError if the bytes from `position` to the end, which are no whole batch, are damage.

    In an active segment they are damage only if they contain a valid batch.
    """
    left, found = records.end_position - position, records.end_position
    size = min(LOG_OVERHEAD, left)
    start = bytes(records.read_at(position, size))  # less if the file was cut meanwhile
    if start == bytes(size):  # the reader has found that all bytes after them are zeros, too
        message = f"expected no bytes after the last batch, found {left} zeros"
    else:
        message = f"expected a whole batch in the last {left} bytes, found a part of one"
        found = records.position_after(CorruptRecordError(message, position=position))
    if found < records.end_position:
        message = f"batch reaches past the end of the segment, but a valid one begins at {found}"
    elif is_active:
        return
    raise records.with_source(CorruptRecordError(message, position=position))


@dataclass(frozen=True)
class Segment:
    """A segment: the file at `path`, on any storage, whose name is its base offset, and the indexes beside it.

    It is cheap to create and to pickle, as files are read only when needed, and are not kept. Raises ValueError if the
    file name is not that of a segment.

    is_active: it is the last segment of its log, so its last batch may be incomplete.
    is_regular: False if a listing found a folder, a FIFO or a broken link of this name. It cannot be opened.

    `list_segments` sets the other fields; they are None for a segment that it did not list.

    modification_time_ms: since the epoch; None if the storage has no such time.
    sidecar_sizes: the sizes in bytes of the files beside the segment, by suffix (`.index`).
    next_base_offset: the base offset of the next segment of the log.
    is_named: a path or pattern named the segment, or the folder of its partition, and not just the log directory.
    """

    path: StoragePath
    is_active: bool = False
    listed_size_in_bytes: int | None = None
    modification_time_ms: int | None = None
    sidecar_sizes: Mapping[str, int] | None = field(default=None, hash=False)
    next_base_offset: int | None = None
    is_named: bool = field(default=True, compare=False)
    is_regular: bool = True

    if TYPE_CHECKING:  # `__post_init__` converts the path

        def __init__(
            self,
            path: AnyPath,
            is_active: bool = ...,
            listed_size_in_bytes: int | None = ...,
            modification_time_ms: int | None = ...,
            sidecar_sizes: Mapping[str, int] | None = ...,
            next_base_offset: int | None = ...,
            is_named: bool = ...,
            is_regular: bool = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", storage_path(self.path))
        if not is_segment_file_name(self.path.name):
            raise ValueError(f"{self.path}: expected a name of 20 digits and {LOG_SUFFIX}, a segment's")

    def __reduce__(self) -> tuple[type[Segment], tuple[Any, ...]]:
        return Segment, tuple(getattr(self, one.name) for one in fields(self))

    def __str__(self) -> str:
        return str(self.path)

    def unlisted(self) -> Segment:
        """Return the same segment without the listing: it is read up to its present end."""
        return Segment(self.path, self.is_active, is_regular=self.is_regular)

    def ensure_regular(self) -> None:
        """Raise NotRegularFileError if a listing found that this is not a regular file."""
        if not self.is_regular:
            raise NotRegularFileError(errno.EINVAL, irregular_in_words(str(self.path)), str(self.path))

    @cached_property
    def base_offset(self) -> int:
        """The offset in the file name. No record of the segment has a lower one."""
        return int(self.path.stem)

    @cached_property
    def topic_partition(self) -> TopicPartition | None:
        """The partition of its folder; None if the folder is not named as a partition."""
        return TopicPartition.from_folder_name(self.path.absolute().parent.name)

    @property
    def size_in_bytes(self) -> int:
        """The listed size of the file; if it was not listed, the present size. Raises FileNotFoundError."""
        return self.path.stat().st_size if self.listed_size_in_bytes is None else self.listed_size_in_bytes

    @property
    def offset_index(self) -> OffsetIndex:
        """The valid entries of `.index`, which is read at each access; empty if there are none."""
        return OffsetIndex.read(self.path.with_suffix(OFFSET_INDEX_SUFFIX), self.base_offset)

    @property
    def time_index(self) -> TimeIndex:
        """The valid entries of `.timeindex`, which is read at each access; empty if there are none."""
        return TimeIndex.read(self.path.with_suffix(TIME_INDEX_SUFFIX), self.base_offset)

    def aborted_transactions(self) -> list[AbortedTransaction] | None:
        """Read `.txnindex`: the transactions whose abort marker is in this segment. None if it is damaged."""
        path = self.path.with_suffix(TRANSACTION_INDEX_SUFFIX)
        return read_transaction_index(path, self.base_offset, is_active=self.is_active)

    def open(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        topic_partition: TopicPartition | None = None,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> SegmentRecords:
        """Open the records from byte `start`, where a batch begins, to `end`; None is the end, as listed if it was.

        Returns a context manager. An open local file stays readable after it is deleted. Raises FileNotFoundError if
        retention or compaction has deleted it before, and NotRegularFileError if it is no regular file.
        topic_partition: the partition, if the folder is not named so.
        """
        self.ensure_regular()
        return SegmentRecords(
            self.path,
            start,
            end,
            is_active=self.is_active,
            size_in_bytes=self.listed_size_in_bytes,
            topic_partition=topic_partition,
            max_decompressed_bytes=max_decompressed_bytes,
        )

    def read_indexes(self, *, by_time: bool = False) -> SegmentIndexes:
        """Read the valid entries of the indexes. by_time: read the time index, too."""
        time_index = self.time_index if by_time else TimeIndex.from_bytes(b"", self.base_offset)
        return SegmentIndexes(self.base_offset, self.offset_index, time_index)

    def read_sidecar(self, suffix: str) -> bytes | None:
        """Read the file with `suffix` (`.index`) beside a listed segment; empty if the listing has no such file.

        Returns None if the file was deleted since, has another size, or its object is lost. Raises OSError.
        """
        size = (self.sidecar_sizes or {}).get(suffix)
        if size is None:
            return b""
        try:
            data = read_file(self.path.with_suffix(suffix))
        except (FileNotFoundError, StoredObjectError):
            return None
        return data if len(data) == size else None

    def find_offset(self, offset: int) -> int | None:
        """Find the position of the batch that contains `offset`, or of the first batch after it; None if there is none.

        As Kafka's LogSegment.translateOffset. Raises KafkaFormatError if damage prevents the search.
        """
        with self.open() as records:
            row = self.read_indexes().find_row(records, offset)
        return None if row is None else int(row["position"])

    def find_timestamp(
        self,
        timestamp: int | datetime,
        start_offset: int = 0,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        turn: Turn = NO_TURN,
    ) -> TimestampOffset | None:
        """Find the first record with `timestamp` or a higher one; None if there is none.

        timestamp: milliseconds, or an aware datetime.
        start_offset: records below it are skipped.
        turn: entered while a batch is decompressed.

        As Kafka's LogSegment.findOffsetByTimestamp. Raises KafkaFormatError if damage prevents the search.
        """
        wanted_ms = milliseconds(timestamp)
        with self.open(max_decompressed_bytes=max_decompressed_bytes) as records:
            return self.read_indexes(by_time=True).find_timestamp(records, wanted_ms, start_offset, turn)

    def find_next_offset(self) -> int:
        """Find the offset after the last whole batch; the base offset if there is no batch.

        As Kafka's LogSegment.readNextOffset. Raises KafkaFormatError if damage prevents the search.
        """
        with self.open() as records:
            return self.read_indexes().find_next_offset(records)


@dataclass(frozen=True)
class SegmentIndexes:
    """The indexes of a segment, and searches with them in its records, from any source."""

    base_offset: int
    offset_index: OffsetIndex
    time_index: TimeIndex

    def search_start(self, records: Records, offset: int) -> int:
        """Find the position of a batch at or before the first one that ends at `offset` or later."""
        position = self.offset_index.position_at_or_below(offset)
        return position if position and begins_batch(records, position, self.base_offset, offset) else 0

    def search_start_of_last(self, records: Records) -> int:
        """Find the position of the third batch from the end, or of one before it; 0 if no index entry leads to one."""
        entries = self.offset_index.entries["relative_offset"][-3:]
        return self.search_start(records, self.base_offset + int(entries[0])) if len(entries) == 3 else 0

    def find_row(self, records: Records, offset: int) -> np.void | None:
        """Find the row, in the shallow index, of the first batch that ends at `offset` or later; None if none does."""
        return find_row(records, offset, self.search_start(records, offset))

    def find_timestamp(
        self, records: Records, timestamp: int, start_offset: int = 0, turn: Turn = NO_TURN
    ) -> TimestampOffset | None:
        """Find the first record from `start_offset` on with `timestamp` (milliseconds) or a higher one; else None.

        turn: entered while a batch is decompressed.
        """
        start = self._start_for_timestamp(records, timestamp)
        return _search(
            records, start, lambda runs: _first_at_or_after(records, runs, timestamp, start_offset, turn)
        )

    def find_next_offset(self, records: Records) -> int:
        """Find the offset after the last whole batch; the base offset if there is no batch.

        Raises InvalidRecordError for an offset that a segment cannot have: no CRC covers the base offset of a batch.
        """
        last = self._find_last_rows(records)
        if last is None:
            return self.base_offset
        offset, most = int(last["last_offset"][-1]), self.base_offset + MAX_RELATIVE_OFFSET
        expected, least = f"0 to {most}", expected_of_last(last, self.base_offset)
        if least is not None:
            expected = f"{least} or more"
        elif 0 <= offset <= most:
            return offset + 1
        message = f"last offset of a segment: expected {expected}, found {offset}"
        raise records.with_source(InvalidRecordError(message, position=int(last["position"][-1])))

    def find_last_row(self, records: Records) -> np.void | None:
        """Find the row, in the shallow index, of the last whole batch; None if there is none."""
        last = self._find_last_rows(records)
        return None if last is None else last[-1]

    def _find_last_rows(self, records: Records) -> NDArray[np.void] | None:
        """Find the rows of the last whole batches, three if there are so many; None if there is none."""
        return _search(records, self.search_start_of_last(records), _last_rows)

    def _start_for_timestamp(self, records: Records, timestamp: int) -> int:
        """Find the position of a batch at or before the first one with a record at `timestamp` or later."""
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
    """Whether a valid batch begins at `position`, with a first offset from `base_offset` to `offset`.

    If so, all offsets before it are below `offset`. This checks the entry of an index against the log.
    """
    try:
        run = next(records.runs(position, run_bytes=_SEARCH_BYTES), None)
        if run is None:
            return False
        run.ensure_valid(0, 1)
    except KafkaFormatError:
        return False
    return base_offset <= first_offset(run) <= offset


def find_row(records: Records, offset: int, start: int) -> np.void | None:
    """Find the row, in the shallow index, of the first batch from `start` on that ends at `offset` or later.

    start: the probable position of a batch; all batches before it end below `offset`. Returns None if there is no such
    batch. Raises KafkaFormatError if damage prevents the search.
    """
    return _search(records, start, lambda runs: _first_row(runs, offset))


def _search(records: Records, start: int, search: Callable[[Iterator[BatchRun]], _Found]) -> _Found:
    """Return the result of a search from `start` on, or from the beginning if there is damage after `start`.

    The bytes at `start` may only look like a batch: the value of a record may contain one.
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


def _last_rows(runs: Iterable[BatchRun]) -> NDArray[np.void] | None:
    rows: NDArray[np.void] | None = None
    for run in runs:
        rows = run.index[-3:] if rows is None else np.append(rows, run.index[-3:])[-3:]
    return rows


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
                raise records.with_source(error) from None
            if found is not None:
                return found
    return None


def _first_in(
    run: BatchRun, number: int, timestamp: int, start_offset: int, limit: int
) -> TimestampOffset | None:
    """Find the first record of one batch with `timestamp` or a higher one, from `start_offset` on."""
    located = locate(run, number, number + 1, verify=True, limit=limit)
    timestamps = located.timestamps()
    late = (timestamps >= timestamp) & (located.offsets() >= start_offset)
    if not late.any():
        return None
    first = int(late.argmax())
    return TimestampOffset(int(timestamps[first]), int(located.offsets()[first]))
