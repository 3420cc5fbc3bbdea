"""One segment of a log: a file of record batches, with searches for offsets and timestamps."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from _kafkafmt.wire.layout import LOG_OVERHEAD
from kafkafmt._util.closing import Closing
from kafkafmt._util.files import NotRegularFileError, irregular_in_words
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log.indexes import (
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    read_transaction_index,
)
from kafkafmt.log.segment_search import NO_TURN, SegmentIndexes, Turn
from kafkafmt.records.base import Records, RunFilter
from kafkafmt.records.file import SEGMENT_NAME, FileRecords
from kafkafmt.records.lost import StoredObjectError
from kafkafmt.records.range import RecordsRange
from kafkafmt.storage import AnyPath, StoragePath, read_file, storage_of, storage_path
from kafkafmt.types import TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime


LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
MAX_OFFSET = 2**63 - 1


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

    A local file that has become shorter is read in the same way: a broker truncates the active segment when it follows
    another leader.

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
