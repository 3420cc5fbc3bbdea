"""The last record of each key in the log of one partition: the state that a compacted topic describes.

Records of transactions count only if the transaction is committed before the end of the read (KIP-98, KIP-447). Records
of aborted transactions are left out. Records of transactions that are open there are returned apart.

Memory depends on the number of distinct keys, not on the size of the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from _kafkafmt.records.last_records import LastRecords
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.isolation import LogTransactions
from kafkafmt.log.open_readers import read_memory
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.records.decoding import locate_in_chunks
from kafkafmt.records.runs import (
    first_offset,
    of_aborted_transactions,
    select_batches,
    slice_run,
    whole_batches,
    with_batch,
)
from kafkafmt.types import LastRecord, TopicPartition, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.records.decode import LocatedRecords
    from kafkafmt.log.partition_log import PartitionLog

DamageHandler: TypeAlias = Callable[[SourceDamage], None]
ErrorHandler: TypeAlias = Callable[[KafkaFormatError], None]


@dataclass(frozen=True)
class LatestRecords:
    """The last record of each key in a log, up to an offset.

    records: those of committed records, tombstones included, by offset.
    pending: those of each transaction that is open at `end_offset`, by producer id.
    end_offset: the offset before which the log was read.
    newest_timestamp: the highest timestamp of all batches that were read, in milliseconds; -1 without batches.
    """

    records: list[LastRecord] = field(default_factory=list)
    pending: dict[int, list[LastRecord]] = field(default_factory=dict)
    end_offset: int = 0
    newest_timestamp: int = -1


def raise_damage(damage: SourceDamage) -> None:
    """Raise CorruptRecordError for damage: the handler of readers that skip none."""
    raise CorruptRecordError(f"{damage.topic_partition} at offset {damage.offset}: {damage.message}")


def end_offset_at(log: PartitionLog, timestamp: int | datetime, *, skips_damage: bool = False) -> int | None:
    """Return the offset of the first record after a time, which may be before 1970; None if there is none.

    skips_damage: search only the batches that are sound. Raises ValueError for a naive datetime. Raises
    KafkaFormatError if damage prevents the search.
    """
    found = log.find_timestamp(max(milliseconds(timestamp) + 1, 0), skips_damage=skips_damage)
    return None if found is None else found.offset


def read_latest(
    log: PartitionLog, end_offset: int | None = None, *, on_damage: DamageHandler = raise_damage
) -> LatestRecords:
    """Read the last record of each key before `end_offset`, or before the end of the log.

    on_damage: called with each damaged range, which is skipped. By default CorruptRecordError is raised.
    """
    read = _Log(log, end_offset, on_damage)
    return LatestRecords(read.committed(), read.pending(), read.end_offset, read.newest_timestamp)


def last_by_key(
    runs: Iterable[BatchRun], end_offset: int, max_decompressed_bytes: int, on_error: ErrorHandler
) -> list[LastRecord]:
    """Return the last record of each key in runs of sound batches, by offset. Control batches are left out.

    end_offset: records at or after it are left out; the last batch may have some. A run may be valid only until the
    next one is taken. on_error: called with the error of each batch whose records cannot be read, which is skipped.
    """
    last, cut = LastRecords(), dict[bytes, LastRecord]()
    for run in runs:
        for located in _located(run, max_decompressed_bytes, on_error):
            count = int(located.offsets().searchsorted(end_offset))
            if count == len(located):
                last.add(located)
            else:
                for record in located.iterate(stop=count):
                    if record.key is not None:
                        cut[record.key] = LastRecord(
                            record.key, record.value, record.offset, record.timestamp
                        )
    found = [*(one for one in last if one.key not in cut), *cut.values()]
    return sorted(found, key=lambda one: one.offset)


def runs_from(
    log: PartitionLog,
    start_offset: int,
    end_offset: int | None = None,
    *,
    on_damage: DamageHandler = raise_damage,
) -> Iterator[BatchRun]:
    """Yield the sound batches from `start_offset` to `end_offset`, or to the end of the log. Control batches, too.

    The first and the last batch may contain a bound. A run is valid until the next one is taken. on_damage: called with
    each damaged range, which is skipped.
    """
    reader = log_reader(log)
    reader.seek(max(start_offset, reader.start_offset))
    end = reader.end_offset if end_offset is None else end_offset
    while (found := reader.read(end)) is not None:
        if isinstance(found, SourceDamage):
            on_damage(found)
        else:
            yield found


def batch_damage(log: PartitionLog, error: KafkaFormatError) -> SourceDamage:
    """Return the damage for the error of a batch that cannot be read; see `kafkafmt.records.runs.with_batch`."""
    assert error.last_offset is not None
    offset = error.last_offset if error.base_offset is None else error.base_offset
    return SourceDamage(partition_of_log(log), offset, error.last_offset + 1, f"{log.path}: {error}")


def log_reader(log: PartitionLog) -> LogReader:
    """Return a reader of a log whose folder may have any name."""
    return LogReader(
        partition_of_log(log),
        log.path,
        SegmentCache(),
        read_memory(),
        is_committed=False,
        keeps_control_batches=True,
        trims_first_batch=False,
        from_segment_start=log.from_segment_start,
    )


def partition_of_log(log: PartitionLog) -> TopicPartition:
    """Return the partition of a log. For a folder of another name it is the name with partition 0."""
    return log.topic_partition or TopicPartition(log.path.name, 0)


def _located(run: BatchRun, max_decompressed_bytes: int, on_error: ErrorHandler) -> Iterator[LocatedRecords]:
    """Yield the located records of a run. Batches whose records cannot be read are skipped and reported."""
    first = 0
    while first < len(run):
        part = slice_run(run, first, len(run))
        try:
            yield from locate_in_chunks(part, verify=False, control=False, limit=max_decompressed_bytes)
            return
        except KafkaFormatError as error:
            number = int(run.index["position"].searchsorted(error.position or 0))
            on_error(with_batch(error, run, number))
            first = number + 1


class _Log:
    """The runs of a log up to an offset: those whose records are committed, and those of open transactions."""

    def __init__(self, log: PartitionLog, end_offset: int | None, on_damage: DamageHandler) -> None:
        self._log, self._on_damage = log, on_damage
        log_end = log_reader(log).end_offset
        self.end_offset = log_end if end_offset is None else min(end_offset, log_end)
        self.newest_timestamp = -1
        self._transactions: LogTransactions | None = None
        self._pending: dict[int, list[BatchRun]] = defaultdict(list)

    def committed(self) -> list[LastRecord]:
        return self._last_by_key(self._committed_runs())

    def pending(self) -> dict[int, list[LastRecord]]:
        """Return the records of open transactions. Call it after `committed`."""
        return {producer_id: self._last_by_key(runs) for producer_id, runs in self._pending.items()}

    def _last_by_key(self, runs: Iterable[BatchRun]) -> list[LastRecord]:
        limit = self._log.max_decompressed_bytes
        return last_by_key(runs, self.end_offset, limit, self._report)

    def _report(self, error: KafkaFormatError) -> None:
        self._on_damage(batch_damage(self._log, error))

    def _committed_runs(self) -> Iterator[BatchRun]:
        for run in runs_from(self._log, 0, self.end_offset, on_damage=self._on_damage):
            self.newest_timestamp = max(self.newest_timestamp, int(run.index["max_timestamp"].max()))
            part = self._committed_part(run) if run.index["is_transactional"].any() else run
            if len(part):
                yield part

    def _committed_part(self, run: BatchRun) -> BatchRun:
        """Return the batches of a run without those of aborted transactions. Those of open ones are kept apart."""
        if self._transactions is None:
            self._transactions = self._read_transactions(first_offset(run))  # none began before this run
        rows = run.index
        bound = int(rows["last_offset"].max()) + 1
        left_out = of_aborted_transactions(rows, self._transactions.overlapping(first_offset(run), bound))
        for producer_id, offset in self._transactions.tracker.open_transactions.items():
            is_open = rows["is_transactional"] & ~rows["is_control"] & (rows["producer_id"] == producer_id)
            is_open &= rows["base_offset"] >= offset
            if is_open.any():
                left_out |= is_open
                self._pending[producer_id] += map(_copied, _each_batch(run, is_open))
        return select_batches(run, ~left_out) if left_out.any() else run

    def _read_transactions(self, from_offset: int) -> LogTransactions:
        """Read the transactions from an offset to `end_offset`. Markers that cannot be read are skipped and reported.

        Other damage is reported when the records are read.
        """
        found = LogTransactions()
        for run in runs_from(self._log, from_offset, self.end_offset, on_damage=lambda damage: None):
            found.add(run, range(len(run)), self._report)
        return found


def _each_batch(run: BatchRun, wanted: NDArray[np.bool_]) -> Iterator[BatchRun]:
    return (slice_run(run, number, number + 1) for number in wanted.nonzero()[0].tolist())


def _copied(run: BatchRun) -> BatchRun:
    """Return a copy of a run of one batch, which is valid after its memory is used again."""
    return whole_batches(bytes(run.batch(0)), int(run.index["position"][0]))
