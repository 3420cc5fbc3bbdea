"""Track the end and the transactions of a log: read once, then only what is new.

A log grows, is rolled, compacted and truncated, and loses its oldest segments. So the known state is compared with the
log, and read again if they differ. A batch counts once it is complete. `SegmentFiles` define whether its CRC must be
valid, up to where files are read, and whether damage is raised.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt._util.steps import Steps, finish
from kafkafmt.errors import InvalidRecordError, KafkaFormatError
from kafkafmt.log.open_segment import HEAD_BYTES, LogEnd, OpenSegment
from kafkafmt.log.overlaps import ReadSegments
from kafkafmt.log.segment import Segment, check_tail
from kafkafmt.log.segment_files import ListedFiles
from kafkafmt.log.segment_search import MAX_RELATIVE_OFFSET
from kafkafmt.log.splitting import Place
from kafkafmt.records.runs import expected_of_last, with_batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.indexes import AbortedTransaction
    from kafkafmt.log.isolation import LogTransactions, UnreadableMarker
    from kafkafmt.log.log_snapshot import LogSnapshot
    from kafkafmt.log.segment_files import SegmentFiles

_LOG = logging.getLogger(__name__)

# File systems store times in steps of milliseconds, so a second change shortly after a first one may not be visible.
SETTLED_NS = 100_000_000
# An incomplete or invalid batch at the end of a file that has not changed for this long is damage.
_ABANDONED_NS = 2_000_000_000
# If a segment has more new bytes than this, the search for its end starts from the index, not from the known end.
_SCANNED_BYTES = 16 * 1024 * 1024


class EndTracker:
    """Track the end of one log. Not safe to use from several threads.

    Attributes:
        read: the segments that are read.
        log_start: the log start offset.
        end: the end after the last whole batch.
        damage: the damage at the end; None if there is none.
        transactions: None while they are not known.
        beginning: how often the log did not match the known state, as after truncation, and was read again.
    """

    def __init__(self) -> None:
        self.read = ReadSegments([], [], [])
        self.log_start = 0
        self.end = LogEnd(0, -1, 0)
        self.damage: KafkaFormatError | None = None
        self.transactions: LogTransactions | None = None
        self.beginning = 0
        self._file_stamp: tuple[object, ...] | None = None

    @property
    def start_offset(self) -> int:
        """The log start offset, or the base offset of the first segment if that is higher."""
        segments = self.read.segments
        return max(segments[0].base_offset if segments else 0, self.log_start)

    @property
    def end_offset(self) -> int:
        """The offset after the last whole batch, or the log start offset if that is higher."""
        return max(self.end.offset, self.log_start)

    @property
    def end_place(self) -> Place:
        """Where the last whole batch ends."""
        return Place(self.end_offset, self.end.base_offset, self.end.position)

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of all open transactions; None if none is open, or they are not known."""
        return None if self.transactions is None else self.transactions.tracker.first_open_offset

    @property
    def stable_offset(self) -> int:
        """Kafka's last stable offset: the first offset of all open transactions; the end if none is open."""
        first_open = self.first_open_offset
        return self.end_offset if first_open is None else max(first_open, self.start_offset)

    @property
    def aborted_transactions(self) -> tuple[AbortedTransaction, ...]:
        """The known aborted transactions, without the forgotten ones."""
        return () if self.transactions is None else tuple(self.transactions.aborted)

    @property
    def unreadable_markers(self) -> tuple[UnreadableMarker, ...]:
        """The known transaction markers that cannot be read, without the forgotten ones."""
        return () if self.transactions is None else tuple(self.transactions.unreadable)

    def forget_before(self, offset: int) -> None:
        """Forget the aborted transactions that ended before an offset."""
        if self.transactions is not None:
            self.transactions.forget_before(offset)

    def forget_state(self) -> None:
        """Read the last segment at the next `follow_steps`, even if its file has not changed."""
        self._file_stamp = None

    def is_current(self, files: SegmentFiles) -> bool:
        """Whether the last segment has not changed since its end was found. Raises FileNotFoundError if it is gone."""
        segments, stamp = self.read.segments, self._file_stamp
        return stamp is not None and bool(segments) and files.state(segments[-1]).stamp == stamp

    def follow_listed(self, log: LogSnapshot, *, follows_transactions: bool) -> None:
        """Read what is new in a log that was just listed.

        Raises KafkaFormatError for damage in headers and for markers that cannot be read, and OSError. If reads of the
        log skip damage, such a marker is logged.
        """
        self.read, self.log_start = log.read_segments, log.log_start_offset
        before, known = self.transactions, self.unreadable_markers
        finish(self.follow_steps(ListedFiles(log, follows_transactions=follows_transactions)))
        for marker in self.unreadable_markers[len(known) if self.transactions is before else 0 :]:
            _LOG.warning("passed over a marker, whose transaction stays open: %s", marker.error)

    def follow_steps(self, files: SegmentFiles) -> Steps[None]:
        """Find the present end of the log in steps of `READ_BYTES`, which yield functions to read large batches."""
        segments = self.read.segments
        if not segments:
            self.end, self.damage = LogEnd(0, -1, 0), None
            return
        last = segments[-1]
        state = files.state(last)
        if state.stamp == self._file_stamp:
            return
        self.damage = None
        if not self._is_intact(files):
            self.transactions, self.beginning = None, self.beginning + 1
            yield from self._begin(files)
        elif self.transactions is None and self._is_far(state.size_in_bytes, files):
            yield from self._begin(files)  # without transactions, the batches in between are not needed
        number = bisect_left(segments, self.end.base_offset, key=attrgetter("base_offset"))
        for segment, first in zip(segments[number:], self.read.first_offsets[number:], strict=True):
            if segment.base_offset > self.end.base_offset:
                offset = max(self.end.offset, segment.base_offset)
                self.end, self.damage = LogEnd(offset, segment.base_offset, 0), None
            is_abandoned = not segment.is_active or state.age_ns > _ABANDONED_NS
            yield from self._advance(files, segment, first, is_abandoned=is_abandoned)
        # An earlier segment may end after the last one.
        self.end = self.end._replace(offset=max(self.end.offset, self.read.first_offsets[-1]))
        is_known = self.end.position == state.size_in_bytes or state.age_ns > _ABANDONED_NS
        self._file_stamp = state.stamp if is_known and state.age_ns > SETTLED_NS else None

    def _is_intact(self, files: SegmentFiles) -> bool:
        """Whether the known end is still in the log. It is not if the log was truncated, even if it has grown since."""
        segments = self.read.segments
        number = bisect_left(segments, self.end.base_offset, key=attrgetter("base_offset"))
        if number == len(segments) or segments[number].base_offset != self.end.base_offset:
            return False
        opened, end = files.open(segments[number]), self.end
        opened.extend()
        is_there = opened.head(end.last_position)[: len(end.last_head)] == end.last_head
        return is_there and opened.records.end_position >= end.position

    def _is_far(self, size_in_bytes: int, files: SegmentFiles) -> bool:
        """Whether the index leads closer to the end than the known end does."""
        if self.end.base_offset != self.read.segments[-1].base_offset:
            return True
        return not files.checks_crcs and size_in_bytes - self.end.position > _SCANNED_BYTES

    def _begin(self, files: SegmentFiles) -> Steps[None]:
        """Find the end of the last segment without a known state: from its index, or from its beginning.

        If transactions are wanted, begin where those that the files beside segments contain end.
        """
        segments = self.read.segments
        indexed = files.indexed_transactions(segments)
        if indexed is not None:
            self.transactions, number = indexed
            base_offset = segments[number].base_offset
            self.end = LogEnd(base_offset, base_offset, 0)
            return
        last, first = segments[-1], self.read.first_offsets[-1]
        opened = files.open_anew(last)
        indexes = last.read_indexes()
        # This may read a large batch, so the caller may run it in another thread.
        start = yield lambda: indexes.search_start_of_last(opened.records)
        for position in dict.fromkeys((start, 0)):
            self.end = LogEnd(last.base_offset, last.base_offset, position)
            is_through = yield from self._advance(files, last, first, is_abandoned=False)
            if opened.is_over(self.end.position) or (is_through and not files.checks_crcs):
                return

    def _advance(
        self, files: SegmentFiles, segment: Segment, first_offset: int, *, is_abandoned: bool
    ) -> Steps[bool]:
        """Read the headers from the known end to the end of a segment, and move the known end.

        first_offset: the lowest offset that is read from this segment. is_abandoned: an incomplete batch is damage, as
        nothing is writing it. Returns False if damage, which may be an unfinished batch, comes before the end.
        """
        opened = files.open(segment)
        opened.extend()
        records, position = opened.records, self.end.position
        while not opened.is_over(position, look_after_zeros=is_abandoned):
            try:
                if files.checks_crcs:
                    checked = yield from opened.checked_run_steps(position)
                else:
                    run = yield from opened.run_steps(position)
                    checked = None if run is None else (run, np.ones(len(run), np.bool_))
                if checked is None:
                    if is_abandoned:
                        yield partial(check_tail, records, position, is_active=segment.is_active)
                    return True
                self._take(*checked, files, opened, first_offset)
                position = checked[0].end_position
                del checked  # it may hold a large batch
                yield None
            except KafkaFormatError as error:
                if not is_abandoned:
                    return False
                self.damage = records.with_source(error)
                if files.raises_damage or error.position is None:
                    raise
                position = yield partial(records.position_after, error)
        return True

    def _take(
        self,
        run: BatchRun,
        is_valid: NDArray[np.bool_],
        files: SegmentFiles,
        opened: OpenSegment,
        first_offset: int,
    ) -> None:
        """Move the end after the last batch of a run that counts. is_valid: which batches count.

        Raises KafkaFormatError if other batches follow that one, and for a marker that cannot be read, if damage of
        these files is raised.
        """
        base_offset, last_offsets = opened.segment.base_offset, run.index["last_offset"]
        sound = is_valid.nonzero()[0].tolist()
        # No CRC covers the base offset of a batch: a damaged one must not be the end of the log.
        while sound and not 0 <= int(last_offsets[sound[-1]]) - base_offset <= MAX_RELATIVE_OFFSET:
            sound.pop()
        expected = f"{base_offset} to {base_offset + MAX_RELATIVE_OFFSET}"
        rows = run.index[sound[-3:]]
        if self.end.last_rows is not None:
            rows = np.append(self.end.last_rows, rows)[-3:]
        least = expected_of_last(rows, base_offset)
        if least is not None:
            expected = f"{least} or more"
            rows = rows[:-1]
            sound.pop()
        if sound:
            row = run.index[sound[-1]]
            position = int(row["position"])
            end = position + int(row["size"])
            offset = max(int(row["last_offset"]) + 1, first_offset)
            if self.transactions is not None:
                # The other batches were read from earlier segments.
                own = is_valid & (run.index["last_offset"] >= first_offset)
                numbers = own.nonzero()[0].tolist()
                if files.raises_damage:
                    self.transactions.add(run, numbers)
                else:
                    self.transactions.add_read(opened, run, numbers)
            head = bytes(run.batch(sound[-1])[:HEAD_BYTES])
            self.end = LogEnd(offset, opened.segment.base_offset, end, position, head, rows[-2:].copy())
            self.damage = None
            opened.remember(offset, end)
        number = sound[-1] + 1 if sound else 0
        if number < len(run):
            run.ensure_valid(number)
            message = f"last offset of a batch: expected {expected}, found {last_offsets[number]}"
            raise with_batch(InvalidRecordError(message), run, number)
