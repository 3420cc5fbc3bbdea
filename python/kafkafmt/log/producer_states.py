"""The states of a log's producers: their sequence numbers with offsets, and their open transactions (KIP-98).

The sequence numbers of a producer have no gaps from batch to batch. While no other producer writes, neither have their
offsets. So the log remembers ranges, in which each sequence number determines its offset; a broker remembers the last
five batches. A batch whose sequence numbers are in a range was appended before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.isolation import TransactionTracker
from kafkafmt.log.producer_snapshots import SnapshotEntry, snapshot_bytes, snapshot_entries
from kafkafmt.records.runs import slice_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

# Sequence numbers are modulo this number.
SEQUENCES = 2**31
_MOST_RANGES = 5
# The most records of a range, so that each sequence number occurs once in it.
_MOST_RECORDS = 2**30
# Beyond this number, the producers that wrote least recently are forgotten.
_MOST_PRODUCERS = 10_000
_NONE = -1


class SequenceRange(NamedTuple):
    """Consecutive records of a producer. base_sequence, base_offset: of the first one. length: their number."""

    base_sequence: int
    base_offset: int
    length: int

    @property
    def next_sequence(self) -> int:
        """The sequence number after the range; after 2^31 - 1 comes 0."""
        return (self.base_sequence + self.length) % SEQUENCES

    @property
    def next_offset(self) -> int:
        """The offset after the range."""
        return self.base_offset + self.length

    def joined(self, other: SequenceRange) -> SequenceRange | None:
        """Return this range joined with the `other`; None if that does not begin directly after this one."""
        if (self.next_sequence, self.next_offset) != (other.base_sequence, other.base_offset):
            return None
        dropped = max(self.length + other.length - _MOST_RECORDS, 0)
        return SequenceRange(
            (self.base_sequence + dropped) % SEQUENCES,
            self.base_offset + dropped,
            self.length + other.length - dropped,
        )


class OpenProducer(NamedTuple):
    """A producer with an open transaction, which begins at `first_offset`."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class ProducerState(NamedTuple):
    """The state of a producer: its last ranges in this epoch. timestamp: that of its last batch, in milliseconds."""

    producer_epoch: int
    ranges: tuple[SequenceRange, ...] = ()
    timestamp: int = _NONE

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next record; 0 if the producer has written no record in this epoch."""
        return self.ranges[-1].next_sequence if self.ranges else 0

    def find(self, base_sequence: int, count: int) -> int | None:
        """Return the offset of the record `base_sequence`; None if it and its `count` records are not remembered."""
        for range_ in self.ranges:
            distance = (base_sequence - range_.base_sequence) % SEQUENCES
            if distance + count <= range_.length:
                return range_.base_offset + distance
        return None

    def with_batches(self, batches: Iterable[SequenceRange], timestamp: int) -> ProducerState:
        """Return the state after more batches, the last of which has this timestamp in milliseconds."""
        ranges = list(self.ranges)
        for batch in batches:
            joined = ranges[-1].joined(batch) if ranges else None
            if joined is None:
                ranges.append(batch)
            else:
                ranges[-1] = joined
        return ProducerState(self.producer_epoch, tuple(ranges[-_MOST_RANGES:]), timestamp)


class ProducerStates:
    """The states of all producers of a log up to an offset, as in Kafka's ProducerStateManager."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()
        self._tracker = TransactionTracker()

    @classmethod
    def from_snapshot(cls, data: bytes) -> ProducerStates | None:
        """Parse the bytes of a `.snapshot` file. Returns None if they are damaged."""
        entries = snapshot_entries(data)
        if entries is None:
            return None
        states = cls()
        for entry in entries:
            ranges: tuple[SequenceRange, ...] = ()
            if entry.last_offset >= 0 and entry.last_sequence >= 0:
                count = entry.offset_delta + 1
                base_sequence = (entry.last_sequence - entry.offset_delta) % SEQUENCES
                ranges = (SequenceRange(base_sequence, entry.last_offset - entry.offset_delta, count),)
            states._producers[entry.producer_id] = ProducerState(
                entry.producer_epoch, ranges, entry.timestamp
            )
        states._tracker = TransactionTracker(
            {
                entry.producer_id: entry.transaction_first_offset
                for entry in entries
                if entry.transaction_first_offset >= 0
            }
        )
        return states

    @classmethod
    def of_open(cls, producers: Iterable[OpenProducer]) -> ProducerStates:
        """Return the states in which only the open transactions are known."""
        states = cls()
        for producer_id, epoch, first_offset in producers:
            states._producers[producer_id] = ProducerState(epoch)
            states._tracker = TransactionTracker(
                {**states._tracker.open_transactions, producer_id: first_offset}
            )
        return states

    def open_producers(self) -> tuple[OpenProducer, ...]:
        """Return the producers that have a transaction open."""
        return tuple(
            OpenProducer(one, max(self._producers.get(one, ProducerState(0)).producer_epoch, 0), first_offset)
            for one, first_offset in self._tracker.open_transactions.items()
        )

    def snapshot(self) -> bytes:
        """Return the bytes of a `.snapshot` file with these states."""
        is_open = self._tracker.open_transactions
        entries = []
        for producer_id in {**self._producers, **is_open}:
            state = self._producers.get(producer_id, ProducerState(_NONE))
            last = state.ranges[-1] if state.ranges else None
            entries.append(
                SnapshotEntry(
                    producer_id,
                    state.producer_epoch,
                    _NONE if last is None else (last.next_sequence - 1) % SEQUENCES,
                    _NONE if last is None else last.next_offset - 1,
                    0 if last is None else last.length - 1,
                    state.timestamp,
                    _NONE,
                    is_open.get(producer_id, _NONE),
                )
            )
        return snapshot_bytes(entries)

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer; None if the log remembers none."""
        return self._producers.get(producer_id)

    def aborted_by(
        self, run: BatchRun, first: int, stop: int
    ) -> tuple[list[AbortedTransaction], TransactionTracker]:
        """Return the transactions that batches `first` to before `stop` abort, and the tracker after these batches.

        The states do not change. Raises KafkaFormatError for a damaged marker.
        """
        tracker = TransactionTracker(self._tracker.open_transactions)
        return list(tracker.add(slice_run(run, first, stop))), tracker

    def add(self, run: BatchRun, first: int, stop: int, tracker: TransactionTracker | None = None) -> None:
        """Add batches of the log, `first` to before `stop`. tracker: the one that `aborted_by` returned for them.

        Raises KafkaFormatError for a damaged marker, unless the tracker is given.
        """
        self._tracker = self.aborted_by(run, first, stop)[1] if tracker is None else tracker
        rows = run.index[first:stop]
        rows = rows[rows["producer_id"] >= 0]
        for producer_id in np.unique(rows["producer_id"]).tolist():
            self._add(producer_id, rows[rows["producer_id"] == producer_id])
        while len(self._producers) > _MOST_PRODUCERS:
            self._producers.popitem(last=False)

    def _add(self, producer_id: int, rows: NDArray[np.void]) -> None:
        epoch = int(rows["producer_epoch"][-1])
        state = self._producers.get(producer_id)
        if state is None or state.producer_epoch != epoch:
            state = ProducerState(epoch)
        data = rows[(rows["producer_epoch"] == epoch) & ~rows["is_control"] & (rows["base_sequence"] >= 0)]
        counts = data["last_offset"] - data["base_offset"] + 1
        batches = zip(
            data["base_sequence"].tolist(), data["base_offset"].tolist(), counts.tolist(), strict=True
        )
        timestamp = int(rows["max_timestamp"][-1])
        self._producers[producer_id] = state.with_batches(map(SequenceRange._make, batches), timestamp)
        self._producers.move_to_end(producer_id)
