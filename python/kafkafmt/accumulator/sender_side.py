"""What a sender asks of the batches that wait: which are ready, to have them drained, and what came of them.

Called from one thread, the sender's, but for what ends all. Times are handed in, in milliseconds of any clock that
does not go back.

A batch is closed, and so compressed, here, outside the lock. Then its size is known, and one that is larger than
its topic takes is split before it is sent; what a broker refuses all the same is split then (KIP-126).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.accumulator.errors import PossiblyDeliveredError
from kafkafmt.accumulator.metrics import AccumulatorMetrics
from kafkafmt.accumulator.options import AccumulatorOptions
from kafkafmt.accumulator.queues import BatchQueues, Undelivered
from kafkafmt.accumulator.splitting import next_target, parts_of
from kafkafmt.errors import RecordTooLargeError
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.accumulator.sequences import Sequences
    from kafkafmt.estimator import RatioEstimator
    from kafkafmt.memory.budget import MemoryBudget
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


class SenderSide:
    """The half of a RecordAccumulator that its sender calls; see there.

    muted: partitions of which nothing is drained; a sender that keeps the order mutes those in flight.
    """

    record_too_large_error: type[RecordTooLargeError] = RecordTooLargeError
    possibly_delivered_error: type[PossiblyDeliveredError] = PossiblyDeliveredError

    def __init__(
        self,
        options: AccumulatorOptions,
        *,
        budget: MemoryBudget,
        estimator: RatioEstimator,
        max_message_bytes: Callable[[str], int | None],
        held_until_ms: Callable[[str], float],
        sequences: Sequences | None,
    ) -> None:
        self.options = options
        self.estimator = estimator
        self.metrics = AccumulatorMetrics()
        self.budget = budget
        self.muted: set[TopicPartition] = set()
        self._max_message_bytes = max_message_bytes
        self._held_until_ms = held_until_ms
        self._sequences = sequences
        self._queues = BatchQueues()
        self._lock = self._queues.lock
        self._flushes = 0
        self._closed = False
        self._drain_first: dict[int, TopicPartition] = {}

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
            is_urgent = self.budget.is_awaited or self._flushes > 0 or self._closed
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
                    self._ensure_sent_once(batch)
                    limit = self._max_message_bytes(topic_partition.topic)
                    # What a broker may know is sent as it is, and so its answer tells whether it does.
                    if limit is None or batch.largest_batch_size <= limit or batch.known_as is not None:
                        return batch
                    self._split(batch, limit, now_ms, is_limit=True)
            except Exception as error:
                # No broker can help it: its records fail, and those behind them go on.
                self._fail([(batch, error)])
            self.deallocate(batch)

    def _close_batch(self, batch: ProducerBatch) -> None:
        if batch.close():
            if self.options.codec != Codec.NONE and batch.was_half_full:
                topic = batch.topic_partition.topic
                self.estimator.observe(topic, self.options.codec, batch.compression_ratio)
            with self._lock:
                if batch.reservation is not None and not batch.reservation.is_released:
                    batch.reservation.resize(batch.size_in_bytes)

    def _ensure_sent_once(self, batch: ProducerBatch) -> None:
        """Raise PossiblyDeliveredError for a part of what may have arrived that cannot have its numbers any more.

        Only under these does a broker that has the whole refuse the part.
        """
        known_as = batch.known_as
        if batch.producer_state is not None or known_as is None or self._sequences is None:
            return
        if not self._sequences.is_current(known_as):
            raise self.possibly_delivered(batch)

    def possibly_delivered(self, batch: ProducerBatch) -> PossiblyDeliveredError:
        """The error of records whose batch is in doubt, and stays so."""
        return self.possibly_delivered_error(
            f"{batch.topic_partition}: the record may have been delivered: its batch was sent, the answer was lost, "
            "and when it was sent again it was refused; it is not sent in another batch, lest it is there twice"
        )

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

        A numbered batch whose earlier attempt may have arrived is in doubt until a broker takes the first part: where
        it has the whole, that part is out of order. Such parts are sent under the producer id and epoch of the whole
        alone, and fail with PossiblyDeliveredError once that has changed.
        """
        if batch.is_done:
            return 0
        if batch.record_count < 2:
            raise self.record_too_large_error(f"{batch!r} of {batch.size_in_bytes} bytes: it cannot be split")
        limit = self._max_message_bytes(batch.topic_partition.topic)
        if limit is not None and limit < batch.largest_batch_size:
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
        if batch.in_doubt is not None and not children:
            children.append(too_large.pop(0))  # for its broker to tell
        with self._lock:
            if not self._queues.replace(batch, children):
                return 0
            assert batch.reservation is not None
            reservations = batch.reservation.split([child.size_in_bytes for child in children])
            for child, reservation in zip(children, reservations, strict=True):
                child.reservation = reservation
        batch.split_into([part for part, _ in parts])
        self.metrics.record_split(now_ms, was_refused=was_refused)
        if was_refused:
            topic = batch.topic_partition.topic
            self.estimator.reset(topic)
            # As Kafka's RecordAccumulator.splitAndReenqueue: a batch that grew when compressed is expected again.
            if batch.compression_ratio > 1:
                self.estimator.observe(topic, self.options.codec, batch.compression_ratio)
            if self._sequences is not None and batch.producer_state is not None:
                self._sequences.take_back(batch.topic_partition, batch.producer_state)
        self._fail([(part, self._too_large(part, max_size)) for part in too_large])
        return len(children)

    def _too_large(self, batch: ProducerBatch, limit: int) -> RecordTooLargeError:
        return self.record_too_large_error(
            f"{batch.topic_partition}: a record that takes {batch.size_in_bytes} bytes in a batch of its own: "
            f"expected at most {limit} (max.message.bytes)"
        )

    def _fail(self, failures: Sequence[tuple[ProducerBatch, Exception]]) -> None:
        """Let batches fail, and first the transaction that they belong to; whatever that says, they are done."""
        try:
            if self._sequences is not None:
                for _, error in failures:
                    self._sequences.fail(error)
        finally:
            for batch, error in failures:
                batch.complete_exceptionally(error)
                self.deallocate(batch)

    def deallocate(self, batch: ProducerBatch) -> None:
        """Give back the memory of a batch that is done or split, once."""
        batch.let_go()
        self._queues.forget(batch)

    # Ends

    def expired_batches(self, now_ms: float) -> list[ProducerBatch]:
        """Take out the batches that wait here since `delivery_timeout_ms` or longer; the caller lets them fail."""
        if now_ms < self.next_expiry_ms():
            return []  # asked at each turn of the sender, and there may be thousands
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
            for topic_partition in list(self._queues.open):
                self._queues.end_appends(topic_partition)
        self.budget.close()

    def abort(self, error: Exception, *, undrained_only: bool = False) -> Undelivered:
        """Let all batches fail; or, for a transaction that ends, only those that no broker can have.

        What a broker may know is kept then: it alone can tell whether the numbers are taken. What is in flight may
        arrive all the same. Returns the records that failed by this.
        """
        in_flight: list[ProducerBatch] = []
        if undrained_only:
            waiting = self._queues.take_all(lambda batch: True)
            self._queues.put_back(batch for batch in waiting if batch.known_as is not None)
            waiting = [batch for batch in waiting if batch.known_as is None]
        else:
            waiting, in_flight = self._queues.take_incomplete()
        for batch in waiting:
            self.deallocate(batch)
        for batch in in_flight:  # whose bytes a sender may still read
            self._queues.forget(batch)
        aborted = Undelivered()
        for batch in (*waiting, *in_flight):
            if batch.complete_exceptionally(error):
                aborted[batch.topic_partition] += batch.record_count
        return aborted
