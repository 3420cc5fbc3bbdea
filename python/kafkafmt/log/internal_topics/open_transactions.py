"""The open transactions of one log, as a broker's `DescribeProducers` returns them.

A broker writes the states of all producers to a `.snapshot` file when it rolls a segment and when it stops. Only the
batches after the last snapshot are read. Without a readable snapshot the whole log is read.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.internal_topics.latest import (
    DamageHandler,
    batch_damage,
    log_reader,
    raise_damage,
    runs_from,
)
from kafkafmt.log.isolation import LogTransactions, TransactionTracker
from kafkafmt.log.producer_snapshots import snapshot_entries
from kafkafmt.log.segment import SNAPSHOT_SUFFIX
from kafkafmt.storage import read_file, storage_of

if TYPE_CHECKING:
    from kafkafmt.log.partition_log import PartitionLog
    from kafkafmt.log.producer_snapshots import SnapshotEntry
    from kafkafmt.types import TopicPartition

_NONE = -1


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that is open at the end of a log.

    producer_epoch: that of its first batch, or of its producer in the snapshot. -1 if compaction removed the batch.
    first_offset: the offset of its first record.
    start_timestamp: the base timestamp of its first batch, in milliseconds; -1 if compaction removed the batch.
    """

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    start_timestamp: int


@dataclass(frozen=True)
class OpenTransactions:
    """The open transactions of a log, by first offset.

    newest_timestamp: the highest timestamp of the log's producers and of the batches after the last snapshot, in
    milliseconds; -1 without these.
    """

    transactions: tuple[OpenTransaction, ...]
    newest_timestamp: int


def open_transactions(
    log: PartitionLog, topic_partition: TopicPartition, *, on_damage: DamageHandler = raise_damage
) -> OpenTransactions:
    """Return the open transactions of a log.

    on_damage: called with each damaged range in the batches that are read, and each marker that cannot be read. They
        are skipped. By default CorruptRecordError is raised.
    """
    end_offset, entries = _last_snapshot(log)
    known = {entry.producer_id: entry for entry in entries}
    begun = {
        entry.producer_id: entry.transaction_first_offset
        for entry in entries
        if entry.transaction_first_offset >= 0
    }
    found = LogTransactions(TransactionTracker(begun))
    newest = max((entry.timestamp for entry in entries), default=_NONE)
    for run in runs_from(log, end_offset, on_damage=on_damage):
        numbers = (run.index["base_offset"] >= end_offset).nonzero()[0].tolist()
        if numbers:
            found.add(run, numbers, lambda error: on_damage(batch_damage(log, error)))
            rows = run.index[numbers]
            newest = max(newest, int(rows["max_timestamp"][rows["producer_id"] >= 0].max(initial=_NONE)))
    begun = dict(found.tracker.open_transactions)
    described = [
        _described(log, topic_partition, producer_id, begun[producer_id], known.get(producer_id))
        for producer_id in sorted(begun, key=lambda one: begun[one])
    ]
    return OpenTransactions(tuple(described), newest)


def _described(
    log: PartitionLog,
    topic_partition: TopicPartition,
    producer_id: int,
    first_offset: int,
    entry: SnapshotEntry | None,
) -> OpenTransaction:
    epoch, start_timestamp = _NONE if entry is None else entry.producer_epoch, _NONE
    with suppress(KafkaFormatError):
        batch = next(log.batches(first_offset, first_offset + 1), None)
        if batch is not None and batch.producer_id == producer_id and batch.base_offset <= first_offset:
            epoch, start_timestamp = batch.producer_epoch, batch.base_timestamp
    return OpenTransaction(topic_partition, producer_id, epoch, first_offset, start_timestamp)


def _last_snapshot(log: PartitionLog) -> tuple[int, list[SnapshotEntry]]:
    """Return the offset of the last readable snapshot within the log, and its entries; 0 and none without one."""
    end_offset = log_reader(log).end_offset
    with storage_of(log.path).entries(log.path) as entries:
        names = sorted(
            (entry.name for entry in entries if entry.name.endswith(SNAPSHOT_SUFFIX)), reverse=True
        )
    for name in names:
        stem = name.removesuffix(SNAPSHOT_SUFFIX)
        if not (stem.isascii() and stem.isdigit()) or int(stem) > end_offset:
            continue
        with suppress(OSError):
            found = snapshot_entries(read_file(log.path / name))
            if found is not None:
                return int(stem), found
    return 0, []
