"""The transactions of a log up to an end: by the files beside its segments where these tell them, else out of the log.

Reading a log of gigabytes takes seconds, so that it may be done in another thread than the one that follows the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafmt._util.files import read_regular
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import part_of_run
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.open_segment import OpenSegment
from kafkafmt.log.segment import SNAPSHOT_SUFFIX, Segment
from kafkafmt.log.transactions import TransactionTracker, parse_producer_snapshot

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.log.following import LogEnd


@dataclass
class LogTransactions:
    """Those that are open, which the tracker knows, and those that were aborted, in the order of their markers."""

    tracker: TransactionTracker = field(default_factory=TransactionTracker)
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def add(self, run: BatchRun, sound: Sequence[int]) -> None:
        """Take the batches of these numbers in. Raises KafkaFormatError for a damaged marker."""
        if len(sound) == len(run):
            self.aborted += self.tracker.add(run)
            return
        for number in sound:
            self.aborted += self.tracker.add(part_of_run(run, number, number + 1))

    def add_segment(self, opened: OpenSegment, position: int, end: int) -> None:
        """Take a stretch of a segment in, past what is damaged in it."""
        while position < end:
            try:
                run = opened.run_at(position, end)
                if run is None:
                    return
                self.add(run, run.valid().nonzero()[0].tolist())
                position = run.end_position
            except KafkaFormatError as error:
                position = opened.records.position_after(error)

    def overlapping(self, start_offset: int, bound: int) -> Iterator[AbortedTransaction]:
        """Those aborted with offsets from `start_offset` to in front of `bound`."""
        first = bisect_left(self.aborted, start_offset, key=_last_offset)
        for number in range(first, len(self.aborted)):
            one = self.aborted[number]
            if one.first_offset < bound:
                yield one
            if one.last_stable_offset >= bound:
                return

    def forget_before(self, start_offset: int) -> None:
        """Forget those aborted in front of a log's start."""
        del self.aborted[: bisect_left(self.aborted, start_offset, key=_last_offset)]


@dataclass(frozen=True)
class UnreadTransactions:
    """Those of `segments` up to `end`, which are still to be read. beginning: which time the log was begun anew."""

    segments: Sequence[Segment]
    end: LogEnd
    beginning: int
    max_decompressed_bytes: int

    def read(self) -> LogTransactions:
        """In any thread. Raises FileNotFoundError where a segment is deleted meanwhile."""
        found, number = self._indexed()
        for segment in self.segments[number:]:
            opened = OpenSegment(segment, max_decompressed_bytes=self.max_decompressed_bytes)
            is_last = segment.base_offset == self.end.base_offset
            found.add_segment(opened, 0, self.end.position if is_last else opened.records.end_position)
        return found

    def _indexed(self) -> tuple[LogTransactions, int]:
        """What is known in front of the last segment, and its number; nothing, and 0, where files lack."""
        if not self.segments:
            return LogTransactions(), 0
        try:
            snapshot = read_regular(self.segments[-1].path.with_suffix(SNAPSHOT_SUFFIX))
        except OSError:
            return LogTransactions(), 0
        opened_before = parse_producer_snapshot(snapshot)
        aborted: list[AbortedTransaction] = []
        for segment in self.segments[:-1]:
            some = segment.aborted_transactions()
            if opened_before is None or some is None:
                return LogTransactions(), 0
            aborted += some
        return LogTransactions(TransactionTracker(opened_before), aborted), len(self.segments) - 1


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset
