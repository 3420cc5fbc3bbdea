"""kafka-python's Fetcher, whose fetched records stay what the broker sent: runs of whole batches (KIP-712).

Connections, sessions, positions and their validation are kafka-python's. It makes a `PartitionRecords` of each
partition in a response and takes from it what `poll` returns; here that is one scan of the headers and of the CRCs,
and masks over their index. No other file knows the names that are the fetcher's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka.errors as kafka_errors
import numpy as np
from kafka.consumer.fetcher import CompletedFetch, Fetcher
from kafka.protocol.consumer import IsolationLevel

from kafkafmt.batch import RecordBatch
from kafkafmt.errors import CorruptRecordError as CorruptBatchError
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import part_of_run
from kafkafmt.log.reading import aborted, trimmed_run
from kafkafmt.net.errors import CorruptRecordError
from kafkafmt.records import MemoryRecords
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import kafka.record
    from kafka.structs import TopicPartition as KafkaTopicPartition
    from typing_extensions import Self

    from _kafkafmt.scan import BatchRun


_OFFSET_OUT_OF_RANGE = kafka_errors.OffsetOutOfRangeError.errno
# Only a consumer that never asks for its resets has more of them waiting.
_MOST_RESETS = 100_000


class FetchOptions(NamedTuple):
    """What a RawConsumer is told of its batches; see there."""

    check_crcs: bool
    keeps_control_batches: bool
    trims_first_batch: bool


class OffsetReset(NamedTuple):
    """A position that a broker refused, and the one that the consumer's reset policy put in its place.

    from_offset: None if a broker did not refuse the position as out of range.
    """

    topic_partition: KafkaTopicPartition
    from_offset: int | None
    to_offset: int


class RawFetcher(Fetcher):  # type: ignore[misc]
    """A Fetcher whose `fetch_records` returns lists of BatchRun, and counts batches where it bounds records."""

    _options: FetchOptions
    _out_of_range: dict[KafkaTopicPartition, int]
    _resets: deque[OffsetReset]

    @classmethod
    def like(cls, made: Fetcher, options: FetchOptions) -> Self:
        """One in the place of a fetcher that was not used yet, with its metrics."""
        fetcher = cls(made._client, made._subscriptions, **{**made.config, "metrics": None})
        fetcher._sensors = made._sensors
        fetcher._options = options
        fetcher._out_of_range = {}
        fetcher._resets = deque(maxlen=_MOST_RESETS)
        return fetcher

    def take_offset_resets(self) -> Iterator[OffsetReset]:
        """Yield each reset of a position once. Safe to call while more come."""
        while self._resets:
            yield self._resets.popleft()

    @property
    def fetched_bytes(self) -> int:
        """Batches that were fetched and not handed out yet; safe to ask for while more come."""
        waiting = [*self._completed_fetches.copy(), *self._paused_completed_fetches.values()]
        parsed: list[PartitionBatches | None]
        parsed = [self._next_partition_records, *self._paused_partition_records.values()]
        sizes = [len(fetch.partition_data.records or b"") for fetch in waiting]
        return sum(sizes) + sum(part.bytes_left for part in parsed if part)

    def _append(
        self,
        drained: dict[Any, list[BatchRun]],
        part: PartitionBatches,
        max_records: int,
        update_offsets: bool,
    ) -> int:
        before = part.records_read
        super()._append(drained, part, max_records, update_offsets)
        return part.records_read - before

    def _parse_fetched_data(self, completed_fetch: CompletedFetch) -> PartitionBatches | None:
        try:
            batches: PartitionBatches | None = super()._parse_fetched_data(completed_fetch)
        except kafka_errors.CorruptRecordError as error:
            if isinstance(error, CorruptRecordError):
                raise
            told = CorruptBatchError("found damaged by its broker (CORRUPT_MESSAGE)")
            partition = TopicPartition(*completed_fetch.topic_partition)
            raise CorruptRecordError(told, partition, completed_fetch.fetched_offset, None) from None
        is_out_of_range = completed_fetch.partition_data.error_code == _OFFSET_OUT_OF_RANGE
        if is_out_of_range and self._subscriptions.is_offset_reset_needed(completed_fetch.topic_partition):
            self._out_of_range[completed_fetch.topic_partition] = completed_fetch.fetched_offset
        return batches

    def _reset_offset_if_needed(
        self, partition: KafkaTopicPartition, timestamp: int | None, offset: int
    ) -> None:
        is_wanted = self._subscriptions.is_assigned(partition) and self._subscriptions.is_offset_reset_needed(
            partition
        )
        from_offset = self._out_of_range.pop(partition, None)
        super()._reset_offset_if_needed(partition, timestamp, offset)
        if is_wanted and not self._subscriptions.is_offset_reset_needed(partition):
            self._resets.append(OffsetReset(partition, from_offset, offset))

    def PartitionRecords(  # noqa: N802 - a class there
        self,
        fetch_offset: int,
        topic_partition: KafkaTopicPartition,
        records: kafka.record.MemoryRecords,
        *,
        isolation_level: IsolationLevel,
        aborted_transactions: Iterable[Any] | None,
        metric_aggregator: Any,
        on_drain: Callable[[Any], None],
        **_configured: Any,
    ) -> PartitionBatches:
        is_committed = isolation_level == IsolationLevel.READ_COMMITTED
        return PartitionBatches(
            fetch_offset,
            topic_partition,
            memoryview(records._buffer),
            self._options,
            aborted_transactions=(aborted_transactions or ()) if is_committed else (),
            metric_aggregator=metric_aggregator,
            on_drain=on_drain,
        )


class PartitionBatches:
    """The batches of one partition in a fetch response, in the place of kafka-python's PartitionRecords.

    A batch that begins below the offset that was asked for is trimmed; those wholly below it are left out, and so are
    control batches, and those of `aborted_transactions`. Where there is damage, what lies in front of it is handed out
    first. Positions in errors are those in the fetched bytes.
    """

    def __init__(
        self,
        fetch_offset: int,
        topic_partition: KafkaTopicPartition,
        data: memoryview,
        options: FetchOptions,
        *,
        aborted_transactions: Iterable[Any],
        metric_aggregator: Any,
        on_drain: Callable[[Any], None],
    ) -> None:
        self.topic_partition = topic_partition
        self.fetch_offset = self.next_fetch_offset = fetch_offset
        self.leader_epoch = -1
        self.bytes_read = 0
        self.records_read = 0  # batches: what `max_poll_records` bounds
        self._data = data
        self._options = options
        self._aborted_transactions = aborted_transactions
        self._metric_aggregator = metric_aggregator
        self._on_drain = on_drain
        self._is_drained = False
        self._error: KafkaFormatError | None = None
        run = self._sound_run()
        if run is None and self._error is None and len(data):
            self._error = CorruptBatchError(
                f"batch not whole: {len(data)} bytes of it were fetched. Its length is damaged, or it is larger than "
                "what is fetched of a partition (max_partition_fetch_bytes)",
                position=0,
            )
        # Kafka-python refuses a fetch without a whole batch in it once this is made, without a word on where to go on.
        if run is None and self._error is not None:
            raise self._described(self._error)
        try:
            self._runs = deque(self._wanted_runs(run) if run is not None else ())
        except KafkaFormatError as error:  # the first batch cannot be opened to be trimmed
            raise self._described(error) from None
        self._end = self._state_behind(run)

    def __bool__(self) -> bool:
        return not self._is_drained

    @property
    def bytes_left(self) -> int:
        """Of what was fetched, but for what was handed out."""
        return len(self._data) - self.bytes_read

    def drain(self) -> None:
        """Hand out nothing more."""
        if not self._is_drained:
            self._is_drained = True
            self._runs.clear()
            if self._metric_aggregator:
                self._metric_aggregator.record(self.topic_partition, self.bytes_read, self.records_read)
            self._on_drain(self)

    def take(self, n: int) -> list[BatchRun]:
        """The next `n` batches or fewer, in runs without gaps. Raises CorruptRecordError where damage comes next."""
        taken: list[BatchRun] = []
        before = self.next_fetch_offset
        room = n
        while self._runs and room:
            run = self._runs.popleft()
            if len(run) > room:
                self._runs.appendleft(part_of_run(run, room, len(run)))
                run = part_of_run(run, 0, room)
            room -= len(run)
            self.records_read += len(run)
            self.bytes_read += run.end_position - int(run.index["position"][0])
            taken.append(run)
        self.next_fetch_offset, self.leader_epoch = self._state_behind(taken[-1]) if self._runs else self._end
        if self._runs or (self._error is not None and self.next_fetch_offset > before):
            return taken
        self.drain()
        if self._error is not None:
            raise self._described(self._error)
        return taken

    def _sound_run(self) -> BatchRun | None:
        """The batches in front of damage, which becomes the error that comes behind them; None without any."""
        run = None
        try:
            for run in MemoryRecords(self._data).runs(run_bytes=max(len(self._data), 1)):
                if self._options.check_crcs:
                    run.ensure_valid()
        except KafkaFormatError as error:
            self._error = error
        if run is None or self._error is None:
            return run
        assert self._error.position is not None
        sound = int(run.index["position"].searchsorted(self._error.position))
        return part_of_run(run, 0, sound) if sound else None

    def _state_behind(self, run: BatchRun | None) -> tuple[int, int]:
        """The position behind a run: offset and leader epoch."""
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
            wanted &= ~aborted(rows, self._aborted_transactions)
        edges = np.flatnonzero(np.diff(wanted, prepend=False, append=False))
        for first, stop in edges.reshape(-1, 2).tolist():
            if self._options.trims_first_batch and RecordBatch(run, first).base_offset < self.fetch_offset:
                yield trimmed_run(run, first, self.fetch_offset)
                first += 1
            if first < stop:
                yield part_of_run(run, first, stop)

    def _described(self, error: KafkaFormatError) -> CorruptRecordError:
        partition = TopicPartition(*self.topic_partition)
        return CorruptRecordError(error, partition, self.next_fetch_offset, self._next_offset(error))

    def _next_offset(self, error: KafkaFormatError) -> int | None:
        """Where to go on: at the next sound batch, or where the damaged header says if it agrees with itself."""
        records = MemoryRecords(self._data)
        after = records.position_after(error)
        if after < records.end_position:
            offset = int(_row_at(records, after)["base_offset"])
        elif error.position is not None and error.last_offset is not None:
            row = _row_at(records, error.position)
            offset = int(row["base_offset"]) + int(row["count"])
            if offset != row["last_offset"] + 1:
                return None
        else:
            return None
        return offset if offset > self.next_fetch_offset else None


def _row_at(records: MemoryRecords, position: int) -> np.void:
    row: np.void = next(records.runs(position)).index[0]
    return row
