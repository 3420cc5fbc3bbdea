"""Where a log ends, and which transactions are aborted or open there, learned once and then from what is new alone.

A log is followed from listing to listing: segments grow, are rolled, deleted, compacted and cut off meanwhile. So
what was learned is held against the log, and learned again where it does not hold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from _kafkafmt.scan import BatchRun
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction, transactions_from_bytes
from kafkafmt.log.segment import SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX
from kafkafmt.log.transactions import TransactionTracker, parse_producer_snapshot
from kafkafmt.spark.files import read_sidecar
from kafkafmt.spark.source.logs import Log, Place, read_indexes

if TYPE_CHECKING:
    from kafkafmt.log.segment import SegmentRange
    from kafkafmt.spark.files import SegmentFile

# Where more than that is new in a segment, its index leads nearer to its end than what is known does.
_SCANNED_BYTES = 16 * 1024 * 1024
_PEEKED_BYTES = 4096


class LogFollower:
    """Follows one log, by the headers behind the place that it knows.

    For committed reads those are the headers of all segments in front of that too, unless a broker's `.snapshot` of
    its last segment and `.txnindex` files are there: then those of the last one. Else what the index of the last
    segment does not reach is read, and no more.
    """

    def __init__(self, *, is_committed: bool) -> None:
        self._is_committed = is_committed
        self._start = 0
        self._end: Place | None = None
        self._tracker = TransactionTracker()
        self._aborted: list[AbortedTransaction] = []

    @property
    def end(self) -> Place:
        """Behind the last whole batch."""
        assert self._end is not None, "follow comes first"
        return self._end

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the transactions that have not ended: committed reads stop in front of it."""
        return self._tracker.first_open_offset

    @property
    def stable_offset(self) -> int:
        """What readers come to: the end or, for committed reads, the first open transaction (Kafka's LSO)."""
        return self.end.offset if self.first_open_offset is None else max(self.first_open_offset, self._start)

    @property
    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """The aborted transactions, of committed reads alone, but for those that were forgotten."""
        return tuple(self._aborted)

    def forget(self, offset: int) -> None:
        """Drop the transactions that ended in front of `offset`, as nothing there will be read any more."""
        self._aborted = [one for one in self._aborted if one.last_offset >= offset]

    def follow(self, log: Log) -> None:
        """Learn what is new in a log that was listed just now.

        Raises KafkaFormatError for damage in the headers, unless the log's options have it passed over.
        """
        known = self._end
        self._advance(log, known if known is not None and self._goes_on(log, known) else self._begin(log))
        self._start = log.start_offset
        if self.end.offset < log.least_end_offset:
            self._end = replace(self.end, offset=log.least_end_offset)

    def _goes_on(self, log: Log, known: Place) -> bool:
        """Whether the log goes on at the known end, and that is the way to its new one."""
        segment = log.segment_at(known.base_offset)
        if segment is None or segment.size_in_bytes < known.position:
            return False
        new_bytes = segment.size_in_bytes - known.position
        if not self._is_committed and (segment is not log.segments[-1] or new_bytes > _SCANNED_BYTES):
            return False
        if not new_bytes:
            return True
        with log.open(segment, known.position) as records:
            try:
                run = next(records.runs(run_bytes=_PEEKED_BYTES), None)
            except KafkaFormatError:
                return False  # as if the segment was written anew
        return run is None or bool(run.index["last_offset"][0] >= known.offset)

    def _begin(self, log: Log) -> Place:
        """The place from which all headers are to be read, nothing being known."""
        first, last = log.segments[0], log.segments[-1]
        self._tracker, self._aborted = TransactionTracker(), []
        if self._is_committed:
            indexed = _indexed_transactions(log)
            if indexed is None:
                return Place(first.base_offset, first.base_offset, 0)
            self._aborted, open_transactions = indexed
            self._tracker = TransactionTracker(open_transactions)
        else:
            with log.open(last) as records:
                try:
                    row = read_indexes(last).find_last_row(records)
                except KafkaFormatError:  # advancing raises it, or passes over it
                    row = None
            if row is not None:
                after = int(row["position"]) + int(row["size"])
                return Place(int(row["last_offset"]) + 1, last.base_offset, after)
        return Place(last.base_offset, last.base_offset, 0)

    def _advance(self, log: Log, place: Place) -> None:
        self._end = place
        for segment in log.segments:
            if segment.base_offset > self.end.base_offset:
                offset = max(self.end.offset, segment.base_offset)
                self._end = Place(offset, segment.base_offset, 0)
            if segment.base_offset == self.end.base_offset:
                self._read(log, segment)

    def _read(self, log: Log, segment: SegmentFile) -> None:
        first = log.first_offset_of(segment)

        def see(records: SegmentRange) -> None:
            for run in records.runs(reuse_memory=True):
                if self._is_committed:
                    self._aborted += self._tracker.add(_from_offset(run, first))
                offset = max(int(run.index["last_offset"][-1]) + 1, self.end.offset)
                self._end = Place(offset, segment.base_offset, run.end_position)

        if self.end.position < segment.size_in_bytes:
            log.read_through(segment, see, self.end.position)


def _from_offset(run: BatchRun, first: int) -> BatchRun:
    """The batches that reach `first`: those in front of it another segment has, too."""
    is_new = run.index["last_offset"] >= first
    return run if is_new.all() else BatchRun(run.buffer, run.index[is_new], run.origin)


def _indexed_transactions(log: Log) -> tuple[list[AbortedTransaction], dict[int, int]] | None:
    """Those aborted in front of the last segment, and those open there; None where a broker left no such files.

    A segment without a `.txnindex` has none aborted, where the broker's snapshot of its producers is there.
    """
    *closed, last = log.segments
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
