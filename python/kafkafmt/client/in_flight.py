"""The batches that a sender has sent and that no broker has answered yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.client.accumulator import ProducerBatch
    from kafkafmt.types import TopicPartition


class InFlightBatches:
    """Batches in flight by partition, in the order in which they were sent. Only the sender's thread uses it.

    A batch is suspended if the answer for a later one will tell its outcome.
    """

    def __init__(self) -> None:
        self._by_partition: dict[TopicPartition, list[ProducerBatch]] = {}
        self._suspended: dict[TopicPartition, list[ProducerBatch]] = {}
        self._next_expiry_ms = float("inf")

    def of(self, topic_partition: TopicPartition) -> Sequence[ProducerBatch]:
        """Return the batches of a partition."""
        return self._by_partition.get(topic_partition, ())

    def add(self, batch: ProducerBatch, expiry_ms: float) -> None:
        """Add a batch that is sent. expiry_ms: the time at which its delivery timeout is over."""
        batches = self._by_partition.get(batch.topic_partition)
        if batches is None:
            self._by_partition[batch.topic_partition] = [batch]
        else:
            batches.append(batch)
        if expiry_ms < self._next_expiry_ms:
            self._next_expiry_ms = expiry_ms

    def remove(self, batch: ProducerBatch) -> bool:
        """Remove a batch that was answered or has expired. Return False if it was removed before."""
        batches = self._by_partition.get(batch.topic_partition)
        if batches is None or batch not in batches:
            return False
        batches.remove(batch)
        if not batches:
            del self._by_partition[batch.topic_partition]
        return True

    def suspend(self, batch: ProducerBatch, expiry_ms: float) -> None:
        """Keep a batch that was answered until a later one is. It expires meanwhile, as others do."""
        self._suspended.setdefault(batch.topic_partition, []).append(batch)
        self._next_expiry_ms = min(self._next_expiry_ms, expiry_ms)

    def take_suspended(
        self, topic_partition: TopicPartition, is_wanted: Callable[[ProducerBatch], bool] = lambda _: True
    ) -> list[ProducerBatch]:
        """Remove and return the suspended batches of a partition that are wanted."""
        if not self._suspended:
            return []
        taken: list[ProducerBatch] = []
        kept: list[ProducerBatch] = []
        for batch in self._suspended.pop(topic_partition, ()):
            if not batch.is_done:
                (taken if is_wanted(batch) else kept).append(batch)
        if kept:
            self._suspended[topic_partition] = kept
        return taken

    @property
    def next_expiry_ms(self) -> float:
        """A time before which no batch expires."""
        return self._next_expiry_ms

    def take_expired(self, delivery_timeout_ms: float, now_ms: float) -> list[ProducerBatch]:
        """Remove and return the batches whose delivery timeout is over."""
        if now_ms < self._next_expiry_ms:
            return []
        expired = [batch for batch in self if batch.has_reached_delivery_timeout(delivery_timeout_ms, now_ms)]
        for batch in expired:
            self.remove(batch)
            if batch in self._suspended.get(batch.topic_partition, ()):
                self._suspended[batch.topic_partition].remove(batch)
        self._next_expiry_ms = min(
            (batch.created_ms + delivery_timeout_ms for batch in self), default=float("inf")
        )
        return expired

    def __iter__(self) -> Iterator[ProducerBatch]:
        for by_partition in (self._by_partition, self._suspended):
            for batches in by_partition.values():
                yield from batches
