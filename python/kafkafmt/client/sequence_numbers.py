"""The sequence numbers of an idempotent producer, and which batches of a partition may be in flight together.

Up to five batches of a partition are in flight, because brokers recognise the last five of a producer as duplicates. If
one of them fails, the others are refused as out of sequence, and return to the queue. Then one batch is sent at a
time, in the order of their numbers, until all that have failed are resolved. A broker that knows no batch of a
producer accepts any sequence number. So the first batch under a producer id and epoch is sent alone, too.

A broker that restarts remembers the last batch only. It then refuses a batch that it has as out of sequence, if it has
a later one. Such a batch is suspended until the later ones are answered: if the broker acknowledges one under the same
producer id and epoch, it has all before it. Numbers of another id or epoch say nothing about the suspended batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.client.accumulator import ProducerState

if TYPE_CHECKING:
    from kafkafmt.client.accumulator import ProducerBatch
    from kafkafmt.client.in_flight import InFlightBatches
    from kafkafmt.types import TopicPartition

_SEQUENCES = 2**31  # they wrap to 0
# Kafka's NUM_BATCHES_TO_RETAIN.
_MAX_IN_FLIGHT = 5


class _Partition:
    """The state of one partition.

    is_known: whether its broker has acknowledged a batch under the current producer id and epoch.
    last_acked: the producer state after the last batch that a broker has acknowledged, and the offset after it.
    to_retry: batches that were answered with an error and are sent again.
    """

    __slots__ = ("is_known", "last_acked", "next_sequence", "to_retry")

    def __init__(self) -> None:
        self.to_retry: set[ProducerBatch] = set()
        self.last_acked: tuple[ProducerState, int] | None = None
        self.reset()

    def reset(self) -> None:
        self.next_sequence = 0
        self.is_known = False

    def has_retries(self) -> bool:
        if self.to_retry:
            self.to_retry = {batch for batch in self.to_retry if not batch.is_done}
        return bool(self.to_retry)


class SequenceNumbers:
    """Sequence numbers by partition, under one producer id and epoch at a time. Only the sender's thread uses it."""

    def __init__(self, in_flight: InFlightBatches) -> None:
        self._in_flight = in_flight
        self._partitions: dict[TopicPartition, _Partition] = {}

    def reset(self) -> None:
        """Begin with 0 again in all partitions, because the producer id or epoch has changed.

        Batches in flight keep their numbers. No others of their partitions are sent before they are answered.
        """
        for partition in self._partitions.values():
            partition.reset()

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return whether another batch of the partition may be in flight."""
        count = len(self._in_flight.of(topic_partition))
        if not count:
            return True
        partition = self._partitions.get(topic_partition)
        return (
            partition is not None
            and partition.is_known
            and not partition.has_retries()
            and count < _MAX_IN_FLIGHT
        )

    def assign(self, topic_partition: TopicPartition, count: int) -> int:
        """Assign numbers to the next `count` records. Return the first one."""
        partition = self._partition(topic_partition)
        base = partition.next_sequence
        partition.next_sequence = (base + count) % _SEQUENCES
        return base

    def set_next(self, topic_partition: TopicPartition, sequence: int) -> None:
        """Assign numbers from `sequence` on."""
        self._partition(topic_partition).next_sequence = sequence

    def sent(self, batch: ProducerBatch) -> None:
        """Continue after the numbers of a batch that is sent. They may have been taken back before it."""
        assert batch.producer_state is not None
        partition = self._partition(batch.topic_partition)
        end = (batch.producer_state.base_sequence + batch.record_count) % _SEQUENCES
        if 0 < (end - partition.next_sequence) % _SEQUENCES < _SEQUENCES // 2:
            partition.next_sequence = end

    def acknowledged(
        self, batch: ProducerBatch, base_offset: int, *, is_current: bool
    ) -> list[tuple[ProducerBatch, int]]:
        """Note that a broker has a batch. Return the suspended batches that it therefore has, with their offsets.

        Their offsets are -1 if another producer may have written between them.

        is_current: whether the batch has the current producer id and epoch.
        """
        partition, state = self._partition(batch.topic_partition), batch.producer_state
        partition.is_known = partition.is_known or is_current
        if partition.to_retry:
            partition.to_retry.discard(batch)
        delivered = []
        if state is not None:
            proven = self._in_flight.take_suspended(
                batch.topic_partition, lambda one: _is_after(state, one.producer_state)
            )
            delivered = [(one, _offset_of(one, batch, base_offset, partition.last_acked)) for one in proven]
            producer_id, epoch, sequence, is_transactional = state
            count = batch.record_count
            after = ProducerState(producer_id, epoch, (sequence + count) % _SEQUENCES, is_transactional)
            partition.last_acked = None if base_offset < 0 else (after, base_offset + count)
        return delivered

    def last_acked_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the last record that a broker has acknowledged; -1 for none."""
        last_acked = self._partition(topic_partition).last_acked
        return -1 if last_acked is None else last_acked[1] - 1

    def will_retry(self, batch: ProducerBatch) -> None:
        """Note that a batch failed and is sent again with its numbers."""
        self._partition(batch.topic_partition).to_retry.add(batch)

    def forget(self, batch: ProducerBatch) -> None:
        """Note that a batch was split or has failed finally."""
        self._partition(batch.topic_partition).to_retry.discard(batch)

    def send_singly(self, topic_partition: TopicPartition) -> None:
        """Send the batches of a partition one at a time until a broker acknowledges one."""
        self._partition(topic_partition).is_known = False

    def is_behind_another(self, batch: ProducerBatch) -> bool:
        """Return whether an earlier batch of the partition is not resolved: so a broker refuses this one."""
        partition = self._partition(batch.topic_partition)
        return any(
            other.order < batch.order and not other.is_done
            for others in (self._in_flight.of(batch.topic_partition), partition.to_retry)
            for other in others
        )

    def has_later(self, batch: ProducerBatch) -> bool:
        """Return whether a later batch of the partition, with numbers after this one's, will be answered."""
        state = batch.producer_state
        assert state is not None
        others = (self._in_flight.of(batch.topic_partition), self._partition(batch.topic_partition).to_retry)
        return any(
            one.order > batch.order and not one.is_done and _is_same_producer(one.producer_state, state)
            for ones in others
            for one in ones
        )

    def suspend(self, batch: ProducerBatch, expiry_ms: float) -> None:
        """Wait for the answer for a later batch."""
        self.forget(batch)
        self._in_flight.suspend(batch, expiry_ms)

    def take_unprovable(self, topic_partition: TopicPartition) -> list[ProducerBatch]:
        """Remove and return the suspended batches of a partition whose later ones have got other numbers."""
        return self._in_flight.take_suspended(topic_partition, lambda one: not self.has_later(one))

    def take_suspended(self, topic_partition: TopicPartition) -> list[ProducerBatch]:
        """Remove and return the suspended batches of a partition: no later one was acknowledged."""
        return self._in_flight.take_suspended(topic_partition)

    def take_back_after(self, batch: ProducerBatch) -> None:
        """Take their numbers from all batches after one that a broker has not appended and never will.

        No broker has appended them, because its numbers are missing.
        """
        partition = self._partition(batch.topic_partition)
        later = [one for one in self._in_flight.of(batch.topic_partition) if one.order > batch.order]
        waiting = [one for one in partition.to_retry if one.order > batch.order]
        for one in (*later, *waiting):
            take_numbers(one)
        partition.to_retry.difference_update(waiting)
        partition.to_retry.update(later)  # nothing else is sent before they have returned

    def _partition(self, topic_partition: TopicPartition) -> _Partition:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._partitions[topic_partition] = _Partition()
        return partition


def take_numbers(batch: ProducerBatch) -> None:
    """Take the numbers from a batch that no broker has appended. It gets others when it is sent again."""
    batch.producer_state = None
    batch.may_have_arrived = False


def _is_same_producer(one: ProducerState | None, other: ProducerState) -> bool:
    return one is not None and one[:2] == other[:2]


def _is_after(later: ProducerState, state: ProducerState | None) -> bool:
    """Return whether numbers are after others of the same producer, which may have begun with 0 again since."""
    if state is None or not _is_same_producer(later, state):
        return False
    return 0 < (later.base_sequence - state.base_sequence) % _SEQUENCES < _SEQUENCES // 2


def _offset_of(
    batch: ProducerBatch, later: ProducerBatch, later_offset: int, before: tuple[ProducerState, int] | None
) -> int:
    """Return the offset of a batch between two batches that were acknowledged; -1 if it is not certain.

    before: the producer state after the first of them, and the offset after it.
    """
    state, end = batch.producer_state, later.producer_state
    if before is None or state is None or end is None or later_offset < 0:
        return -1
    start, start_offset = before
    if not (_is_same_producer(start, state) and _is_same_producer(end, state)):
        return -1
    records = (end.base_sequence - start.base_sequence) % _SEQUENCES
    if later_offset - start_offset != records:
        return -1
    return start_offset + (state.base_sequence - start.base_sequence) % _SEQUENCES
