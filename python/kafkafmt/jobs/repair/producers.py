"""The states of a log's producers as a broker keeps them in `.snapshot` files (Kafka's ProducerStateManager).

`kafkafmt.log.producer_states` remembers ranges of sequence numbers, so that it recognises any batch that is sent again.
A broker compares a batch with the last one of its producer, which the file must therefore have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.isolation import TransactionTracker
from kafkafmt.log.producer_snapshots import SnapshotEntry, snapshot_bytes
from kafkafmt.log.producer_states import SEQUENCES
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import slice_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun

_NONE = -1


class ProducerTracker:
    """The last batch and the open transaction of each producer, up to an offset."""

    def __init__(self) -> None:
        self._entries: dict[int, SnapshotEntry] = {}
        self._transactions = TransactionTracker()

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id."""
        return dict(self._transactions.open_transactions)

    def load(self, entries: Sequence[SnapshotEntry]) -> None:
        """Continue from the entries of a `.snapshot` file."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._transactions = TransactionTracker(
            {
                entry.producer_id: entry.transaction_first_offset
                for entry in entries
                if entry.transaction_first_offset >= 0
            }
        )

    def end_transactions(self, aborted: Sequence[AbortedTransaction]) -> None:
        """Forget the open transactions that are known to have ended, although their markers are lost."""
        is_open = self.open_transactions
        for one in aborted:
            if is_open.get(one.producer_id, one.last_offset) < one.last_offset:
                del is_open[one.producer_id]
        self._transactions = TransactionTracker(is_open)

    def add(self, run: BatchRun) -> list[AbortedTransaction]:
        """Add the batches of a run. Returns the transactions that its markers abort.

        Raises KafkaFormatError for a damaged marker.
        """
        rows = run.index
        numbers = (rows["producer_id"] >= 0).nonzero()[0]
        if not len(numbers):
            return []
        order = numbers[rows["producer_id"][numbers].argsort(kind="stable")]
        stops = np.append(np.diff(rows["producer_id"][order]).nonzero()[0] + 1, len(order)).tolist()
        first = 0
        for stop in stops:
            self._add(run, order[first:stop])
            first = stop
        return list(self._transactions.add(run))

    def snapshot(self) -> bytes:
        """Return the bytes of a `.snapshot` file."""
        is_open = self._transactions.open_transactions
        entries = [
            self._entries.get(producer_id, _new_entry(producer_id))
            for producer_id in sorted({*self._entries, *is_open})
        ]
        return snapshot_bytes(
            [one._replace(transaction_first_offset=is_open.get(one.producer_id, _NONE)) for one in entries]
        )

    def _add(self, run: BatchRun, numbers: NDArray[np.intp]) -> None:
        """Add batches of one producer: their numbers in the run."""
        rows = run.index[numbers]
        last = rows[-1]
        producer_id, epoch = int(last["producer_id"]), int(last["producer_epoch"])
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != epoch:
            # A new epoch begins with no batch (ProducerStateEntry.maybeUpdateProducerEpoch).
            coordinator_epoch = _NONE if entry is None else entry.coordinator_epoch
            entry = _new_entry(producer_id)._replace(
                producer_epoch=epoch, coordinator_epoch=coordinator_epoch
            )
        data = rows[~rows["is_control"] & (rows["producer_epoch"] == epoch)]
        if len(data):
            batch = data[-1]
            delta = int(batch["last_offset"]) - int(batch["base_offset"])
            entry = entry._replace(
                last_sequence=(int(batch["base_sequence"]) + delta) % SEQUENCES,
                last_offset=int(batch["last_offset"]),
                offset_delta=delta,
            )
        markers = numbers[rows["is_control"]]
        if len(markers):
            entry = entry._replace(
                coordinator_epoch=_coordinator_epoch(run, int(markers[-1]), entry.coordinator_epoch)
            )
        self._entries[producer_id] = entry._replace(timestamp=int(last["max_timestamp"]))


def _new_entry(producer_id: int) -> SnapshotEntry:
    return SnapshotEntry(producer_id, _NONE, _NONE, _NONE, 0, _NONE, _NONE, _NONE)


def _coordinator_epoch(run: BatchRun, number: int, known: int) -> int:
    """Return the epoch of the coordinator that wrote a marker; `known` if compaction has removed its record."""
    record = next(iter(RecordBatch(slice_run(run, number, number + 1), 0)), None)
    if record is None or record.control is None or record.control.coordinator_epoch is None:
        return known
    return record.control.coordinator_epoch
