"""The batches that were fetched of one partition: what of them a consumer returns, and where damage begins.

Headers are scanned and CRCs are checked once. Batches are selected by masks over their index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.records.base import MemoryRecords
from kafkafmt.records.batch import RecordBatch
from kafkafmt.records.runs import of_aborted_transactions, slice_run, sound_part
from kafkafmt.records.trimming import base_offset_of, trimmed_run
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.fetch_metrics import FetchMetrics
    from kafkafmt.client.fetch_queue import Fetched


class BatchOptions(NamedTuple):
    """How a consumer checks and returns batches, by its options."""

    check_crcs: bool
    keeps_control_batches: bool
    trims_first_batch: bool


class PartitionBatches:
    """The batches that were fetched of one partition.

    metrics: gets their number and bytes once they were taken or dropped.

    A batch that begins before `fetch_offset` and ends after it is trimmed. Batches that end before it, control batches
    and batches of aborted transactions are left out, as the options say. Batches before damage are returned, then the
    damage is raised. Positions in errors are byte positions in the fetched records.
    """

    def __init__(self, fetched: Fetched, options: BatchOptions, metrics: FetchMetrics | None = None) -> None:
        self.topic_partition = fetched.topic_partition
        self.fetch_offset = self.next_fetch_offset = fetched.offset
        self.leader_epoch = -1
        self.bytes_read = 0
        self.records_read = 0  # batches, which `max_poll_records` limits
        self._data = fetched.records
        self._options = options
        self._aborted_transactions = fetched.aborted
        self._metrics = metrics
        self._is_drained = False
        self._error: KafkaFormatError | None = None
        run = self._sound_run()
        if run is None and self._error is None and len(self._data):
            self._error = CorruptRecordError(
                f"batch not whole: {len(self._data)} bytes of it were fetched. Its length is damaged, or it is larger "
                "than the most that is fetched of a partition (max_partition_fetch_bytes)",
                position=0,
            )
        if run is None and self._error is not None:
            raise self.error_of(self._error)
        try:
            self._runs = deque(self._wanted_runs(run) if run is not None else ())
        except KafkaFormatError as error:  # the first batch must be trimmed and cannot be opened
            raise self.error_of(error) from None
        self._end = self._state_after(run)

    def __bool__(self) -> bool:
        return not self._is_drained

    @property
    def bytes_left(self) -> int:
        """The number of fetched bytes that were not returned yet."""
        return len(self._data) - self.bytes_read

    def drain(self) -> None:
        """Drop the batches that are left."""
        if not self._is_drained:
            self._is_drained = True
            self._runs.clear()
            if self._metrics is not None:
                self._metrics.record(self.topic_partition, self.bytes_read, self.records_read)

    def take(self, n: int) -> list[BatchRun]:
        """Return the next `n` batches or fewer, in runs without gaps.

        Raises CorruptFetchedBatchError if the next batch is damaged.
        """
        taken: list[BatchRun] = []
        before = self.next_fetch_offset
        room = n
        while self._runs and room:
            run = self._runs.popleft()
            if len(run) > room:
                self._runs.appendleft(slice_run(run, room, len(run)))
                run = slice_run(run, 0, room)
            room -= len(run)
            self.records_read += len(run)
            self.bytes_read += run.end_position - int(run.index["position"][0])
            taken.append(run)
        self.next_fetch_offset, self.leader_epoch = self._state_after(taken[-1]) if self._runs else self._end
        if self._runs or (self._error is not None and self.next_fetch_offset > before):
            return taken
        self.drain()
        if self._error is not None:
            raise self.error_of(self._error)
        return taken

    def _sound_run(self) -> BatchRun | None:
        """Return the batches before the first damage, or None if there are none. The damage becomes `_error`."""
        run, damage = None, None
        try:
            for whole in MemoryRecords(self._data).runs(run_bytes=max(len(self._data), 1)):
                run = whole
        except KafkaFormatError as error:
            self._error = error
        if run is not None and self._options.check_crcs:
            run, damage = sound_part(run)
        self._error = damage or self._error
        return run or None

    def _state_after(self, run: BatchRun | None) -> tuple[int, int]:
        """Return the next offset after a run, and the leader epoch of its last batch."""
        if run is None:
            return self.fetch_offset, -1
        row = run.index[-1]
        return max(int(row["last_offset"]) + 1, self.fetch_offset), int(row["partition_leader_epoch"])

    def _wanted_runs(self, run: BatchRun) -> Iterator[BatchRun]:
        rows = run.index
        wanted = rows["last_offset"] >= self.fetch_offset
        if not self._options.keeps_control_batches:
            wanted &= ~rows["is_control"]
        if self._aborted_transactions:
            wanted &= ~of_aborted_transactions(rows, self._aborted_transactions)
        if wanted.all():  # the common case, without the cost of the general one
            ranges = [[0, len(rows)]]
        else:
            edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
            ranges = edges.reshape(-1, 2).tolist()
        for first, stop in ranges:
            if self._options.trims_first_batch and RecordBatch(run, first).base_offset < self.fetch_offset:
                yield trimmed_run(run, first, self.fetch_offset)
                first += 1
            if first < stop:
                yield slice_run(run, first, stop)

    def error_of(self, error: KafkaFormatError, offset: int | None = None) -> CorruptFetchedBatchError:
        """Return the error that the caller gets for a damaged batch. offset: the position, by default after `take`."""
        offset = self.next_fetch_offset if offset is None else offset
        partition = TopicPartition(*self.topic_partition)
        return CorruptFetchedBatchError(error, partition, offset, self._next_offset(error, offset))

    def _next_offset(self, error: KafkaFormatError, position: int) -> int | None:
        """Return the offset of the next sound batch, or the one after the damaged batch if its header is consistent."""
        records = MemoryRecords(self._data)
        after = records.position_after(error)
        if after < records.end_position:
            offset = base_offset_of(next(records.runs(after)))
        elif error.position is not None and error.last_offset is not None:
            row = _row_at(records, error.position)
            offset = int(row["base_offset"]) + int(row["count"])
            if offset != row["last_offset"] + 1:
                return None
        else:
            return None
        return offset if offset > position else None


def _row_at(records: MemoryRecords, position: int) -> np.void:
    row: np.void = next(records.runs(position)).index[0]
    return row
