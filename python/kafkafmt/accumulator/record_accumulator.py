"""Queues of batches, one a partition: records come in at one end, a sender drains the other.

The sender asks which nodes have something `ready`, drains it, and says what came of it: `deallocate`, `reenqueue`
or `split_and_reenqueue`. Times are handed in, in milliseconds of any clock that does not go back. Records are
appended from any thread; what the sender does is called from one.

A batch is closed, and so compressed, in the sender's thread, outside the lock. Then its size is known, and one
that is larger than its topic takes is split before it is sent; what a broker refuses all the same is split then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.accumulator.buffer_pool import BufferPool
from kafkafmt.accumulator.errors import AccumulatorClosedError, BufferExhaustedError
from kafkafmt.accumulator.future import RecordFuture, RecordsFuture
from kafkafmt.accumulator.metrics import AccumulatorMetrics
from kafkafmt.accumulator.options import AccumulatorOptions
from kafkafmt.accumulator.queues import BatchQueues, Undelivered
from kafkafmt.accumulator.splitting import next_target, parts_of
from kafkafmt.builder import DEFAULT_CAPACITY, RecordBatchBuilder
from kafkafmt.column_rows import column_rows
from kafkafmt.errors import RecordTooLargeError
from kafkafmt.estimator import CompressionRatioEstimator
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.accumulator.sequences import Sequences
    from kafkafmt.column_rows import Binary, Headers, Timestamps
    from kafkafmt.types import TopicPartition


class Cluster(Protocol):
    """Who leads which partition. kafka-python's ClusterMetadata is one."""

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """The node id of the leader; None or -1 where none is known."""


class ReadyCheck(NamedTuple):
    """Nodes to send to; in how many ms to look again, at the latest; whether records wait for an unknown leader."""

    nodes: set[int]
    next_check_ms: float
    unknown_leaders_exist: bool


class RecordAccumulator:
    """Batches under one budget in bytes, in the order of their records.

    max_message_bytes: the largest batch that a topic takes (its `max.message.bytes`), None where that is not
    known. What comes out larger is split before it is sent, which KIP-126 calls the ideal solution ("Rejected
    Alternatives"). sequences: of an idempotent producer.

    Unlike Kafka's: memory is reserved as batches grow, not `batch_size` at once; no batch is meant to be larger
    than its topic takes; batches that come back go to where their records belong; and of batches that were less
    than half full the estimator learns nothing, since the few records of one that lingered compress badly.

    held_until_ms: until when a topic's batches are kept back, as while its limit is being asked for; 0: not held.

    wakeup: has the sender look what is `ready`, where `append` does not return that: when its caller begins to wait
    for memory, and where `abort_on_new_batch` leaves a full batch behind. Called in the caller's thread.

    muted: partitions of which nothing is drained; a sender that keeps the order mutes those in flight.
    """

    # What callers get and catch: a client that has its own derives them from these.
    future_type: type[RecordFuture] = RecordFuture
    closed_error: type[AccumulatorClosedError] = AccumulatorClosedError
    buffer_exhausted_error: type[BufferExhaustedError] = BufferExhaustedError
    record_too_large_error: type[RecordTooLargeError] = RecordTooLargeError

    def __init__(
        self,
        options: AccumulatorOptions | None = None,
        *,
        estimator: CompressionRatioEstimator | None = None,
        max_message_bytes: Callable[[str], int | None] = lambda topic: None,
        held_until_ms: Callable[[str], float] = lambda topic: 0,
        sequences: Sequences | None = None,
        wakeup: Callable[[], None] = lambda: None,
    ) -> None:
        self.options = options or AccumulatorOptions()
        self.estimator = estimator or CompressionRatioEstimator()
        self.metrics = AccumulatorMetrics()
        self.pool = BufferPool(self.options.buffer_memory)
        self.muted: set[TopicPartition] = set()
        self._max_message_bytes = max_message_bytes
        self._held_until_ms = held_until_ms
        self._sequences = sequences
        self._wakeup = wakeup
        self._queues = BatchQueues()
        self._lock = self._queues.lock
        self._open = self._queues.open
        self._flushes = 0
        self._closed = False
        self._drain_first: dict[int, TopicPartition] = {}

    # Records come

    def append(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Collection[tuple[str | bytes, bytes | None]] = (),
        *,
        now_ms: float,
        max_block_ms: float | None = None,
        abort_on_new_batch: bool = False,
    ) -> tuple[RecordFuture, bool] | None:
        """Append a record; returns its future, and whether there is news for the sender.

        Waits up to `max_block_ms` (None: as the options say) for memory. abort_on_new_batch: return None where
        the record would begin a batch, so that a sticky partitioner may choose again (KIP-480).

        Raises BufferExhaustedError, AccumulatorClosedError, RecordTooLargeError where the record is larger than
        the whole budget, and what `RecordBatchBuilder.append` raises.
        """
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
                        missing = builder.try_append(timestamp, key, value, headers)
                        if missing and self._makes_room(batch, builder, missing):
                            missing = builder.try_append(timestamp, key, value, headers)
                        if not missing:
                            index = len(builder) - 1
                            return self.future_type(batch, index, timestamp, key, value), builder.is_full
                    if new is not None:
                        self._enqueue(new)
                        begun, new = new, None
                        return self.future_type(begun, 0, timestamp, key, value), True
                if abort_on_new_batch:
                    if batch is not None:  # which has just become full
                        self._wakeup()
                    return None
                builder = self._begin_builder(topic_partition.topic)
                missing = builder.try_append(timestamp, key, value, headers)
                if missing:
                    builder.grow(builder.capacity + missing)
                    builder.try_append(timestamp, key, value, headers)
                new = ProducerBatch(topic_partition, builder, created_ms=now_ms)
                self._reserve(new, builder.capacity, max_block_ms)
        finally:
            if new is not None:  # another thread began a batch meanwhile, or the record was refused
                self.pool.release(new.reserved)

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
        batches: list[ProducerBatch] = []
        try:
            for rows in parts:
                first = 0
                while first < len(rows):
                    builder = self._begin_builder(topic_partition.topic)
                    first = builder._fill(rows, first, len(rows))
                    batch = ProducerBatch(topic_partition, builder, created_ms=now_ms)
                    self._append_whole(batch, max_block_ms)
                    batches.append(batch)
        except Exception as error:
            error.appended = RecordsFuture(batches)  # type: ignore[attr-defined]
            raise
        return RecordsFuture(batches)

    def _append_whole(self, batch: ProducerBatch, max_block_ms: float | None) -> None:
        self._close_batch(batch)
        self._reserve(batch, batch.size_in_bytes, max_block_ms)
        try:
            with self._lock:
                self._enqueue(batch)
        except BaseException:
            self.pool.release(batch.reserved)
            raise

    def _enqueue(self, batch: ProducerBatch) -> None:
        """Queue a new batch, unless the accumulator is closed. The lock is held."""
        if self._closed:
            raise self._is_closed()
        self._queues.enqueue(batch)

    def _is_closed(self) -> AccumulatorClosedError:
        return self.closed_error("the accumulator is closed and takes no more records")

    def _makes_room(self, batch: ProducerBatch, builder: RecordBatchBuilder, missing: int) -> bool:
        """Let an open batch hold twice as much, or `missing` bytes more, where it may and the budget has that now.

        Else it takes no more records. The lock is held.
        """
        for more in (max(missing, builder.capacity), missing):
            if missing > 0 and self.pool.try_reserve(more):
                batch.reserved += more
                builder.grow(builder.capacity + more)
                return True
        self._queues.end_appends(batch.topic_partition)
        return False

    def _begin_builder(self, topic: str) -> RecordBatchBuilder:
        options = self.options
        limits = (options.batch_size, self._max_message_bytes(topic), self.pool.total)
        return RecordBatchBuilder(
            codec=options.codec,
            level=options.level,
            batch_size=min(limit for limit in limits if limit is not None),
            estimated_ratio=self.estimator.estimate(topic, options.codec),
            contingency_factor=self.estimator.contingency_factor,
            capacity=min(DEFAULT_CAPACITY, self.pool.total),
        )

    def _reserve(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        if size > self.pool.total:
            raise self.record_too_large_error(
                f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes: expected at most "
                f"{self.pool.total} (buffer_memory)"
            )
        if not self.pool.try_reserve(size):
            self._wait_for(batch, size, max_block_ms)
        batch.reserved = size

    def _wait_for(self, batch: ProducerBatch, size: int, max_block_ms: float | None) -> None:
        wait_ms = self.options.max_block_ms if max_block_ms is None else max_block_ms
        began = time.monotonic()
        if not self.pool.reserve(size, wait_ms, self._wakeup):
            if self._closed:
                raise self._is_closed()
            held = self.pool.total - self.pool.available
            raise self.buffer_exhausted_error(
                f"{batch.record_count} record(s) for {batch.topic_partition} of {size} bytes: no room after "
                f"{wait_ms:.0f} ms: {self._queues.incomplete_count} batches that are not delivered yet hold {held} of "
                f"{self.pool.total} bytes (buffer_memory)"
            )
        batch.begin(batch.created_ms + (time.monotonic() - began) * 1000)

    # Batches go

    def ready(self, cluster: Cluster, now_ms: float) -> ReadyCheck:
        """Which nodes lead a partition with a batch to send.

        A batch is to be sent when it is full or has waited for `linger_ms`, when a caller waits for memory or for
        a flush, and once the accumulator is closed; but not within `retry_backoff_ms` of a failed attempt, nor
        while its topic is held or its partition is muted or may not be numbered.
        """
        nodes: set[int] = set()
        next_check_ms = float("inf")
        unknown_leaders_exist = False
        with self._lock:
            is_urgent = self.pool.queued > 0 or self._flushes > 0 or self._closed
            for topic_partition, queue in self._queues.items():
                leader = cluster.leader_for_partition(topic_partition)
                if leader is None or leader == -1:
                    unknown_leaders_exist = True
                elif leader not in nodes and topic_partition not in self.muted:
                    is_sendable = is_urgent or len(queue) > 1 or queue[0].is_full
                    left_ms = self._wait_left_ms(queue[0], now_ms, is_sendable)
                    if left_ms > 0:
                        next_check_ms = min(next_check_ms, left_ms)
                    elif self._may_send(topic_partition):
                        nodes.add(leader)
        return ReadyCheck(nodes, next_check_ms, unknown_leaders_exist)

    def _wait_left_ms(self, batch: ProducerBatch, now_ms: float, is_sendable: bool) -> float:
        linger_ms = 0 if is_sendable else self.options.linger_ms - (now_ms - batch.last_attempt_ms)
        return max(linger_ms, self._kept_back_ms(batch, now_ms))

    def _kept_back_ms(self, batch: ProducerBatch, now_ms: float) -> float:
        """For how long a batch may not be sent, however urgent it is."""
        held_ms = self._held_until_ms(batch.topic_partition.topic) - now_ms
        if not batch.attempts:
            return held_ms
        return max(self.options.retry_backoff_ms - (now_ms - batch.last_attempt_ms), held_ms)

    def drain(
        self, cluster: Cluster, nodes: Iterable[int], max_size: int, now_ms: float
    ) -> dict[int, list[ProducerBatch]]:
        """For each node, the first batch of each partition that it leads, closed, as many as `max_size` bytes hold.

        One batch is taken whatever its size. The partition that is left out first comes first the next time.
        """
        drained: dict[int, list[ProducerBatch]] = {node: [] for node in nodes}
        try:
            for node, partitions in self._partitions_by_leader(cluster, drained).items():
                self._drain_node(node, partitions, max_size, now_ms, drained[node])
        except BaseException:
            self._queues.put_back(batch for batches in drained.values() for batch in batches)
            raise
        return drained

    def _drain_node(
        self,
        node: int,
        partitions: Sequence[TopicPartition],
        max_size: int,
        now_ms: float,
        drained: list[ProducerBatch],
    ) -> None:
        size = 0
        for topic_partition in partitions:
            batch = self._take_first(topic_partition, now_ms)
            if batch is None:
                continue
            if drained and size + batch.size_in_bytes > max_size:
                self._queues.put_back([batch])
                self._drain_first[node] = topic_partition
                break
            drained.append(batch)
            self._number(batch)
            size += batch.size_in_bytes
            self.metrics.record_batch(batch.compression_ratio, now_ms - batch.created_ms, now_ms)
        if drained:
            self.metrics.record_request(sum(batch.record_count for batch in drained), now_ms)

    def _partitions_by_leader(
        self, cluster: Cluster, nodes: Iterable[int]
    ) -> dict[int, Sequence[TopicPartition]]:
        """For each node, the partitions that it leads with batches waiting, whose turn it is first."""
        led: dict[int, list[TopicPartition]] = {node: [] for node in nodes}
        with self._lock:
            for topic_partition in self._queues.partitions():
                leader = cluster.leader_for_partition(topic_partition)
                if leader in led and topic_partition not in self.muted:
                    led[leader].append(topic_partition)
        return {node: self._in_turn(node, partitions) for node, partitions in led.items()}

    def _in_turn(self, node: int, partitions: list[TopicPartition]) -> list[TopicPartition]:
        first = self._drain_first.pop(node, None)
        start = partitions.index(first) if first in partitions else 0
        return partitions[start:] + partitions[:start]

    def _take_first(self, topic_partition: TopicPartition, now_ms: float) -> ProducerBatch | None:
        """The first batch of a partition, closed and no larger than its topic takes; None for none to send now."""
        if not self._may_send(topic_partition):
            return None
        while True:
            batch = self._queues.take_first(
                topic_partition, lambda batch: self._kept_back_ms(batch, now_ms) <= 0
            )
            if batch is None:
                return None
            try:
                self._close_batch(batch)
                if not batch.is_done:  # by abort, meanwhile
                    limit = self._max_message_bytes(topic_partition.topic)
                    # What is numbered was sent and may have arrived, as a whole.
                    if limit is None or batch.size_in_bytes <= limit or batch.producer_state is not None:
                        return batch
                    self._split(batch, limit, now_ms, is_limit=True)
            except Exception as error:
                # No broker can help it: its records fail, and those behind them go on.
                self._fail(batch, error)
            self.deallocate(batch)

    def _close_batch(self, batch: ProducerBatch) -> None:
        if batch.close():
            if self.options.codec != Codec.NONE and batch.was_half_full:
                topic = batch.topic_partition.topic
                self.estimator.observe(topic, self.options.codec, batch.compression_ratio)
            with self._lock:
                if batch.reserved:
                    self.pool.exchange(batch.reserved, batch.size_in_bytes)
                    batch.reserved = batch.size_in_bytes

    def _may_send(self, topic_partition: TopicPartition) -> bool:
        return self._sequences is None or self._sequences.may_send(topic_partition)

    def _number(self, batch: ProducerBatch) -> None:
        # A batch that was sent keeps its numbers: if it arrived after all, the broker knows it by them.
        if self._sequences is not None and batch.producer_state is None:
            batch.set_producer_state(self._sequences.assign(batch.topic_partition, batch.record_count))

    # Batches come back

    def reenqueue(self, batch: ProducerBatch, now_ms: float) -> None:
        """Send a batch again, after `retry_backoff_ms`, unless it was aborted meanwhile."""
        batch.retry(now_ms)
        self._queues.put_back([batch])

    def split_and_reenqueue(self, batch: ProducerBatch, now_ms: float) -> int:
        """Split a batch that its broker refused as too large, and send the parts; returns how many (KIP-126).

        They go to the front of the queue in order, and have the age of the batch; what waits for it waits for
        them. A record that is larger than the topic takes even alone fails, with its size and the limit. The
        estimate of the topic's compression ratio begins anew. There are no parts, and nothing is changed, of a batch
        that was completed or aborted meanwhile. Raises RecordTooLargeError where it has one record.
        """
        if batch.is_done:
            return 0
        if batch.record_count < 2:
            raise self.record_too_large_error(f"{batch!r} of {batch.size_in_bytes} bytes: it cannot be split")
        limit = self._max_message_bytes(batch.topic_partition.topic)
        if limit is not None and limit < batch.size_in_bytes:
            return self._split(batch, limit, now_ms, is_limit=True, was_refused=True)
        target = next_target(batch, self.options.batch_size)
        return self._split(batch, target, now_ms, is_limit=False, was_refused=True)

    def _split(
        self, batch: ProducerBatch, max_size: int, now_ms: float, *, is_limit: bool, was_refused: bool = False
    ) -> int:
        """Queue the parts of a batch in its place, and let those fail that are larger than a limit even alone."""
        parts = parts_of(batch, max_size, self.options.level)
        too_large = [part for part, fits in parts if is_limit and not fits]
        children = [part for part, fits in parts if fits or not is_limit]
        with self._lock:
            if not self._queues.replace(batch, children):
                return 0
            for child in children:
                child.reserved = child.size_in_bytes
            self.pool.exchange(batch.reserved, sum(child.reserved for child in children))
            batch.reserved = 0
        batch.split_into([part for part, _ in parts])
        self.metrics.record_split(now_ms, was_refused=was_refused)
        if was_refused:
            self.estimator.reset(batch.topic_partition.topic)
            if self._sequences is not None and batch.producer_state is not None:
                self._sequences.take_back(batch.topic_partition, batch.producer_state)
        for part in too_large:
            error = self.record_too_large_error(
                f"{part.topic_partition}: a record that takes {part.size_in_bytes} bytes in a batch of its own: "
                f"expected at most {max_size} (max.message.bytes)"
            )
            self._fail(part, error)
            part.let_go()
        return len(children)

    def _fail(self, batch: ProducerBatch, error: Exception) -> None:
        if self._sequences is not None:
            self._sequences.fail(error)
        batch.complete_exceptionally(error)

    def deallocate(self, batch: ProducerBatch) -> None:
        """Give back the memory of a batch that is done or split, once."""
        batch.let_go()
        self._release(batch)

    def _release(self, batch: ProducerBatch) -> None:
        held = self._queues.forget(batch)
        if held:
            self.pool.release(held)

    # Ends

    def expired_batches(self, now_ms: float) -> list[ProducerBatch]:
        """Take out the batches that wait here since `delivery_timeout_ms` or longer; the caller lets them fail."""
        timeout_ms = self.options.delivery_timeout_ms
        return self._queues.take_all(lambda batch: batch.has_reached_delivery_timeout(timeout_ms, now_ms))

    def next_expiry_ms(self) -> float:
        """When the first of the batches that wait here expires; infinity where none waits."""
        with self._lock:
            created = min((queue[0].created_ms for _, queue in self._queues.items()), default=float("inf"))
        return created + self.options.delivery_timeout_ms

    @property
    def has_undrained(self) -> bool:
        """Whether batches wait here."""
        return bool(self._queues)

    @property
    def has_incomplete(self) -> bool:
        """Whether batches wait here or are in flight."""
        return self._queues.incomplete_count > 0

    def undelivered(self) -> Undelivered:
        """Records that no broker acknowledged yet, by partition."""
        return self._queues.undelivered()

    @property
    def flush_in_progress(self) -> bool:
        return self._flushes > 0

    def begin_flush(self) -> None:
        """Make all batches ready, until `await_flush_completion` was called as often as this."""
        with self._lock:
            self._flushes += 1

    def await_flush_completion(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until all that was appended is done, the parts of split batches included.

        Raises TimeoutError that tells what was not.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for batch in self._queues.incomplete():
                if not batch.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"flush: not done after {timeout} s: {self.undelivered()}")
        finally:
            self.end_flush()

    def end_flush(self) -> None:
        """End what `begin_flush` began, where nobody waits for its completion."""
        with self._lock:
            self._flushes -= 1

    def close(self) -> None:
        """Take no more records, not from who waits for memory either; what is here becomes ready."""
        with self._lock:
            self._closed = True
            for topic_partition in list(self._open):
                self._queues.end_appends(topic_partition)
        self.pool.close()

    def abort(self, error: Exception, *, undrained_only: bool = False) -> Undelivered:
        """Let all batches fail; or, for a transaction that ends, only those that no broker can have.

        A numbered batch that waits to be sent again is kept then: only its broker knows whether its numbers are
        taken. What is in flight may arrive all the same. Returns the records that failed by this.
        """
        in_flight: list[ProducerBatch] = []
        if undrained_only:
            waiting = self._queues.take_all(lambda batch: True)
            self._queues.put_back(batch for batch in waiting if batch.producer_state is not None)
            waiting = [batch for batch in waiting if batch.producer_state is None]
        else:
            waiting, in_flight = self._queues.take_incomplete()
        for batch in waiting:
            self.deallocate(batch)
        for batch in in_flight:  # whose bytes a sender may still read
            self._release(batch)
        aborted = Undelivered()
        for batch in (*waiting, *in_flight):
            if batch.complete_exceptionally(error):
                aborted[batch.topic_partition] += batch.record_count
        return aborted
