"""A partition's log followed as it grows, is rolled and loses its oldest segments.

What is known is held against the file system when `refresh` is called: two calls to it where nothing has changed,
and where something has, what is new is read and nothing else. A batch is there once all of it is, with a CRC that
holds: a broker may be writing it just now.
"""

from __future__ import annotations

import contextlib
import os
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt._util.steps import Steps, finish
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.decoding import locate
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.directory import PartitionLog
from kafkafmt.log.indexes import NO_TIMESTAMP, AbortedTransaction, TimestampOffset
from kafkafmt.log.log_transactions import LogTransactions, UnreadTransactions
from kafkafmt.log.open_segment import HEAD_BYTES, READ_BYTES, OpenSegment
from kafkafmt.log.overlaps import Overlap, ReadSegments, SegmentEnds
from kafkafmt.log.segment import MAX_OFFSET, NO_TURN, Segment, Turn, check_tail

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.scan import BatchRun

# File systems keep times of changes in steps of milliseconds: what changed just now may change again unseen.
_SETTLED_NS = 100_000_000
# A broken batch at the end of a file that nobody has written to for that long is damage, not one being written.
_ABANDONED_NS = 2_000_000_000


class SegmentCache:
    """Segments that are open, of many logs, for one thread; those not asked for longest are let go.

    What is let go is closed once nothing reads it any more. log_starts: the log start offsets of these logs.
    segment_ends: where their closed segments end.
    """

    def __init__(self, most: int = 512) -> None:
        self.log_starts = LogStartOffsets()
        self.segment_ends = SegmentEnds()
        self._most = most
        self._open: OrderedDict[Path, OpenSegment] = OrderedDict()
        self._memory = bytearray(READ_BYTES)

    def get(self, segment: Segment, max_decompressed_bytes: int) -> OpenSegment:
        """Raises FileNotFoundError where the file is gone."""
        found = self._open.get(segment.path)
        if (
            found is None or found.segment != segment
        ):  # it was rolled: it may have grown before, and its tail counts
            found = OpenSegment(segment, max_decompressed_bytes=max_decompressed_bytes, memory=self._memory)
            self._open[segment.path] = found
        self._open.move_to_end(segment.path)
        if len(self._open) > self._most:
            self._open.popitem(last=False)
        return found

    def forget(self, segment: Segment) -> None:
        self._open.pop(segment.path, None)

    def forget_replaced(self, segments: list[Segment]) -> None:
        """Let go of those whose name stands for another file now."""
        for segment in segments:
            found = self._open.get(segment.path)
            if found is not None and not found.is_at_path():
                del self._open[segment.path]


class LogEnd(NamedTuple):
    """Behind a batch: the next offset, and the segment and the position in it where the next batch will be.

    The batch itself begins at last_position with the bytes last_head, which are empty where there is none.
    """

    offset: int
    base_offset: int
    position: int
    last_position: int = 0
    last_head: bytes = b""


class UnreadTail(NamedTuple):
    """Bytes at the end of a log that are no whole batch: one was cut off, or is being written."""

    path: Path
    position: int
    size_in_bytes: int


class FoundBatch(NamedTuple):
    """A batch's format, where it begins and how long it is; whole batches of its segment end at `end_position`."""

    segment: OpenSegment
    magic: int
    position: int
    size: int
    end_position: int


class FollowedLog:
    """The log in a folder. Not safe for threads.

    Offsets are those of the last `refresh`. from_segment_start: as `PartitionLog` has it. is_read: it is refreshed
    at once; else nothing is known before the first `refresh` or `refresh_steps`.

    Raises FileNotFoundError or NotADirectoryError for another `path`, and CheckpointError where
    `log-start-offset-checkpoint` is malformed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
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
        self._log_start = 0
        self._read = ReadSegments([], [], [])
        self._last_segment: Segment | None = None
        self._folder_stamp: tuple[int, int] | None = None
        self._file_stamp: tuple[int, int, int] | None = None
        self._end = LogEnd(0, -1, 0)
        self._damage: KafkaFormatError | None = None
        self._beginning = 0
        self._transactions: LogTransactions | None = None
        if is_read:
            self.refresh()

    @property
    def start_offset(self) -> int:
        """The log start offset, as `PartitionLog.start_offset`. Records may begin behind it."""
        return max(self._segments[0].base_offset if self._segments else 0, self._log_start)

    @property
    def end_offset(self) -> int:
        """The offset behind the last whole batch, or the log start offset where that is higher."""
        return max(self._end.offset, self._log_start)

    @property
    def damage(self) -> KafkaFormatError | None:
        """What stands at the end in place of a batch, where that is damage."""
        return self._damage

    @property
    def unread_tail(self) -> UnreadTail | None:
        """What stands behind the last whole batch; None for nothing, for zeros, and for what `damage` tells of."""
        if not self._segments or self._damage is not None:
            return None
        opened, position = self._open(self._segments[-1]), self._end.position
        opened.extend()
        if opened.is_over(position, look_behind_zeros=True):
            return None
        return UnreadTail(opened.segment.path, position, opened.records.end_position - position)

    @property
    def _segments(self) -> list[Segment]:
        """Those that are read, by base offset; none whose offsets are all in segments before it."""
        return self._read.segments

    @property
    def overlaps(self) -> list[Overlap]:
        """The offsets of segments that are left out, as segments before them have them, too."""
        return self._read.overlaps

    def read_segments(self) -> ReadSegments:
        """Return the segments that readers read now."""
        finish(self._list())
        return self._read

    @property
    def stable_offset(self) -> int:
        """The first offset of the transactions that have not ended; the end where there are none (Kafka's LSO)."""
        first_open = self._followed_transactions().tracker.first_open_offset
        return self.end_offset if first_open is None else max(first_open, self.start_offset)

    @property
    def unread_transactions(self) -> UnreadTransactions | None:
        """What must be read before stable offset and aborted transactions are known; None where they are.

        They read it themselves where `follow_transactions` was not called with it.
        """
        if self._transactions is not None:
            return None
        limit = self._log.max_decompressed_bytes
        return UnreadTransactions(self._segments, self._end, self._beginning, limit)

    def follow_transactions(self, unread: UnreadTransactions, read: LogTransactions) -> None:
        """Go on behind transactions that were read, perhaps in another thread, if the log still is what it was."""
        if unread.beginning != self._beginning or self._transactions is not None:
            return
        number = bisect_left(self._segments, unread.end.base_offset, key=_base_offset)
        for segment in self._segments[number:]:
            opened = self._open(segment)
            is_known = segment.base_offset == unread.end.base_offset
            read.add_segment(opened, unread.end.position if is_known else 0, self._end_in(opened))
        read.forget_before(self.start_offset)
        self._transactions = read

    def refresh(self) -> bool:
        """Look for what is new; was there anything? Raises FileNotFoundError once the folder is gone."""
        return finish(self.refresh_steps())

    def refresh_steps(self) -> Steps[bool]:
        """`refresh` in steps of `READ_BYTES`, or one batch that is larger.

        Between them the log may be read, up to what is known of it; it is not to be refreshed.
        """
        before = (self.start_offset, self._end)
        self._log_start = self._log.log_start_offset
        yield from self._list()
        while True:
            try:
                yield from self._follow()
                return before != (self.start_offset, self._end)
            except FileNotFoundError:  # a segment that was listed is deleted: so the folder has changed
                listed, self._folder_stamp = self._segments, None
                yield from self._list()
                if self._segments == listed:
                    raise

    def find(self, offset: int) -> FoundBatch | None:
        """The batch that holds `offset`, or the first behind it; None from the end on.

        Raises KafkaFormatError where damage is in the way.
        """
        return finish(self.find_steps(offset))

    def find_steps(self, offset: int) -> Steps[FoundBatch | None]:
        """`find` in steps: what reads far through a segment is handed out to be called."""
        offset = max(offset, self._log_start)
        if offset >= self.end_offset:
            return None
        for segment in self._read.from_offset(offset):
            opened = self._open(segment)
            row = yield from opened.find_steps(offset)
            if row is not None:
                position, size = int(row["position"]), int(row["size"])
                end = self._end_in(opened)
                return (
                    FoundBatch(opened, int(row["magic"]), position, size, end)
                    if position + size <= end
                    else None
                )
        return None

    def find_behind(self, opened: OpenSegment) -> FoundBatch | None:
        """The first batch behind a segment."""
        return finish(self.find_behind_steps(opened))

    def find_behind_steps(self, opened: OpenSegment) -> Steps[FoundBatch | None]:
        """`find_behind` in steps, as `find_steps`."""
        behind = self._first_offset_behind(opened)
        if behind is None:
            return None
        return (yield from self.find_steps(behind))

    def find_timestamp(self, timestamp: int | datetime, turn: Turn = NO_TURN) -> TimestampOffset | None:
        """As `PartitionLog.find_timestamp`. In any thread. turn: is entered while a batch is decompressed."""
        return self._log.find_timestamp_from(self._log_start, timestamp, turn)

    def find_max_timestamp(self, turn: Turn = NO_TURN) -> TimestampOffset | None:
        """The highest timestamp of all, and the first offset that has it (KIP-734); None without timestamps.

        In any thread. turn: is entered while a batch is decompressed.
        """
        start, limit = self._log_start, self._log.max_decompressed_bytes
        highest = max(
            (_max_timestamp(segment, start, limit, turn) for segment in self._read.from_offset(start)),
            default=NO_TIMESTAMP,
        )
        return None if highest == NO_TIMESTAMP else self._log.find_timestamp_from(start, highest, turn)

    def aborted_transactions(
        self, start_offset: int, opened: OpenSegment, position: int
    ) -> list[AbortedTransaction]:
        """Those with records from `start_offset` to in front of `position` of a segment; perhaps some behind that."""
        bound = opened.offset_bound(position)
        if bound is None:
            behind = self._first_offset_behind(opened)
            bound = self.end_offset if behind is None else behind
        return list(self._followed_transactions().overlapping(start_offset, bound))

    def _followed_transactions(self) -> LogTransactions:
        if (unread := self.unread_transactions) is not None:
            self.follow_transactions(unread, unread.read())
        assert self._transactions is not None
        return self._transactions

    def _open(self, segment: Segment) -> OpenSegment:
        return self._cache.get(segment, self._log.max_decompressed_bytes)

    def _end_in(self, opened: OpenSegment) -> int:
        """Where the whole batches of a segment end."""
        is_last = opened.segment.base_offset == self._end.base_offset
        return self._end.position if is_last else opened.records.end_position

    def _first_offset_behind(self, opened: OpenSegment) -> int | None:
        number = bisect_right(self._segments, opened.segment.base_offset, key=_base_offset)
        return self._read.first_offsets[number] if number < len(self._segments) else None

    def _list(self) -> Steps[None]:
        """List the segments, where the folder has changed."""
        changed, now = self._log.path.stat().st_mtime_ns, time.time_ns()
        is_last_read = self._last_segment is None or self._segments[-1:] == [self._last_segment]
        if (
            self._folder_stamp is not None and is_last_read
        ):  # else the last may come to reach past those before it
            known, listed_at = self._folder_stamp
            if changed == known and listed_at - changed > _SETTLED_NS:
                return
        segments = self._log.segments()
        read = yield from self._log.read_segments(segments)
        self._folder_stamp, self._last_segment = (changed, now), segments[-1] if segments else None
        is_new, self._read = read.segments != self._segments, read
        if is_new:
            self._file_stamp = None
            if self._transactions is not None:
                self._transactions.forget_before(self.start_offset)
        self._cache.forget_replaced(read.segments)

    def _follow(self) -> Steps[None]:
        """Learn where the log ends now."""
        if not self._segments:
            self._end, self._damage = LogEnd(0, -1, 0), None
            return
        last = self._segments[-1]
        found, now = last.path.stat(), time.time_ns()
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp == self._file_stamp:
            return
        age = now - found.st_mtime_ns
        self._damage = None
        if not self._is_intact():
            self._transactions, self._beginning = None, self._beginning + 1
            yield from self._begin(last)
        elif self._end.base_offset != last.base_offset and self._transactions is None:
            yield from self._begin(last)  # what is between is nobody's concern
        number = bisect_left(self._segments, self._end.base_offset, key=_base_offset)
        for segment in self._segments[number:]:
            if segment.base_offset > self._end.base_offset:
                offset = max(self._end.offset, segment.base_offset)
                self._end, self._damage = LogEnd(offset, segment.base_offset, 0), None
            yield from self._advance(segment, is_abandoned=not segment.is_active or age > _ABANDONED_NS)
        is_told = self._end.position == found.st_size or age > _ABANDONED_NS
        self._file_stamp = stamp if is_told and age > _SETTLED_NS else None

    def _is_intact(self) -> bool:
        """Is all still there that was known? Not where the log was cut off, though it may be longer again."""
        number = bisect_left(self._segments, self._end.base_offset, key=_base_offset)
        if number == len(self._segments) or self._segments[number].base_offset != self._end.base_offset:
            return False
        opened, end = self._open(self._segments[number]), self._end
        opened.extend()
        is_there = opened.head(end.last_position)[: len(end.last_head)] == end.last_head
        return is_there and opened.records.end_position >= end.position

    def _begin(self, last: Segment) -> Steps[None]:
        """Find the end of the last segment, nothing being known: from where its index leads, if the end is there."""
        self._cache.forget(last)
        opened = self._open(last)
        indexed = Segment(last.path).indexes.search_start(opened.records, MAX_OFFSET)
        for position in dict.fromkeys((indexed, 0)):
            self._end = LogEnd(last.base_offset, last.base_offset, position)
            yield from self._advance(last, is_abandoned=False)
            if opened.is_over(self._end.position):
                return

    def _advance(self, segment: Segment, *, is_abandoned: bool) -> Steps[None]:
        """Go through the headers behind the end that is known, to the end of a segment.

        is_abandoned: what is no whole batch is damage, and not one that is being written.
        """
        opened = self._open(segment)
        opened.extend()
        records, position = opened.records, self._end.position
        while not opened.is_over(position, look_behind_zeros=is_abandoned):
            try:
                run = opened.run_at(position)
                if run is None:
                    if is_abandoned:
                        check_tail(records, position, is_active=segment.is_active)
                    return
                self._take(run, opened)
                position = run.end_position
                yield None
            except KafkaFormatError as error:
                if not is_abandoned:
                    return
                self._damage = records.described(error)
                position = records.position_after(error)

    def _take(self, run: BatchRun, opened: OpenSegment) -> None:
        """Move the end behind the last batch of a run whose CRC holds; raise for what stands behind that."""
        sound = run.valid().nonzero()[0].tolist()
        if sound:
            row = run.index[sound[-1]]
            position = int(row["position"])
            end = position + int(row["size"])
            offset = max(int(row["last_offset"]) + 1, self._end.offset)
            if self._transactions is not None:
                self._transactions.add(run, sound)
            head = bytes(run.batch(sound[-1])[:HEAD_BYTES])
            self._end = LogEnd(offset, opened.segment.base_offset, end, position, head)
            self._damage = None
            opened.remember(offset, end)
        run.ensure_valid(sound[-1] + 1 if sound else 0)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _max_timestamp(segment: Segment, start_offset: int, limit: int, turn: Turn) -> int:
    """The highest timestamp of the records from an offset on; of a closed segment its index may tell it."""
    if not segment.is_active and segment.base_offset >= start_offset:
        entries = Segment(segment.path).time_index.entries  # read anew: of many segments they take megabytes
        if len(entries):
            return int(entries["timestamp"][-1])
    highest = NO_TIMESTAMP
    with contextlib.suppress(KafkaFormatError), segment.open() as records:
        for run in records.runs(segment.search_start(records, start_offset), reuse_memory=True):
            highest = max(highest, _max_timestamp_in(run, start_offset, limit, turn))
    return highest


def _max_timestamp_in(run: BatchRun, start_offset: int, limit: int, turn: Turn) -> int:
    rows = run.index
    timestamps = rows["max_timestamp"].copy()
    timestamps[rows["last_offset"] < start_offset] = NO_TIMESTAMP
    within = ((rows["base_offset"] < start_offset) & (rows["last_offset"] >= start_offset)).nonzero()[0]
    # One at the most, but for wrappers, whose base offset a header does not tell.
    for number in within.tolist():
        with turn:
            located = locate(run, number, number + 1, verify=True, limit=limit)
            of_records = located.timestamps()[located.offsets() >= start_offset]
            timestamps[number] = of_records.max(initial=NO_TIMESTAMP)
            del located, of_records
    return int(timestamps.max())
