"""Follow a partition's log as it grows, rolls segments and loses its oldest ones.

`refresh` compares the known state with the file system. If nothing has changed, this costs two system calls; otherwise
only new data is read. A batch counts once it is complete and its CRC is valid, as a broker may still be writing it.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt._util.steps import Steps, finish
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.end_tracker import SETTLED_NS, EndTracker
from kafkafmt.log.indexes import NO_TIMESTAMP, AbortedTransaction, TimestampOffset
from kafkafmt.log.isolation import LogTransactions, UnreadableMarker, UnreadTransactions
from kafkafmt.log.open_segment import OpenSegment
from kafkafmt.log.overlaps import Overlap, ReadSegments
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import Segment
from kafkafmt.log.segment_files import GrowingFiles, SegmentCache
from kafkafmt.log.segment_search import NO_TURN, Turn
from kafkafmt.records.decoding import locate
from kafkafmt.storage import RemotePath, StoragePath, storage_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import numpy as np

    from _kafkafmt.batches.scan import BatchRun


class UnreadTail(NamedTuple):
    """Bytes at the end of a log that are an incomplete batch: truncated, or still being written."""

    path: StoragePath
    position: int
    size_in_bytes: int


class FoundBatch(NamedTuple):
    """A batch in a segment: its format, its position and size in bytes, and where the segment's whole batches end.

    row: its index row.
    """

    segment: OpenSegment
    magic: int
    position: int
    size: int
    end_position: int
    row: np.void


class _Listing(NamedTuple):
    """The segments that are read, the last of all segments, and whether the segments differ from the known ones.

    gone: the known segments that are not read any more.
    """

    read: ReadSegments
    gone: list[Segment]
    last: Segment | None
    is_new: bool


class LogTail:
    """Follow the log in a folder. Offsets are those of the last `refresh`. Not safe to use from several threads.

    from_segment_start: as in `PartitionLog`.
    is_read: refresh at once. Otherwise nothing is known before the first `refresh` or `refresh_steps`.

    Raises FileNotFoundError or NotADirectoryError if `path` is not a folder, and CheckpointError if
    `log-start-offset-checkpoint` is malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | RemotePath,
        cache: SegmentCache | None = None,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        from_segment_start: bool = False,
        is_read: bool = True,
    ) -> None:
        self._cache = SegmentCache() if cache is None else cache
        self._log = PartitionLog(
            path,
            max_decompressed_bytes=max_decompressed_bytes,
            from_segment_start=from_segment_start,
            log_starts=self._cache.log_starts,
            segment_ends=self._cache.segment_ends,
        )
        self._files = GrowingFiles(self._cache, max_decompressed_bytes)
        self._tracker = EndTracker()
        self._last_segment: Segment | None = None
        self._folder_stamp: tuple[int, int] | None = None
        if is_read:
            self.refresh()

    @property
    def start_offset(self) -> int:
        """The log start offset, as `PartitionLog.start_offset`. The first record may have a higher offset."""
        return self._tracker.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last whole batch, or the log start offset if that is higher."""
        return self._tracker.end_offset

    @property
    def damage(self) -> KafkaFormatError | None:
        """The damage at the end of the log; None if there is none."""
        return self._tracker.damage

    @property
    def unread_tail(self) -> UnreadTail | None:
        """The bytes after the last whole batch; None if there are none, if they are zeros, or if they are `damage`."""
        if not self._segments or self.damage is not None:
            return None
        opened, position = self._open(self._segments[-1]), self._tracker.end.position
        opened.extend()
        if opened.is_over(position, look_after_zeros=True):
            return None
        return UnreadTail(opened.segment.path, position, opened.records.end_position - position)

    @property
    def _segments(self) -> list[Segment]:
        """The segments that are read, by base offset, without those whose offsets are all in earlier segments."""
        return self._tracker.read.segments

    @property
    def overlaps(self) -> list[Overlap]:
        """The offsets that are left out of segments, as earlier segments have them, too."""
        return self._tracker.read.overlaps

    def read_segments(self) -> ReadSegments:
        """Return the segments that readers read now."""
        finish(self._list())
        return self._tracker.read

    @property
    def stable_offset(self) -> int:
        """Kafka's last stable offset: the first offset of all open transactions; `end_offset` if none is open."""
        self._followed_transactions()
        return self._tracker.stable_offset

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction, by producer id."""
        return self._followed_transactions().tracker.open_transactions

    @property
    def unreadable_markers(self) -> tuple[UnreadableMarker, ...]:
        """The transaction markers that cannot be read; empty while the transactions are not known.

        Their transactions stay open until the next marker of their producer.
        """
        return self._tracker.unreadable_markers

    @property
    def unread_transactions(self) -> UnreadTransactions | None:
        """The transactions that must be read to know stable offset and aborted transactions; None if they are known.

        If `follow_transactions` was not called with the result, those properties read them.
        """
        tracker = self._tracker
        if tracker.transactions is not None:
            return None
        limit = self._log.max_decompressed_bytes
        return UnreadTransactions(self._segments, tracker.end, tracker.beginning, limit)

    def follow_transactions(self, unread: UnreadTransactions, read: LogTransactions) -> None:
        """Continue after transactions that another thread may have read. Ignored if the log was replaced meanwhile."""
        if unread.beginning != self._tracker.beginning or self._tracker.transactions is not None:
            return
        number = bisect_left(self._segments, unread.end.base_offset, key=attrgetter("base_offset"))
        for segment in self._segments[number:]:
            opened = self._open(segment)
            is_known = segment.base_offset == unread.end.base_offset
            read.add_segment(opened, unread.end.position if is_known else 0, self._end_in(opened))
        read.forget_before(self.start_offset)
        self._tracker.transactions = read

    def refresh(self) -> bool:
        """Read what is new. Returns whether offsets have changed. Raises FileNotFoundError if the folder is gone."""
        return finish(self.refresh_steps())

    def is_current(self) -> bool:
        """Whether a refresh would find nothing new. Raises CheckpointError as `refresh` does."""
        tracker = self._tracker
        with contextlib.suppress(OSError):  # a refresh finds out what is gone
            return (
                self._log.log_start_offset == tracker.log_start
                and not self._must_list(storage_of(self._log.path).changed_ns(self._log.path))
                and tracker.is_current(self._files)
            )
        return False

    def refresh_steps(self) -> Steps[bool]:
        """Do `refresh` in steps of `READ_BYTES`. They yield functions to list the folder and to read large batches.

        Between steps, callers may read the known part of the log, but must not refresh it.
        """
        tracker = self._tracker
        before = (self.start_offset, tracker.end)
        tracker.log_start = self._log.log_start_offset
        yield from self._list()
        while True:
            try:
                yield from tracker.follow_steps(self._files)
                return before != (self.start_offset, tracker.end)
            except FileNotFoundError:  # a segment that was listed is deleted: so the folder has changed
                listed, self._folder_stamp = self._segments, None
                yield from self._list()
                if self._segments == listed:
                    raise

    def find(self, offset: int) -> FoundBatch | None:
        """Find the batch that contains `offset`, or the first one after it; None at or after the end.

        Raises KafkaFormatError if damage prevents the search.
        """
        return finish(self.find_steps(offset))

    def find_steps(self, offset: int) -> Steps[FoundBatch | None]:
        """Do `find` in steps, which yield a function for a long search through a segment."""
        offset = max(offset, self._tracker.log_start)
        if offset >= self.end_offset:
            return None
        for segment in self._tracker.read.from_offset(offset):
            opened = self._open(segment)
            end = self._end_in(opened)
            row = yield from opened.find_steps(offset, end)
            if row is not None:
                position, size = int(row["position"]), int(row["size"])
                return (
                    FoundBatch(opened, int(row["magic"]), position, size, end, row)
                    if position + size <= end
                    else None
                )
        return None

    def find_after_steps(self, opened: OpenSegment) -> Steps[FoundBatch | None]:
        """Find the first batch after a segment, in steps, as `find_steps`."""
        following = self._first_offset_after(opened)
        if following is None:
            return None
        return (yield from self.find_steps(following))

    def find_timestamp(self, timestamp: int | datetime, turn: Turn = NO_TURN) -> TimestampOffset | None:
        """Do `PartitionLog.find_timestamp`. Any thread may call it. turn: entered while a batch is decompressed."""
        return self._log.find_timestamp_from(self._tracker.log_start, timestamp, turn)

    def find_max_timestamp(self, turn: Turn = NO_TURN) -> TimestampOffset | None:
        """Find the highest timestamp, and the first offset that has it (KIP-734); None if no record has a timestamp.

        Any thread may call it. turn: entered while a batch is decompressed.
        """
        start, end, limit = self._tracker.log_start, self.end_offset, self._log.max_decompressed_bytes
        spans = self._tracker.read.spans(start)
        highest = max(
            (_max_timestamp(segment, first, end, limit, turn) for segment, first, _ in spans),
            default=NO_TIMESTAMP,
        )
        return None if highest == NO_TIMESTAMP else self._log.find_timestamp_from(start, highest, turn)

    def aborted_transactions(
        self, start_offset: int, opened: OpenSegment, position: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with records from `start_offset` to before `position` of a segment.

        The list may include later ones.
        """
        bound = opened.offset_bound(position)
        if bound is None:
            following = self._first_offset_after(opened)
            bound = self.end_offset if following is None else following
        return list(self._followed_transactions().overlapping(start_offset, bound))

    def first_offset_after(self, opened: OpenSegment, position: int) -> int | None:
        """Return an offset that all batches before `position` of a segment end below; None if none is known.

        It is the first one that is read from the next segment, or the end of the log.
        """
        following = self._first_offset_after(opened)
        if following is not None:
            return following
        end = self._tracker.end
        is_known = opened.segment.base_offset == end.base_offset and position <= end.position
        # Batches between the position and the end have offsets, too.
        return end.offset - (position < end.position) if is_known else None

    def is_end(self, opened: OpenSegment, position: int) -> bool:
        """Whether no whole batch follows `position` of a segment."""
        end = self._tracker.end
        return opened.segment.base_offset == end.base_offset and position >= end.position

    def _followed_transactions(self) -> LogTransactions:
        if (unread := self.unread_transactions) is not None:
            self.follow_transactions(unread, unread.read())
        assert self._tracker.transactions is not None
        return self._tracker.transactions

    def _open(self, segment: Segment) -> OpenSegment:
        return self._files.open(segment)

    def _end_in(self, opened: OpenSegment) -> int:
        """Return the position where the whole batches of a segment end."""
        end = self._tracker.end
        is_last = opened.segment.base_offset == end.base_offset
        return end.position if is_last else opened.records.end_position

    def _first_offset_after(self, opened: OpenSegment) -> int | None:
        number = bisect_right(self._segments, opened.segment.base_offset, key=attrgetter("base_offset"))
        return self._tracker.read.first_offsets[number] if number < len(self._segments) else None

    def _list(self) -> Steps[None]:
        """List the segments if the folder has changed."""
        changed, now = storage_of(self._log.path).changed_ns(self._log.path), time.time_ns()
        if not self._must_list(changed):
            return
        listed: _Listing = yield self._listing
        self._folder_stamp, self._last_segment = (changed, now), listed.last
        self._tracker.read = listed.read
        if listed.is_new:
            self._tracker.forget_state()
            self._tracker.forget_before(self.start_offset)
        self._cache.forget_replaced([*listed.gone, *listed.read.segments])

    def _must_list(self, changed_ns: int) -> bool:
        """Whether a folder that was last modified at this time may have other segments than the known ones."""
        if self._last_segment is not None and self._segments[-1:] != [self._last_segment]:
            return True  # the last segment may have grown past the earlier ones
        if self._folder_stamp is None:
            return True
        known, listed_at = self._folder_stamp
        return changed_ns != known or listed_at - changed_ns <= SETTLED_NS

    def _listing(self) -> _Listing:
        """List the segments; known ones are kept. Another thread may call it, as many segments take long."""
        known = {segment.path.name: segment for segment in self._segments}
        segments = self._log.segments(known)
        read = self._log.read_segments(segments)
        names = {segment.path.name for segment in read.segments}
        gone = [segment for name, segment in known.items() if name not in names]
        return _Listing(read, gone, segments[-1] if segments else None, read.segments != self._segments)


def _max_timestamp(segment: Segment, start_offset: int, end_offset: int, limit: int, turn: Turn) -> int:
    """Return the highest timestamp of the records between offsets, from the index of a closed segment if possible."""
    if not segment.is_active and segment.base_offset >= start_offset:
        entries = segment.time_index.entries
        if len(entries):
            return int(entries["timestamp"][-1])
    highest = NO_TIMESTAMP
    with contextlib.suppress(KafkaFormatError), segment.open() as records:
        start = segment.read_indexes().search_start(records, start_offset)
        for run in records.runs(start, reuse_memory=True):
            highest = max(highest, _max_timestamp_in(run, start_offset, end_offset, limit, turn))
    return highest


def _max_timestamp_in(run: BatchRun, start_offset: int, end_offset: int, limit: int, turn: Turn) -> int:
    rows = run.index
    timestamps = rows["max_timestamp"].copy()
    timestamps[(rows["last_offset"] < start_offset) | (rows["last_offset"] >= end_offset)] = NO_TIMESTAMP
    within = ((rows["base_offset"] < start_offset) & (rows["last_offset"] >= start_offset)).nonzero()[0]
    # There is one batch at most, except for wrappers, whose header has no base offset.
    for number in within.tolist():
        with turn:
            located = locate(run, number, number + 1, verify=True, limit=limit)
            of_records = located.timestamps()[located.offsets() >= start_offset]
            timestamps[number] = of_records.max(initial=NO_TIMESTAMP)
            del located, of_records
    return int(timestamps.max())
