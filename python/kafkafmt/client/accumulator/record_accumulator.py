"""The half of the accumulator that appends records to the batches of each partition. A sender drains the other half.

Any thread may append. An append is fast: one look-up of the partition's open batch, one native call that encodes the
record, and one small native object as its future.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kafkafmt.build.builder import DEFAULT_CAPACITY, MAX_CAPACITY, RecordBatchBuilder
from kafkafmt.build.estimator import CompressionRatioEstimator
from kafkafmt.client.accumulator.batch import ProducerBatch
from kafkafmt.client.accumulator.errors import AccumulatorClosedError, BufferExhaustedError
from kafkafmt.client.accumulator.future import RecordFuture, RecordsFuture, RecordSpan
from kafkafmt.client.accumulator.options import AccumulatorOptions
from kafkafmt.client.accumulator.raw_batches import RawBatches, RequestLimits
from kafkafmt.client.accumulator.sender_side import SenderSide
from kafkafmt.columns.write import column_rows
from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.memory.errors import MemoryBudgetError
from kafkafmt.types import milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.build.estimator import RatioEstimator
    from kafkafmt.client.accumulator.sequences import Sequences
    from kafkafmt.columns.write import Binary, Headers, Timestamps
    from kafkafmt.types import TopicPartition


_NAME = "accumulator"


class RecordAccumulator(SenderSide):
    """Batches that share one budget in bytes, in the order of their records (Kafka's RecordAccumulator, KIP-126).

    options: None for the defaults.
    budget: a budget that several accumulators share; `buffer_memory` is then this one's maximum of it. Callers wait
        for room in both. While any caller waits, batches are sent without lingering.
    estimator: the estimate of compression ratios by topic; None for a new CompressionRatioEstimator.
    max_message_bytes: returns the largest batch in bytes that a topic takes (its `max.message.bytes`), or None if
        that is not known. A larger batch is split before it is sent, which KIP-126 calls the ideal solution
        ("Rejected Alternatives").
    held_until_ms: returns the time, on the caller's clock, until which the batches of a topic are held back, for
        example while its limit is requested; 0 if they are not.
    sequences: the sequence numbers of an idempotent producer; None for any other producer.
    wakeup: makes the sender check what is `ready`, when the result of `append` does not say so: a caller begins to wait
        for memory, or `abort_on_new_batch` has found a full batch. Called in the caller's thread.

    It differs from Kafka's:

    - Memory is reserved as batches grow, not `batch_size` at once.
    - Batches are limited to what their topic takes.
    - Batches that are retried or split return to their place in the order of records.
    - The estimator learns nothing from batches that are less than half full, because few records compress badly.
    - A split before sending does not reset the estimate, which has just learned from the batch.

    Any thread may append, wait and close. Only one thread may call the sender's methods.
    """

    # A client may replace these types by its own subclasses.
    future_type: type[RecordFuture] = RecordFuture
    closed_error: type[AccumulatorClosedError] = AccumulatorClosedError
    buffer_exhausted_error: type[BufferExhaustedError] = BufferExhaustedError

    def __init__(
        self,
        options: AccumulatorOptions | None = None,
        *,
        budget: MemoryBudget | None = None,
        estimator: RatioEstimator | None = None,
        max_message_bytes: Callable[[str], int | None] = lambda topic: None,
        held_until_ms: Callable[[str], float] = lambda topic: 0,
        sequences: Sequences | None = None,
        wakeup: Callable[[], None] = lambda: None,
    ) -> None:
        options = options or AccumulatorOptions()
        size = int(options.buffer_memory)
        super().__init__(
            options,
            budget=MemoryBudget(size, _NAME) if budget is None else budget.child(_NAME, size),
            estimator=estimator or CompressionRatioEstimator(),
            max_message_bytes=max_message_bytes,
            held_until_ms=held_until_ms,
            sequences=sequences,
        )
        self._wakeup = wakeup
        # Waiting callers get bytes once batches are delivered: the sender must not wait for `linger_ms`.
        self.budget.on_pressure(lambda wanted: wakeup())
        self._open = self._queues.open

    def append(
        self,
        topic_partition: TopicPartition,
        timestamp: int | datetime,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[str | bytes, bytes | None]] = (),
        *,
        now_ms: float,
        max_block_ms: float | None = None,
        abort_on_new_batch: bool = False,
    ) -> tuple[RecordFuture, bool] | None:
        """Append a record. Return its future, and whether to wake the sender: a batch became full, or was begun.

        timestamp: milliseconds since the epoch, -1 for none, or an aware datetime.
        headers: keys are str, or bytes that need not be UTF-8.
        max_block_ms: how long to wait for memory; None for the option's value.
        abort_on_new_batch: return None if the record would begin a batch, so that a sticky partitioner may choose
            again (KIP-480).

        Raises BufferExhaustedError if there is no memory in time, AccumulatorClosedError after `close`,
        RecordTooLargeError if the record is larger than the whole budget, and as `RecordBatchBuilder.append`.
        """
        if type(timestamp) is not int:
            timestamp = milliseconds(timestamp)
        if headers and not hasattr(headers, "__len__"):
            raise TypeError("headers: expected a sequence, found an iterator, which can be read only once")
        new: ProducerBatch | None = None
        try:
            while True:
                with self._lock:
                    batch = self._open.get(topic_partition)
                    if batch is not None:
                        builder = batch.builder
                        assert builder is not None
                        count = builder.try_append(timestamp, key, value, headers)
                        if not count and self._makes_room(batch, builder, builder.missing_bytes):
                            count = builder.try_append(timestamp, key, value, headers)
                        if count:
                            future = self.future_type(batch, count - 1, timestamp, key, value)
                            return future, builder.is_full
                    if new is not None:
                        self._enqueue(new)
                        begun, new = new, None
                        return self.future_type(begun, 0, timestamp, key, value), True
                if abort_on_new_batch:
                    if batch is not None:  # it is full
                        self._wakeup()
                    return None
                builder = self._begin_builder(topic_partition.topic)
                if not builder.try_append(timestamp, key, value, headers):
                    builder.grow(builder.capacity + builder.missing_bytes)
                    builder.try_append(timestamp, key, value, headers)
                new = ProducerBatch(topic_partition, builder, created_ms=now_ms)
                self._reserve(new, builder.capacity, max_block_ms)
        finally:
            if new is not None and new.reservation is not None:
                new.reservation.release()  # another thread has begun a batch, or the record is not valid

    def append_columns(
        self,
        topic_partition: TopicPartition,
        timestamps: Timestamps,
        keys: Binary,
        values: Binary,
        headers: Headers = None,
        *,
        now_ms: float,
        max_block_ms: float | None = None,
    ) -> RecordsFuture:
        """Append one record per row of columns, which are those of `RecordBatchBuilder.append_columns`.

        The records go into batches of their own, without a Python object per record. The caller's thread builds and
        compresses them. They do not linger. Each batch waits up to `max_block_ms` for memory once it is built.

        Raises as `append` does. The error has the future of the records that were appended before, as `appended`.
        """
        parts = column_rows(timestamps, keys, values, headers)
        spans: list[RecordSpan] = []
        try:
            for rows in parts:
                first = 0
                while first < len(rows):
                    builder = self._begin_builder(topic_partition.topic)
                    first = builder.fill(rows, first, len(rows))
                    batch = ProducerBatch(topic_partition, builder, created_ms=now_ms)
                    self._append_whole(batch, max_block_ms)
                    spans.append(RecordSpan(batch, 0, batch.record_count))
        except Exception as error:
            error.appended = RecordsFuture(spans)  # type: ignore[attr-defined]
            raise
        return RecordsFuture(spans)

    def append_batches(
        self,
        topic_partition: TopicPartition,
        run: BatchRun,
        *,
        request_limits: RequestLimits,
        now_ms: float,
        max_block_ms: float | None = None,
    ) -> RecordsFuture:
        """Append whole v2 batches (KIP-712), with offsets, leader epoch, delete horizon and producer state reset.

        The batches are copied, without a Python object per record, and without one per batch if a request takes many.
        CRCs are not checked.

        request_limits: how many batches, and how many bytes of them, one request takes.

        Raises as `append_columns` does, and ValueError for batches of format v0 or v1.
        """
        spans: list[RecordSpan] = []
        try:
            keeps_state = self._sequences is not None  # it is overwritten when the batch is drained
            for passed in request_limits.runs(run, keeps_producer_state=keeps_state):
                batches = RawBatches(topic_partition, passed, request_limits, created_ms=now_ms)
                spans.append(self._append_batches(batches, max_block_ms))
        except Exception as error:
            error.appended = RecordsFuture(spans)  # type: ignore[attr-defined]
            raise
        return RecordsFuture(spans)

    def _append_batches(self, batches: RawBatches, max_block_ms: float | None) -> RecordSpan:
        """Append batches to the last waiting request of their partition, or begin a new request."""
        self._reserve(batches, batches.size_in_bytes, max_block_ms)
        try:
            with self._lock:
                last = self._queues.last(batches.topic_partition)
                first = last.record_count if last is not None else 0
                if isinstance(last, RawBatches) and last.absorb(batches):
                    return RecordSpan(last, first, batches.record_count)
                self._enqueue(batches)
                return RecordSpan(batches, 0, batches.record_count)
        except BaseException:
            self._queues.forget(batches)
            raise

    def _append_whole(self, batch: ProducerBatch, max_block_ms: float | None) -> None:
        self._close_batch(batch)
        self._reserve(batch, batch.size_in_bytes, max_block_ms)
        try:
            with self._lock:
                self._enqueue(batch)
        except BaseException:
            self._queues.forget(batch)
            raise

    def _enqueue(self, batch: ProducerBatch) -> None:
        """Queue a new batch. Raises AccumulatorClosedError if the accumulator is closed. The lock is held."""
        if self._closed:
            raise self._error_when_closed()
        self._queues.enqueue(batch)

    def _error_when_closed(self) -> AccumulatorClosedError:
        return self.closed_error("the accumulator is closed and takes no more records")

    def _makes_room(self, batch: ProducerBatch, builder: RecordBatchBuilder, missing: int) -> bool:
        """Double the capacity of an open batch, or add `missing` bytes, if the budget has them now.

        Returns False, and closes the batch for appends, if the budget has no room or `missing` is 0, which means that
        the batch is full. The lock is held.
        """
        assert batch.reservation is not None
        double = min(max(missing, builder.capacity), MAX_CAPACITY - builder.capacity)
        for more in (double, missing):
            if missing > 0 and batch.reservation.try_resize(batch.reserved_bytes + more):
                builder.grow(builder.capacity + more)
                return True
        self._queues.end_appends(batch.topic_partition)
        return False

    def _begin_builder(self, topic: str) -> RecordBatchBuilder:
        options = self.options
        limits = (options.batch_size, self._max_message_bytes(topic), self.budget.total_bytes)
        return RecordBatchBuilder(
            codec=options.codec,
            level=options.level,
            batch_size=min(limit for limit in limits if limit is not None),
            estimated_ratio=self.estimator.estimate(topic, options.codec),
            contingency_factor=self.estimator.contingency_factor,
            capacity=min(DEFAULT_CAPACITY, *(limit for limit in limits if limit is not None)),
        )

    def _reserve(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        if size > self.budget.total_bytes:
            raise self.record_too_large_error(
                f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes: expected at most "
                f"{self.budget.total_bytes} (buffer_memory)"
            )
        batch.reservation = self.budget.try_reserve(size) or self._wait_for(batch, size, max_block_ms)

    def _wait_for(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> Reservation:
        wait_ms = self.options.max_block_ms if max_block_ms is None else max_block_ms
        began = time.monotonic()
        try:
            reservation = self.budget.reserve(size, wait_ms / 1000)
        except MemoryBudgetError as error:
            if self._closed:
                raise self._error_when_closed() from None
            raise self.buffer_exhausted_error(
                f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes: no room after "
                f"{wait_ms:.0f} ms: {self._queues.incomplete_count} batches that are not delivered hold "
                f"{self.budget.held_bytes} of {self.budget.total_bytes} bytes (buffer_memory)"
            ) from error
        batch.begin(batch.created_ms + (time.monotonic() - began) * 1000)
        return reservation
