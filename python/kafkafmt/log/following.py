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

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import PartitionLog, part_of_run
from kafkafmt.log.indexes import NO_TIMESTAMP, AbortedTransaction, TimestampOffset
from kafkafmt.log.open_segment import HEAD_BYTES, READ_BYTES, OpenSegment
from kafkafmt.log.segment import MAX_OFFSET, SNAPSHOT_SUFFIX, Segment, check_tail
from kafkafmt.log.transactions import TransactionTracker, parse_producer_snapshot

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun

# File systems keep times of changes in steps of milliseconds: what changed just now may change again unseen.
_SETTLED_NS = 100_000_000
# A broken batch at the end of a file that nobody has written to for that long is damage, not one being written.
_ABANDONED_NS = 2_000_000_000


class SegmentCache:
    """Segments that are open, of many logs, for one thread; those not asked for longest are let go.

    What is let go is closed once nothing reads it any more.
    """

    def __init__(self, most: int = 512) -> None:
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


class FoundBatch(NamedTuple):
    """A batch's format, where it begins and how long it is; whole batches of its segment end at `end_position`."""

    segment: OpenSegment
    magic: int
    position: int
    size: int
    end_position: int


class FollowedLog:
    """The log in a folder. Not safe for threads.

    Offsets are those of the last `refresh`. Raises FileNotFoundError or NotADirectoryError for another `path`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        cache: SegmentCache | None = None,
        *,
        max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self._log = PartitionLog(path, max_decompressed_bytes=max_decompressed_bytes)
        self._cache = SegmentCache() if cache is None else cache
        self._segments: list[Segment] = []
        self._folder_stamp: tuple[int, int] | None = None
        self._file_stamp: tuple[int, int, int] | None = None
        self._end = LogEnd(0, -1, 0)
        self._damage: KafkaFormatError | None = None
        self._tracker: TransactionTracker | None = None
        self._aborted: list[AbortedTransaction] = []
        self.refresh()

    @property
    def start_offset(self) -> int:
        """The base offset of the first segment. Records may begin behind it."""
        return self._segments[0].base_offset if self._segments else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last whole batch."""
        return self._end.offset

    @property
    def damage(self) -> KafkaFormatError | None:
        """What stands at the end in place of a batch, where that is damage."""
        return self._damage

    @property
    def stable_offset(self) -> int:
        """The first offset of the transactions that have not ended; the end where there are none (Kafka's LSO)."""
        first_open = self._followed_transactions().first_open_offset
        return self.end_offset if first_open is None else first_open

    def refresh(self) -> bool:
        """Look for what is new; was there anything? Raises FileNotFoundError once the folder is gone."""
        before = (self.start_offset, self._end)
        self._list()
        while True:
            try:
                self._follow()
                return before != (self.start_offset, self._end)
            except FileNotFoundError:  # a segment that was listed is deleted: so the folder has changed
                listed, self._folder_stamp = self._segments, None
                self._list()
                if self._segments == listed:
                    raise

    def find(self, offset: int) -> FoundBatch | None:
        """The batch that holds `offset`, or the first behind it; None from the end on.

        Raises KafkaFormatError where damage is in the way.
        """
        if offset >= self.end_offset:
            return None
        number = max(bisect_right(self._segments, offset, key=_base_offset) - 1, 0)
        for segment in self._segments[number:]:
            opened = self._open(segment)
            row = opened.find(offset)
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
        behind = self._base_offset_behind(opened)
        return None if behind is None else self.find(behind)

    def find_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """As `PartitionLog.find_timestamp`."""
        return self._log.find_timestamp(timestamp)

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The highest timestamp of all, and the first offset that has it (KIP-734); None without timestamps."""
        highest = max(map(_max_timestamp, self._segments), default=NO_TIMESTAMP)
        return None if highest == NO_TIMESTAMP else self.find_timestamp(highest)

    def aborted_transactions(
        self, start_offset: int, opened: OpenSegment, position: int
    ) -> list[AbortedTransaction]:
        """Those with records from `start_offset` to in front of `position` of a segment; perhaps some behind that."""
        self._followed_transactions()
        bound = opened.offset_bound(position)
        if bound is None:
            behind = self._base_offset_behind(opened)
            bound = self.end_offset if behind is None else behind
        found = []
        for one in self._aborted[bisect_left(self._aborted, start_offset, key=_last_offset) :]:
            if one.first_offset < bound:
                found.append(one)
            if one.last_stable_offset >= bound:
                break
        return found

    def _open(self, segment: Segment) -> OpenSegment:
        return self._cache.get(segment, self._log.max_decompressed_bytes)

    def _end_in(self, opened: OpenSegment) -> int:
        """Where the whole batches of a segment end."""
        is_last = opened.segment.base_offset == self._end.base_offset
        return self._end.position if is_last else opened.records.end_position

    def _base_offset_behind(self, opened: OpenSegment) -> int | None:
        number = bisect_right(self._segments, opened.segment.base_offset, key=_base_offset)
        return self._segments[number].base_offset if number < len(self._segments) else None

    def _list(self) -> None:
        """List the segments, where the folder has changed."""
        changed, now = self._log.path.stat().st_mtime_ns, time.time_ns()
        if self._folder_stamp is not None:
            known, listed_at = self._folder_stamp
            if changed == known and listed_at - changed > _SETTLED_NS:
                return
        self._folder_stamp = changed, now
        segments = self._log.segments()
        if segments != self._segments:
            self._segments, self._file_stamp = segments, None
            del self._aborted[: bisect_left(self._aborted, self.start_offset, key=_last_offset)]
        self._cache.forget_replaced(segments)

    def _follow(self) -> None:
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
        if not self._goes_on(last):
            self._begin(last)
        number = bisect_left(self._segments, self._end.base_offset, key=_base_offset)
        for segment in self._segments[number:]:
            if segment.base_offset > self._end.base_offset:
                offset = max(self._end.offset, segment.base_offset)
                self._end, self._damage = LogEnd(offset, segment.base_offset, 0), None
            self._advance(segment, is_abandoned=not segment.is_active or age > _ABANDONED_NS)
        is_told = self._end.position == found.st_size or age > _ABANDONED_NS
        self._file_stamp = stamp if is_told and age > _SETTLED_NS else None

    def _goes_on(self, last: Segment) -> bool:
        """Does what is known lead to the log's end? Not where the log was cut off, though it may be longer again."""
        number = bisect_left(self._segments, self._end.base_offset, key=_base_offset)
        if number == len(self._segments):
            return False
        known = self._segments[number]
        if known.base_offset != self._end.base_offset or (known is not last and self._tracker is None):
            return False
        opened, end = self._open(known), self._end
        opened.extend()
        is_there = opened.head(end.last_position)[: len(end.last_head)] == end.last_head
        return is_there and opened.records.end_position >= end.position

    def _begin(self, last: Segment) -> None:
        """Find the end of the last segment, nothing being known: from where its index leads, if the end is there."""
        self._cache.forget(last)
        self._tracker, self._aborted = None, []
        opened = self._open(last)
        indexed = Segment(last.path).indexes.search_start(opened.records, MAX_OFFSET)
        for position in dict.fromkeys((indexed, 0)):
            self._end = LogEnd(last.base_offset, last.base_offset, position)
            self._advance(last, is_abandoned=False)
            if opened.is_over(self._end.position):
                return

    def _advance(self, segment: Segment, *, is_abandoned: bool) -> None:
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
            if self._tracker is not None:
                self._track(self._tracker, run, sound)
            head = bytes(run.batch(sound[-1])[:HEAD_BYTES])
            self._end = LogEnd(offset, opened.segment.base_offset, end, position, head)
            self._damage = None
            opened.remember(offset, end)
        run.ensure_valid(sound[-1] + 1 if sound else 0)

    def _track(self, tracker: TransactionTracker, run: BatchRun, sound: list[int]) -> None:
        if len(sound) == len(run):
            self._aborted += tracker.add(run)
            return
        for number in sound:
            self._aborted += tracker.add(part_of_run(run, number, number + 1))

    def _followed_transactions(self) -> TransactionTracker:
        """The transactions up to the end that is known; read from the log where they are not followed yet."""
        if self._tracker is None:
            self._aborted, opened_before, number = self._indexed_transactions() or ([], {}, 0)
            tracker = TransactionTracker(opened_before)
            for segment in self._segments[number:]:
                self._track_segment(tracker, self._open(segment))
            self._tracker = tracker
        return self._tracker

    def _track_segment(self, tracker: TransactionTracker, opened: OpenSegment) -> None:
        """Go through a segment, past what is damaged in it."""
        position, end = 0, self._end_in(opened)
        while position < end:
            try:
                run = opened.run_at(position, end)
                if run is None:
                    return
                self._track(tracker, run, run.valid().nonzero()[0].tolist())
                position = run.end_position
            except KafkaFormatError as error:
                position = opened.records.position_after(error)

    def _indexed_transactions(self) -> tuple[list[AbortedTransaction], dict[int, int], int] | None:
        """Those aborted in front of the last segment, those open there, and its number; None where files lack."""
        if not self._segments:
            return None
        try:
            snapshot = self._segments[-1].path.with_suffix(SNAPSHOT_SUFFIX).read_bytes()
        except OSError:
            return None
        opened_before = parse_producer_snapshot(snapshot)
        aborted = [segment.aborted_transactions() for segment in self._segments[:-1]]
        if opened_before is None or None in aborted:
            return None
        return [one for some in aborted for one in some or ()], opened_before, len(self._segments) - 1


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _max_timestamp(segment: Segment) -> int:
    """The highest timestamp in a segment; of a closed one its index tells it, where there is one."""
    entries = Segment(segment.path).time_index.entries  # read anew: of many segments they take megabytes
    if len(entries) and not segment.is_active:
        return int(entries["timestamp"][-1])
    highest = NO_TIMESTAMP
    with contextlib.suppress(KafkaFormatError), segment.open() as records:
        for run in records.runs(reuse_memory=True):
            highest = max(highest, int(run.index["max_timestamp"].max()))
    return highest
