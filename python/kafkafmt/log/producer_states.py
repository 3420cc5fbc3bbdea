"""What a log knows of its producers: who wrote which sequence numbers where, and whose transactions are open (KIP-98).

Sequence numbers of a producer follow upon each other without a gap, from batch to batch, and so do, while it writes
alone, the offsets they get. So what is remembered are stretches, within which each sequence number tells its offset;
a broker remembers the last five batches. A batch that lies within a stretch was appended before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.log.directory import part_of_run
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.producer_snapshots import SnapshotEntry, snapshot_bytes, snapshot_entries
from kafkafmt.log.transactions import TransactionTracker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun

# Sequence numbers begin at 0 again behind this many.
SEQUENCES = 2**31
_MOST_STRETCHES = 5
# A stretch is no longer, so that a number stands for one place in it.
_MOST_RECORDS = 2**30
# Of more producers, those that wrote longest ago are forgotten.
_MOST_PRODUCERS = 10_000
_NONE = -1


class Stretch(NamedTuple):
    """Records of a producer with nothing between them: how many, and the first one's sequence number and offset."""

    base_sequence: int
    base_offset: int
    length: int

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + self.length) % SEQUENCES

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.length

    def joined(self, other: Stretch) -> Stretch | None:
        """With the one behind it; None where something is between."""
        if (self.next_sequence, self.next_offset) != (other.base_sequence, other.base_offset):
            return None
        dropped = max(self.length + other.length - _MOST_RECORDS, 0)
        return Stretch(
            (self.base_sequence + dropped) % SEQUENCES,
            self.base_offset + dropped,
            self.length + other.length - dropped,
        )


class ProducerState(NamedTuple):
    """A producer, and its last stretches in this epoch; timestamp: of its last batch, in milliseconds."""

    producer_epoch: int
    stretches: tuple[Stretch, ...] = ()
    timestamp: int = _NONE

    @property
    def next_sequence(self) -> int:
        """The sequence number that must come next; 0 where it has written nothing in this epoch."""
        return self.stretches[-1].next_sequence if self.stretches else 0

    def find(self, base_sequence: int, count: int) -> int | None:
        """The offset that records with these sequence numbers have; None where they are not remembered."""
        for stretch in self.stretches:
            distance = (base_sequence - stretch.base_sequence) % SEQUENCES
            if distance + count <= stretch.length:
                return stretch.base_offset + distance
        return None

    def with_batches(self, batches: Iterable[Stretch], timestamp: int) -> ProducerState:
        stretches = list(self.stretches)
        for batch in batches:
            joined = stretches[-1].joined(batch) if stretches else None
            if joined is None:
                stretches.append(batch)
            else:
                stretches[-1] = joined
        return ProducerState(self.producer_epoch, tuple(stretches[-_MOST_STRETCHES:]), timestamp)


class ProducerStates:
    """All producers of a log up to an offset, as Kafka's ProducerStateManager has them."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, ProducerState] = OrderedDict()
        self._tracker = TransactionTracker()

    @classmethod
    def from_snapshot(cls, data: bytes) -> ProducerStates | None:
        """Those that a `.snapshot` with these bytes tells; None where they are damaged."""
        entries = snapshot_entries(data)
        if entries is None:
            return None
        states = cls()
        for entry in entries:
            stretches: tuple[Stretch, ...] = ()
            if entry.last_offset >= 0 and entry.last_sequence >= 0:
                count = entry.offset_delta + 1
                base_sequence = (entry.last_sequence - entry.offset_delta) % SEQUENCES
                stretches = (Stretch(base_sequence, entry.last_offset - entry.offset_delta, count),)
            states._producers[entry.producer_id] = ProducerState(
                entry.producer_epoch, stretches, entry.timestamp
            )
        states._tracker = TransactionTracker(
            {
                entry.producer_id: entry.transaction_first_offset
                for entry in entries
                if entry.transaction_first_offset >= 0
            }
        )
        return states

    def snapshot(self) -> bytes:
        """The bytes of a `.snapshot`."""
        is_open = self._tracker.open_transactions
        entries = []
        for producer_id in {**self._producers, **is_open}:
            state = self._producers.get(producer_id, ProducerState(_NONE))
            last = state.stretches[-1] if state.stretches else None
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
        """None for one that has written nothing that is remembered."""
        return self._producers.get(producer_id)

    def aborted_by(
        self, run: BatchRun, first: int, stop: int
    ) -> tuple[list[AbortedTransaction], TransactionTracker]:
        """The transactions that markers in batches `first` to `stop` abort, and what is open behind them.

        Raises KafkaFormatError for a damaged marker. Nothing is taken in.
        """
        tracker = TransactionTracker(self._tracker.open_transactions)
        return list(tracker.add(part_of_run(run, first, stop))), tracker

    def add(self, run: BatchRun, first: int, stop: int, tracker: TransactionTracker | None = None) -> None:
        """Take batches in that are in the log; `tracker`: what `aborted_by` gave for them."""
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
        self._producers[producer_id] = state.with_batches(map(Stretch._make, batches), timestamp)
        self._producers.move_to_end(producer_id)
