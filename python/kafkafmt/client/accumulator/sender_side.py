"""The half of the accumulator that a sender calls: find ready nodes, drain their batches, and handle the outcomes.

Only the sender's thread calls it, except for flush, close, abort, and the end of a full batch: the thread that filled
it closes it, and so compresses it. Callers pass the time, in milliseconds of any monotonic clock.

Other batches are closed here, outside the lock. Then the size is known: a batch that is larger than its topic takes is
split before it is sent. A batch that a broker refuses as too large is split, too (KIP-126).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkafmt.client.accumulator.batch import ProducerBatch, ensure_exception
from kafkafmt.client.accumulator.errors import PossiblyDeliveredError
from kafkafmt.client.accumulator.metrics import AccumulatorMetrics
from kafkafmt.client.accumulator.options import AccumulatorOptions
from kafkafmt.client.accumulator.queues import BatchQueues, Undelivered
from kafkafmt.client.accumulator.splitting import next_target, parts_of
from kafkafmt.errors import RecordTooLargeError
from kafkafmt.types import Codec

if TYPE_CHECKING:
    from kafkafmt.build.estimator import RatioEstimator
    from kafkafmt.client.accumulator.sequences import Sequences
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.types import TopicPartition


log = logging.getLogger(__name__)


@contextmanager
def _without_errors_of_estimators() -> Iterator[None]:
    """Log an error of a caller's estimator: the records are sent, whatever it has learned."""
    try:
        yield
    except Exception:
        log.exception("the estimator failed to learn from a batch")


class PartitionLeaders(Protocol):
    """Knows the leader of each partition, as kafka-python's ClusterMetadata does."""

    def leader_for_partition(self, partition: TopicPartition) -> int | None:
        """Return the node id of the leader; None or -1 if it is not known."""


class ReadyCheck(NamedTuple):
    """The result of `SenderSide.ready`.

    nodes: the nodes to send to.
    next_check_ms: in how many milliseconds to check again, at the latest.
    unknown_leaders_exist: whether batches wait whose leader is not known.
    """

    nodes: set[int]
    next_check_ms: float
    unknown_leaders_exist: bool


class SenderSide:
    """The half of a RecordAccumulator that its sender calls. RecordAccumulator describes the arguments.

    muted: partitions that are not drained. A sender that keeps the order mutes partitions with a batch in flight.
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
        self._flushes = 0
        self._closed = False
        self._drain_first: dict[int, TopicPartition] = {}

    # Drain batches

    def ready(self, cluster: PartitionLeaders, now_ms: float) -> ReadyCheck:
        """Return the nodes that lead a partition with a batch to send.

        A batch is sent if it is full or has waited for `linger_ms`. It is sent at once if a caller waits for memory or
        for a flush, or if the accumulator is closed. It is not sent within `retry_backoff_ms` of a failed attempt, nor
        while its topic is held back, its partition is muted, or `Sequences.may_send` is false.
        """
        nodes: set[int] = set()
        next_check_ms = float("inf")
        unknown_leaders_exist = False
        leader_of, muted = cluster.leader_for_partition, self.muted
        with self._queues.lock:
            is_urgent = self.budget.is_awaited or self._flushes > 0 or self._closed
            for topic_partition, queue in self._queues.items():
                leader = leader_of(topic_partition)
                if leader is None or leader == -1:
                    unknown_leaders_exist = True
                elif leader not in nodes and topic_partition not in muted:
                    batch = queue[0]
                    if batch.is_closing:
                        continue  # the thread that compresses it wakes the sender then
                    left_ms = self._kept_back_ms(batch, now_ms)
                    if not (is_urgent or len(queue) > 1 or batch.is_full):
                        left_ms = max(left_ms, self.options.linger_ms - (now_ms - batch.last_attempt_ms))
                    if left_ms > 0:
                        next_check_ms = min(next_check_ms, left_ms)
                    elif self._may_send(topic_partition):
                        nodes.add(leader)
        return ReadyCheck(nodes, next_check_ms, unknown_leaders_exist)

    def _kept_back_ms(self, batch: ProducerBatch, now_ms: float) -> float:
        """Return for how many ms a batch must not be sent, even if it is urgent."""
        held_ms = self._held_until_ms(batch.topic_partition.topic) - now_ms
        if not batch.attempts:
            return held_ms
        return max(self.options.retry_backoff_ms - (now_ms - batch.last_attempt_ms), held_ms)

    def drain(
        self, cluster: PartitionLeaders, nodes: Iterable[int], max_size: int, now_ms: float
    ) -> dict[int, list[ProducerBatch]]:
        """Take the first batch of each partition, by the node that leads it, up to `max_size` bytes per node.

        The batches are closed. At least one batch per node is taken, whatever its size. The first partition that does
        not fit comes first in the next call.
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
        size = records = 0
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
            records += batch.record_count
            self.metrics.record_batch(batch.compression_ratio, now_ms - batch.created_ms, now_ms)
        if drained:
            self.metrics.record_request(records, now_ms)

    def _partitions_by_leader(
        self, cluster: PartitionLeaders, nodes: Iterable[int]
    ) -> dict[int, list[TopicPartition]]:
        """Return the partitions with waiting batches, by leading node, from the one whose turn it is."""
        led: dict[int, list[TopicPartition]] = {node: [] for node in nodes}
        if not led:
            return {}
        leader_of, muted = cluster.leader_for_partition, self.muted
        with self._queues.lock:
            for topic_partition in self._queues.partitions():
                leader = leader_of(topic_partition)
                if leader in led and topic_partition not in muted:
                    led[leader].append(topic_partition)
        if not self._drain_first:
            return led
        return {node: self._in_turn(node, partitions) for node, partitions in led.items()}

    def _in_turn(self, node: int, partitions: list[TopicPartition]) -> list[TopicPartition]:
        first = self._drain_first.pop(node, None)
        start = partitions.index(first) if first in partitions else 0
        return partitions[start:] + partitions[:start]

    def _take_first(self, topic_partition: TopicPartition, now_ms: float) -> ProducerBatch | None:
        """Take the first batch of a partition, closed and within its topic's limit; None if none is due."""
        if not self._may_send(topic_partition):
            return None
        while True:
            batch = self._queues.take_first(
                topic_partition, lambda batch: not batch.is_closing and self._kept_back_ms(batch, now_ms) <= 0
            )
            if batch is None:
                return None
            try:
                self._close_batch(batch)
                if batch.outcome is None:  # `abort` may have completed it meanwhile
                    self._ensure_sent_once(batch)
                    limit = self._max_message_bytes(topic_partition.topic)
                    # A batch that may have arrived is sent unchanged: the response tells whether it has.
                    if limit is None or batch.largest_batch_size <= limit or batch.known_as is not None:
                        return batch
                    self._split(batch, limit, now_ms, is_limit=True)
            except Exception as error:
                # A retry would fail, too: its records fail, and the next batch is taken.
                self._fail([(batch, error)])
            self.deallocate(batch)

    def _close_batch(self, batch: ProducerBatch) -> None:
        """Compress a batch unless that was done, and let the estimator learn from it unless it has."""
        if batch.is_unobserved or self._compress(batch):
            batch.is_unobserved = False
            if self.options.codec != Codec.NONE and batch.was_half_full:
                topic, ratio = batch.topic_partition.topic, batch.compression_ratio
                with _without_errors_of_estimators():
                    self.estimator.observe(topic, self.options.codec, ratio)

    def _compress(self, batch: ProducerBatch) -> bool:
        """Close a batch, and release the memory that it does not need then. Return False if that was done before."""
        if not batch.close():
            return False
        self._resize(batch, batch.size_in_bytes)
        return True

    def _resize(self, batch: ProducerBatch, size: int) -> None:
        """Hold `size` bytes of the budget for a batch, beyond the total if need be, unless it was released."""
        reservation = batch.reservation
        with self._queues.lock:
            if reservation is not None and not reservation.is_released:
                reservation.resize(size)

    def _ensure_sent_once(self, batch: ProducerBatch) -> None:
        """Raise PossiblyDeliveredError for a part of a batch in doubt, if the producer id or epoch has changed since.

        A broker that has the whole batch refuses the part only under the old id and epoch.
        """
        if self._sequences is None or batch.producer_state is not None:
            return
        known_as = batch.known_as
        if known_as is not None and not self._sequences.is_current(known_as):
            raise self.possibly_delivered(batch)

    def possibly_delivered(self, batch: ProducerBatch) -> PossiblyDeliveredError:
        """Return the error for records of a batch that may have arrived, which cannot be found out any more."""
        return self.possibly_delivered_error(
            f"{batch.topic_partition}: the record may have been delivered: its batch was sent, the response was lost, "
            "and the retry was refused; it is not sent in another batch, as the broker could then have it twice"
        )

    def _may_send(self, topic_partition: TopicPartition) -> bool:
        return self._sequences is None or self._sequences.may_send(topic_partition)

    def _number(self, batch: ProducerBatch) -> None:
        # A batch that was sent keeps its numbers, by which a broker that has it recognises the duplicate.
        if self._sequences is not None and batch.producer_state is None:
            batch.set_producer_state(self._sequences.assign(batch.topic_partition, batch.record_count))

    # Retries, splits and failures

    def reenqueue(self, batch: ProducerBatch, now_ms: float) -> None:
        """Send a batch again, after `retry_backoff_ms`, unless it was aborted meanwhile or waits already."""
        if not self._queues.is_waiting(batch):
            batch.retry(now_ms)
            self._queues.put_back([batch])

    def split_and_reenqueue(self, batch: ProducerBatch, now_ms: float) -> int:
        """Split a batch that its broker refused as too large, and queue the parts. Return how many (KIP-126).

        The parts take the batch's place in the queue, in order, and keep its age. Futures then wait for the parts. A
        record that is too large even alone fails; the error has its size and the limit. The estimate of the topic's
        compression ratio is reset. Returns 0, and changes nothing, if the batch was completed or aborted meanwhile.

        If an earlier attempt of a batch with sequence numbers may have arrived, the batch is in doubt until a broker
        accepts the first part. A broker that has the whole refuses that part as out of order. Such parts are only sent
        with the producer id and epoch of the whole; once these have changed, they fail with PossiblyDeliveredError.

        Raises RecordTooLargeError for a batch of one record, and RuntimeError for a batch that was not drained or was
        deallocated.
        """
        if batch.is_done:
            return 0
        if self._queues.is_waiting(batch):
            raise RuntimeError(f"{batch!r}: expected a batch that was drained, found one that waits")
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
        """Queue the parts of a batch in its place, and return how many. A single record above the limit fails.

        The memory is reserved before the parts are built. The sender does not wait for it, because only the sender
        releases memory. So the budget may exceed its total for a moment; callers of `append` wait meanwhile.
        """
        try:
            parts = parts_of(batch, max_size, self.options.level, partial(self._resize, batch))
        except BaseException:
            self._resize(batch, batch.size_in_bytes)
            raise
        too_large = [part for part, fits in parts if is_limit and not fits]
        children = [part for part, fits in parts if fits or not is_limit]
        if batch.in_doubt is not None and not children:
            children.append(too_large.pop(0))  # its broker's response ends the doubt
        with self._queues.lock:
            if not self._queues.replace(batch, children):
                return 0
            assert batch.reservation is not None
            reservations = batch.reservation.split([child.size_in_bytes for child in children])
            for child, reservation in zip(children, reservations, strict=True):
                child.reservation = reservation
        batch.split_into([part for part, _ in parts])
        if len(parts) > 1:  # a batch of one record fails, and was not split
            self.metrics.record_split(now_ms, was_refused=was_refused)
        if was_refused:
            with _without_errors_of_estimators():
                topic, ratio = batch.topic_partition.topic, batch.compression_ratio
                self.estimator.reset(topic)
                # As Kafka's splitAndReenqueue: if compression made the batch larger, it may do so again.
                if ratio > 1:
                    self.estimator.set(topic, self.options.codec, ratio)
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
        """Fail batches, but first their transaction. The batches fail even if that raises an error."""
        try:
            if self._sequences is not None:
                for _, error in failures:
                    self._sequences.fail(error)
        finally:
            for batch, error in failures:
                batch.complete_exceptionally(error)
                self.deallocate(batch)

    def deallocate(self, batch: ProducerBatch) -> None:
        """Free the bytes and the reservation of a batch that is done or split. Further calls do nothing."""
        batch.release_records()
        self._queues.forget(batch)

    # Expiry, flush and close

    def expired_batches(self, now_ms: float) -> list[ProducerBatch]:
        """Take the waiting batches that are `delivery_timeout_ms` old or older. The caller must fail them."""
        if now_ms < self.next_expiry_ms():
            return []  # cheap, because each turn of the sender calls it, and thousands may wait
        timeout_ms = self.options.delivery_timeout_ms
        return self._queues.take_all(lambda batch: batch.has_reached_delivery_timeout(timeout_ms, now_ms))

    def next_expiry_ms(self) -> float:
        """Return the time when the first waiting batch expires; infinity if none waits."""
        if not self._queues:
            return float("inf")
        with self._queues.lock:
            created = min((queue[0].created_ms for _, queue in self._queues.items()), default=float("inf"))
        return created + self.options.delivery_timeout_ms

    @property
    def has_undrained(self) -> bool:
        """Whether batches wait to be drained."""
        return bool(self._queues)

    @property
    def has_incomplete(self) -> bool:
        """Whether batches wait or are in flight, with those that other threads append at this moment."""
        with self._queues.lock:
            return self._queues.incomplete_count > 0

    def undelivered(self) -> Undelivered:
        """Return the number of records that are not acknowledged yet, by partition."""
        return self._queues.undelivered()

    @property
    def flush_in_progress(self) -> bool:
        """Whether a flush has begun and not ended."""
        return self._flushes > 0

    def begin_flush(self) -> None:
        """Make all batches ready, until each call has been matched by `await_flush_completion` or `end_flush`."""
        with self._queues.lock:
            self._flushes += 1

    def await_flush_completion(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds until all batches so far are done, the parts of split ones included.

        Raises TimeoutError, whose message counts the records that are not.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for batch in self._queues.incomplete():
                if not batch.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"flush: not done after {timeout} s: {self.undelivered()}")
        finally:
            self.end_flush()

    def end_flush(self) -> None:
        """End a flush that `begin_flush` began, without waiting for its completion. Do nothing if there is none."""
        with self._queues.lock:
            self._flushes = max(self._flushes - 1, 0)

    def close(self) -> None:
        """Refuse further records, also of callers that wait for memory. Waiting batches become ready."""
        with self._queues.lock:
            self._closed = True
            for topic_partition in list(self._queues.open):
                self._queues.end_appends(topic_partition)
        self.budget.close()

    def abort(self, error: Exception, *, undrained_only: bool = False) -> Undelivered:
        """Fail all batches with `error`. Return the number of records that failed, by partition.

        Batches in flight may still arrive.

        undrained_only: fail only waiting batches that no broker can have, for a transaction that aborts. Batches that
            may have arrived are kept: only the broker's response can tell whether their sequence numbers are used.

        Raises TypeError for an error that is no exception.
        """
        ensure_exception("error", error)
        in_flight: list[ProducerBatch] = []
        if undrained_only:
            waiting = self._queues.take_all(lambda batch: True)
            self._queues.put_back(batch for batch in waiting if batch.known_as is not None)
            waiting = [batch for batch in waiting if batch.known_as is None]
        else:
            waiting, in_flight = self._queues.take_incomplete()
        for batch in waiting:
            self.deallocate(batch)
        for batch in in_flight:  # their bytes are kept: a sender may still read them
            self._queues.forget(batch)
        aborted = Undelivered()
        for batch in (*waiting, *in_flight):
            if batch.complete_exceptionally(error):
                aborted[batch.topic_partition] += batch.record_count
        for batch in waiting:
            batch.release_records()  # a thread that closed one meanwhile may have set them again
        return aborted
