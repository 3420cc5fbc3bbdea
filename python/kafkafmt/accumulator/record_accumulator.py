"""Queues of batches, one a partition: records come in at one end, a sender drains the other (`SenderSide`).

Records are appended from any thread. That is what this half is fast at: one look at the partition's open batch, one
native call that fits the record in, one small native object for its future.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.accumulator.errors import AccumulatorClosedError, BufferExhaustedError
from kafkafmt.accumulator.future import RecordFuture, RecordsFuture, RecordSpan
from kafkafmt.accumulator.options import AccumulatorOptions
from kafkafmt.accumulator.raw_batches import PassedBatches, RequestLimits
from kafkafmt.accumulator.sender_side import SenderSide
from kafkafmt.builder import DEFAULT_CAPACITY, MAX_CAPACITY, RecordBatchBuilder
from kafkafmt.column_rows import column_rows
from kafkafmt.estimator import CompressionRatioEstimator
from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.memory.errors import MemoryBudgetError
from kafkafmt.types import milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.reservations import Reservation
    from _kafkafmt.scan import BatchRun
    from kafkafmt.accumulator.sequences import Sequences
    from kafkafmt.column_rows import Binary, Headers, Timestamps
    from kafkafmt.estimator import RatioEstimator
    from kafkafmt.types import TopicPartition


_NAME = "accumulator"


class RecordAccumulator(SenderSide):
    """Batches under one budget in bytes, in the order of their records (Kafka's RecordAccumulator, KIP-126).

    budget: what `buffer_memory` is a part of, where several share one; batches wait for both, and are sent without
    lingering while anybody else waits for what they hold.

    max_message_bytes: the largest batch that a topic takes (its `max.message.bytes`), None where that is not
    known. What comes out larger is split before it is sent, which KIP-126 calls the ideal solution ("Rejected
    Alternatives"). held_until_ms: until when a topic's batches are kept back, as while its limit is being asked
    for; 0: not held. sequences: of an idempotent producer. wakeup: has the sender look what is `ready`, where
    `append` does not return that: when anybody begins to wait for memory, and where `abort_on_new_batch` leaves
    a full batch behind; called in the caller's thread.

    Unlike Kafka's: memory is reserved as batches grow, not `batch_size` at once; no batch is meant to be larger
    than its topic takes; batches that come back go to where their records belong; of batches that were less
    than half full the estimator learns nothing, since the few records of one that lingered compress badly; and one
    that is split before it is sent does not reset the estimate, which has just learned from it.

    Records may be appended, waited for and closed from any thread; all that a sender does is called from one.
    """

    # What callers get and catch: a client that has its own derives them from these.
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
        # Who waits for bytes has them where they are delivered, at once rather than after `linger_ms`.
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
        """Append a record; returns its future, and whether there is news for the sender.

        timestamp: milliseconds since the epoch, -1 for none, or an aware datetime.
        headers: keys are str, or bytes that need not be UTF-8.
        Waits up to `max_block_ms` (None: as the options say) for memory. abort_on_new_batch: return None where
        the record would begin a batch, so that a sticky partitioner may choose again (KIP-480).

        Raises BufferExhaustedError, AccumulatorClosedError, RecordTooLargeError where the record is larger than
        the whole budget, and what `RecordBatchBuilder.append` raises.
        """
        if type(timestamp) is not int:
            timestamp = milliseconds(timestamp)
        if headers and not hasattr(headers, "__len__"):
            raise TypeError("headers: expected a sequence, found an iterator, which would be used up")
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
                    if batch is not None:  # which has just become full
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
                new.reservation.release()  # another thread began a batch meanwhile, or the record was refused

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
        """Append a record for each entry of the columns, which are those of `RecordBatchBuilder.append_columns`.

        They make batches of their own, built and compressed here, in the caller's thread, with no Python object a
        record; none waits for more records. Each waits up to `max_block_ms` for memory once it is built. Raises as
        `append` does; whatever it raises then has the future of the records that were taken, as `appended`.
        """
        parts = column_rows(timestamps, keys, values, headers)
        spans: list[RecordSpan] = []
        try:
            for rows in parts:
                first = 0
                while first < len(rows):
                    builder = self._begin_builder(topic_partition.topic)
                    first = builder._fill(rows, first, len(rows))
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
        """Append v2 batches as they are, but for what an earlier log or producer says in their headers (KIP-712).

        As many go out in one request as `request_limits` has it. What is appended is a copy, with no Python object a
        record, nor a batch where a request takes many. CRCs are the caller's to check. Raises as `append_columns`
        does, and ValueError for batches below v2.
        """
        spans: list[RecordSpan] = []
        try:
            keeps_state = self._sequences is not None  # until its own is written over it
            for piece in request_limits.pieces(run, keeps_producer_state=keeps_state):
                batches = PassedBatches(topic_partition, piece, request_limits, created_ms=now_ms)
                spans.append(self._append_batches(batches, max_block_ms))
        except Exception as error:
            error.appended = RecordsFuture(spans)  # type: ignore[attr-defined]
            raise
        return RecordsFuture(spans)

    def _append_batches(self, batches: PassedBatches, max_block_ms: float | None) -> RecordSpan:
        """Put them behind those that wait for the same request, or into a request of their own."""
        self._reserve(batches, batches.size_in_bytes, max_block_ms)
        try:
            with self._lock:
                last = self._queues.last(batches.topic_partition)
                first = last.record_count if last is not None else 0
                if isinstance(last, PassedBatches) and last.absorb(batches):
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
        """Queue a new batch, unless the accumulator is closed. The lock is held."""
        if self._closed:
            raise self._error_when_closed()
        self._queues.enqueue(batch)

    def _error_when_closed(self) -> AccumulatorClosedError:
        return self.closed_error("the accumulator is closed and takes no more records")

    def _makes_room(self, batch: ProducerBatch, builder: RecordBatchBuilder, missing: int) -> bool:
        """Let an open batch hold twice as much, or `missing` bytes more, where the budget has that now.

        Else, and where no bytes are missing but it is full, it takes no more records. The lock is held.
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
                f"{wait_ms:.0f} ms: {self._queues.incomplete_count} batches that are not delivered yet hold "
                f"{self.budget.held_bytes} of {self.budget.total_bytes} bytes (buffer_memory)"
            ) from error
        batch.begin(batch.created_ms + (time.monotonic() - began) * 1000)
        return reservation
