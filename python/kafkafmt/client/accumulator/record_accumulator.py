"""The half of the accumulator that appends records to the batches of each partition. A sender drains the other half.

Any thread may append. Most appends are one native call: a look-up of the partition's open batch, the encoding of the
record, and one small native object as its future. The code here is for the others: it begins batches, makes room, and
closes full batches in the caller's thread.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from _kafkafmt.client.appending import RecordAppender
from kafkafmt.build.builder import DEFAULT_CAPACITY, MAX_CAPACITY, RecordBatchBuilder, empty_copy
from kafkafmt.build.estimator import as_estimator
from kafkafmt.client.accumulator.batch import ProducerBatch
from kafkafmt.client.accumulator.errors import AccumulatorClosedError, BufferExhaustedError
from kafkafmt.client.accumulator.future import RecordFuture, RecordsFuture, RecordSpan
from kafkafmt.client.accumulator.options import AccumulatorOptions
from kafkafmt.client.accumulator.raw_batches import RawBatches, RequestLimits
from kafkafmt.client.accumulator.sender_side import SenderSide
from kafkafmt.columns.write import column_rows
from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.memory.errors import MemoryBudgetError
from kafkafmt.types import TopicPartition, check_int, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.build.estimator import RatioEstimator
    from kafkafmt.client.accumulator.queues import BatchQueues
    from kafkafmt.client.accumulator.sequences import Sequences, Transaction
    from kafkafmt.columns.write import Binary, Headers, Timestamps

log = logging.getLogger(__name__)

_NAME = "accumulator"


class RecordAccumulator(RecordAppender["RecordFuture"], SenderSide):
    """Batches that share one budget in bytes, in the order of their records (Kafka's RecordAccumulator, KIP-126).

    options: None for the defaults.
    budget: a budget that several accumulators share; `buffer_memory` is then this one's maximum of it. Callers wait
        for room in both. While any caller waits, batches are sent without lingering.
    estimator: estimates compression ratios by topic; an object, or the name of one: `recent` or `kip126`.
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
        estimator: RatioEstimator | str = "recent",
        max_message_bytes: Callable[[str], int | None] = lambda topic: None,
        held_until_ms: Callable[[str], float] = lambda topic: 0,
        sequences: Sequences | None = None,
        wakeup: Callable[[], None] = lambda: None,
    ) -> None:
        if not isinstance(options, AccumulatorOptions | None):
            raise TypeError(f"options: expected AccumulatorOptions, found {options!r}")
        if not isinstance(budget, MemoryBudget | None):
            raise TypeError(f"budget: expected a MemoryBudget, found {budget!r}")
        options = options or AccumulatorOptions()
        size = options.buffer_memory
        super().__init__(
            options,
            budget=MemoryBudget(size, _NAME) if budget is None else budget.child(_NAME, size),
            estimator=as_estimator(estimator),
            max_message_bytes=max_message_bytes,
            held_until_ms=held_until_ms,
            sequences=sequences,
        )
        if budget is not None:
            weakref.finalize(self, _release, self.budget, self._queues).atexit = False
        self._wakeup = wakeup
        # Waiting callers get bytes once batches are delivered: the sender must not wait for `linger_ms`.
        self.budget.on_pressure(lambda wanted: wakeup())
        self._open = self._queues.open
        self._begin_appending(self._open, self.future_type)
        self._template = RecordBatchBuilder(codec=options.codec, level=options.level, capacity=0)

    append = RecordAppender.append

    def _append(
        self,
        topic_partition: TopicPartition,
        timestamp: int | datetime,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[str | bytes, bytes | None]],
        now_ms: float,
        max_block_ms: float | None,
        abort_on_new_batch: bool,
        transaction: Transaction | None = None,
    ) -> tuple[RecordFuture, bool] | None:
        """Append a record that the native `append` does not take: it needs memory, or is not of the usual types."""
        if type(topic_partition) is not TopicPartition:
            topic_partition = _as_partition(topic_partition)
        if type(timestamp) is not int:
            timestamp = milliseconds(timestamp)
        if headers and not hasattr(headers, "__len__"):
            raise TypeError(f"headers: expected a sequence of pairs, found {headers!r}")
        new: ProducerBatch | None = None
        ended: list[ProducerBatch] = []
        is_news = False
        try:
            while True:
                future = None
                with self._queues.lock:
                    _ensure_open(transaction)
                    batch = self._open.get(topic_partition)
                    if batch is not None:
                        count = self._append_to(batch, timestamp, key, value, headers)
                        if count:
                            future = self.future_type(batch, count - 1, timestamp, key, value)
                        if not count or batch.is_full:
                            ended.append(batch)
                            self._end(batch)
                    if future is None and new is not None:
                        self._enqueue(new)
                        future = self.future_type(new, 0, timestamp, key, value)
                        is_news = True
                        if new.is_full:
                            ended.append(new)
                            self._end(new)
                        new = None
                if future is None and not abort_on_new_batch:
                    new = self._begin(topic_partition, timestamp, key, value, headers, now_ms)
                while ended:
                    is_news = True
                    self._close_ended(ended[-1])
                    ended.pop()
                if future is not None:
                    return future, is_news
                if abort_on_new_batch:
                    if is_news:
                        self._wakeup()
                    return None
                assert new is not None
                self._reserve_memory(new, max_block_ms)
        except BaseException:
            for batch in ended:
                batch.is_closing = False
            if is_news or ended:
                self._wakeup()
            raise
        finally:
            # Another thread has begun a batch, the record is not valid, or a signal handler has raised an error.
            if new is not None and not self._queues.withdraw(new, 1):
                self._wakeup()

    def _append_to(
        self,
        batch: ProducerBatch,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[str | bytes, bytes | None]],
    ) -> int:
        """Append a record to an open batch. Return the number of records; 0 if there is no room. The lock is held."""
        builder = batch.builder
        if builder is None:  # its future's batch was completed while it was open
            return 0
        count = builder.try_append(timestamp, key, value, headers)
        missing = 0 if count else builder.missing_bytes
        if missing and self._makes_room(batch, builder, missing):
            count = builder.try_append(timestamp, key, value, headers)
        return count

    def _end(self, batch: ProducerBatch) -> None:
        """Close an open batch for appends. The caller must then call `_close_ended`. The lock is held."""
        self._queues.end_appends(batch.topic_partition)
        batch.is_closing = True

    def _close_ended(self, batch: ProducerBatch) -> None:
        """Compress a batch after `_end`, in the caller's thread: the sender leaves it alone meanwhile.

        The caller must wake the sender then. If the batch cannot be compressed, the sender tries again, and fails it.
        """
        try:
            batch.is_unobserved = self._compress(batch)
        except Exception:
            log.debug("%r: the sender closes it, as this thread cannot", batch, exc_info=True)
        finally:
            batch.is_closing = False

    def _finish_full(self, batch: ProducerBatch) -> None:
        """Close a batch that the native `append` has filled. Then the sender must be woken.

        An append of a signal handler, during a call that changes the queues, leaves the batch to the sender.
        """
        if self._queues.is_locked_here():
            return
        is_mine = False
        try:
            with self._queues.lock:
                if batch.builder is not None:  # no other thread has ended it
                    is_mine = True
                    self._end(batch)
            if is_mine:
                self._close_ended(batch)
        except BaseException:  # such as KeyboardInterrupt: the sender closes it
            if is_mine:
                batch.is_closing = False
                self._wakeup()
            raise

    def _begin(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[str | bytes, bytes | None]],
        now_ms: float,
    ) -> ProducerBatch:
        """Return a new batch with its first record, whose memory is not reserved yet."""
        topic_partition = _as_partition(topic_partition)
        _check_time(now_ms)
        builder = self._begin_builder(topic_partition.topic, self._queues.capacities.get(topic_partition, 0))
        if not builder.try_append(timestamp, key, value, headers):
            builder.grow(builder.capacity + builder.missing_bytes)
            builder.try_append(timestamp, key, value, headers)
        return ProducerBatch(topic_partition, builder, created_ms=now_ms)

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
        transaction: Transaction | None = None,
    ) -> RecordsFuture:
        """Append one record per row of columns, which are those of `RecordBatchBuilder.append_columns`.

        The records go into batches of their own, without a Python object per record. The caller's thread builds and
        compresses them. They do not linger. Each batch waits up to `max_block_ms` for memory once it is built.

        Raises as `append` does. The error has the future of the records that were appended before, as `appended`.
        """
        topic_partition = _as_partition(topic_partition)
        _check_time(now_ms)
        parts = column_rows(timestamps, keys, values, headers)
        spans: list[RecordSpan] = []
        created_ms = _running_from(now_ms)
        try:
            for rows in parts:
                first = 0
                while first < len(rows):
                    began_ms = created_ms()
                    builder = self._begin_builder(topic_partition.topic)
                    first = builder.fill(rows, first, len(rows))
                    batch = ProducerBatch(topic_partition, builder, created_ms=began_ms)
                    self._append_whole(batch, max_block_ms, transaction)
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
        transaction: Transaction | None = None,
    ) -> RecordsFuture:
        """Append whole v2 batches (KIP-712), with offsets, leader epoch, delete horizon and producer state reset.

        The batches are copied, without a Python object per record, and without one per batch if a request takes many.
        CRCs are not checked.

        request_limits: how many batches, and how many bytes of them, one request takes. A batch that is larger than its
            topic takes is in a request of its own.

        Raises as `append_columns` does, and ValueError for batches of format v0 or v1.
        """
        topic_partition = _as_partition(topic_partition)
        _check_time(now_ms)
        max_message_bytes = self._max_message_bytes(topic_partition.topic)
        if max_message_bytes is not None:
            most = min(request_limits.max_batch_bytes, max_message_bytes)
            request_limits = request_limits._replace(max_batch_bytes=most)
        spans: list[RecordSpan] = []
        created_ms = _running_from(now_ms)
        try:
            keeps_state = self._sequences is not None  # it is overwritten when the batch is drained
            for passed in request_limits.runs(run, keeps_producer_state=keeps_state):
                batches = RawBatches(topic_partition, passed, request_limits, created_ms=created_ms())
                spans.append(self._append_batches(batches, max_block_ms, transaction))
        except Exception as error:
            error.appended = RecordsFuture(spans)  # type: ignore[attr-defined]
            raise
        return RecordsFuture(spans)

    def _append_batches(
        self, batches: RawBatches, max_block_ms: float | None, transaction: Transaction | None
    ) -> RecordSpan:
        """Append batches to the last waiting request of their partition, or begin a new request."""
        self._queues.ensure_unlocked_here()  # with the lock, neither a wait for memory nor its release is possible
        count = batches.record_count
        try:
            self._reserve(batches, batches.size_in_bytes, max_block_ms)
            with self._queues.lock:
                _ensure_open(transaction)
                last = self._queues.last(batches.topic_partition)
                first = last.record_count if last is not None else 0
                if isinstance(last, RawBatches) and last.absorb(batches):
                    return RecordSpan(last, first, count)
                self._enqueue(batches)
                return RecordSpan(batches, 0, count)
        except BaseException:
            self._queues.withdraw(batches, count)
            raise

    def _append_whole(
        self, batch: ProducerBatch, max_block_ms: float | None, transaction: Transaction | None
    ) -> None:
        self._close_batch(batch)
        count = batch.record_count
        try:
            self._reserve(batch, batch.size_in_bytes, max_block_ms)
            with self._queues.lock:
                _ensure_open(transaction)
                self._enqueue(batch)
        except BaseException:
            self._queues.withdraw(batch, count)
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

        Returns False if it has not. The lock is held.
        """
        assert batch.reservation is not None
        double = min(max(missing, builder.capacity), MAX_CAPACITY - builder.capacity)
        for more in (double, missing):
            if batch.reservation.try_resize(batch.reserved_bytes + more):
                builder.grow(builder.capacity + more)
                return True
        return False

    def _begin_builder(self, topic: str, capacity: int = 0) -> RecordBatchBuilder:
        """Return a builder with as much memory, or with `DEFAULT_CAPACITY` if that is more and a batch needs it."""
        options, estimator = self.options, self.estimator
        total_bytes, max_message_bytes = self.budget.total_bytes, self._max_message_bytes(topic)
        batch_size = min(options.batch_size, total_bytes)
        if max_message_bytes is not None:
            batch_size = min(batch_size, max_message_bytes)
        return empty_copy(
            self._template,
            batch_size=batch_size,
            estimated_ratio=estimator.estimate(topic, options.codec),
            contingency_factor=estimator.contingency_factor,
            capacity=max(min(capacity, total_bytes), min(DEFAULT_CAPACITY, batch_size)),
        )

    def _reserve_memory(self, batch: ProducerBatch, max_block_ms: float | None) -> None:
        """Reserve the memory of a new batch. If it is not free, reserve less: the batch can grow later."""
        builder = batch.builder
        assert builder is not None
        if not self._try_reserve(batch, builder.capacity):
            builder.shrink(min(DEFAULT_CAPACITY, builder.batch_size or 0))
            self._reserve(batch, builder.capacity, max_block_ms)

    def _reserve(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        if size > self.budget.total_bytes:
            raise self.record_too_large_error(
                f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes: expected at most "
                f"{self.budget.total_bytes} (buffer_memory)"
            )
        if not self._try_reserve(batch, size):
            self._wait_for(batch, size, max_block_ms)

    def _try_reserve(self, batch: ProducerBatch, size: int) -> bool:
        """Reserve memory for a batch if it is free now.

        A signal handler may raise an error between any two steps. So the batch gets an empty reservation, which then
        grows: no bytes are lost.
        """
        batch.reservation = self.budget.try_reserve(0)
        return batch.reservation is not None and batch.reservation.try_resize(size)

    def _wait_for(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        wait_ms = self.options.max_block_ms if max_block_ms is None else max_block_ms
        began = time.monotonic()
        try:
            batch.reservation = self.budget.reserve(size, wait_ms / 1000)
        except MemoryBudgetError as error:
            if self._closed:
                raise self._error_when_closed() from None
            records = f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes"
            if self.budget.is_closed:
                raise self.buffer_exhausted_error(f"{records}: no room: the budget is closed") from error
            raise self.buffer_exhausted_error(
                f"{records}: no room after {wait_ms:.0f} ms: {self._queues.incomplete_count} batches that are not "
                f"delivered hold {self.budget.held_bytes} of {self.budget.total_bytes} bytes (buffer_memory)"
            ) from error
        batch.begin(batch.created_ms + (time.monotonic() - began) * 1000)


def _ensure_open(transaction: Transaction | None) -> None:
    """Raise the error of a transaction that has ended.

    The lock is held from here until the record is in a batch. So `has_incomplete` knows all records of a transaction
    that has ended before.
    """
    if transaction is not None:
        transaction.ensure_open()


def _running_from(now_ms: float) -> Callable[[], float]:
    """Return a function that returns `now_ms` with the whole seconds since this call.

    Appends of many batches may take longer than the delivery timeout.
    """
    began = time.monotonic()
    return lambda: now_ms + int(time.monotonic() - began) * 1000


def _release(budget: MemoryBudget, queues: BatchQueues) -> None:
    """Give the bytes of an accumulator that was dropped back to the budget that it shares."""
    budget.close()
    for batch in queues.incomplete():
        queues.forget(batch)


def _as_partition(topic_partition: object) -> TopicPartition:
    """Return a partition that may be given as any (topic, number).

    Raises TypeError for other objects, and ValueError for a number that no partition has.
    """
    if not (isinstance(topic_partition, tuple) and len(topic_partition) == 2):
        raise TypeError(f"topic_partition: expected a TopicPartition, found {topic_partition!r}")
    topic, partition = topic_partition
    if not isinstance(topic, str):
        raise TypeError(f"topic_partition: expected a topic and a number, found {topic_partition!r}")
    check_int("topic_partition", partition, 0, 2**31 - 1)
    return TopicPartition(topic, partition)


def _check_time(now_ms: float) -> None:
    if not -math.inf < now_ms < math.inf:
        raise ValueError(f"now_ms: expected a number of milliseconds, found {now_ms}")
