"""Which transactions were aborted, from the log itself: what `.txnindex` files say, without them.

A producer has one open transaction at most. It begins with the first transactional batch behind the last
marker of that producer, and ends with a control batch that says whether it is committed (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from _kafkafmt.types import ControlRecordType
from kafkafmt.batch import RecordBatch
from kafkafmt.decoding import describe
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.producer_snapshots import snapshot_entries

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun


def parse_producer_snapshot(data: bytes) -> dict[int, int] | None:
    """The transactions that are open where a `.snapshot` was taken: first offset by producer id. None for damage."""
    entries = snapshot_entries(data)
    if entries is None:
        return None
    found = {entry.producer_id: entry.transaction_first_offset for entry in entries}
    return {producer_id: first_offset for producer_id, first_offset in found.items() if first_offset >= 0}


class TransactionTracker:
    """Follows the batches of a log, and tells of each aborted transaction as it ends.

    From the log's start, or from where the transactions `open_transactions` are open (first offset by producer
    id). As Kafka's ProducerStateManager does it. A marker for a producer without an open transaction is ignored.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self._first_offsets = dict(open_transactions or {})

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """First offset by producer id."""
        return self._first_offsets

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the transactions that have not ended: committed readers stop in front of it."""
        return min(self._first_offsets.values(), default=None)

    def add(self, run: BatchRun) -> Iterator[AbortedTransaction]:
        """Yield the transactions that a marker in this run aborts.

        Raises InvalidRecordError for a control record whose key or value Kafka refuses, and KafkaFormatError for a
        damaged batch.
        """
        rows = run.index
        for number in rows["is_transactional"].nonzero()[0].tolist():
            producer_id = int(rows["producer_id"][number])
            if not rows["is_control"][number]:
                self._first_offsets.setdefault(producer_id, int(rows["base_offset"][number]))
                continue
            kind = _marker_type(run, number)
            if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
                first_offset = self._first_offsets.pop(producer_id, None)
                if kind == ControlRecordType.ABORT and first_offset is not None:
                    last_offset = int(rows["last_offset"][number])
                    stable = min(self._first_offsets.values(), default=last_offset + 1)
                    yield AbortedTransaction(producer_id, first_offset, last_offset, stable)


def _marker_type(run: BatchRun, number: int) -> ControlRecordType | None:
    """Read the first record, as Kafka does. None for the batch without records that compaction leaves of a marker."""
    record = next(iter(RecordBatch(run, number)), None)
    if record is None:
        return None
    try:
        control = record.control
    except InvalidRecordError as error:
        raise describe(error, run, number) from None
    return None if control is None else control.type
