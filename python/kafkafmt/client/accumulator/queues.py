"""The queues of waiting batches, one per partition, and the set of all batches that are not done yet.

A caller that reads a queue and then changes it holds `lock`. A method whose docstring does not say "The lock is held"
acquires the lock itself. A call that interrupts the thread that holds the lock raises RuntimeError: it would deadlock.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.client.accumulator.batch import ProducerBatch
    from kafkafmt.types import TopicPartition


class BatchQueues:
    """A queue for each partition with waiting batches, in the order of their records.

    Incomplete batches are those that wait or are in flight.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # An RLock has no public method that returns its owner; `threading.Condition` uses this one, too. An owner that
        # is stored after `acquire` would be missing for a signal handler that runs between the two steps.
        self.is_locked_here: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        # The last batch of each partition, while it is open for records.
        self.open: dict[TopicPartition, ProducerBatch] = {}
        # The memory that the last batch of each partition needed, with which the next one begins.
        self.capacities: dict[TopicPartition, int] = {}
        self._queues: dict[TopicPartition, deque[ProducerBatch]] = {}
        self._incomplete: set[ProducerBatch] = set()
        self._enqueued = 0

    @property
    def lock(self) -> threading.RLock:
        """The lock of the queues, for a `with` statement. Raises RuntimeError if this thread holds it."""
        self.ensure_unlocked_here()
        return self._lock

    def ensure_unlocked_here(self) -> None:
        """Raise RuntimeError if this thread holds the lock."""
        if self.is_locked_here():
            raise RuntimeError(
                "this thread is in another call of this accumulator: a signal handler or a callback must not append; "
                "let it set a flag"
            )

    def __bool__(self) -> bool:
        """Return whether batches wait."""
        return bool(self._queues)

    @property
    def incomplete_count(self) -> int:
        """The number of batches that are neither acknowledged nor failed."""
        return len(self._incomplete)

    def items(self) -> Iterable[tuple[TopicPartition, deque[ProducerBatch]]]:
        """Return partitions and their queues, none of them empty. The lock is held."""
        return self._queues.items()

    def partitions(self) -> Iterable[TopicPartition]:
        """Return the partitions with waiting batches. The lock is held."""
        return self._queues.keys()

    def last(self, topic_partition: TopicPartition) -> ProducerBatch | None:
        """Return the last waiting batch of a partition, or None. The lock is held."""
        queue = self._queues.get(topic_partition)
        return queue[-1] if queue else None

    def enqueue(self, batch: ProducerBatch) -> None:
        """Append a new batch to its partition's queue. It takes records if it is open. The lock is held."""
        topic_partition = batch.topic_partition
        self.end_appends(topic_partition)
        self._enqueued = number = self._enqueued + 1
        batch.order = (number,)
        queue = self._queues.get(topic_partition)
        if queue is None:
            self._queues[topic_partition] = deque((batch,))
        else:
            queue.append(batch)
        self._incomplete.add(batch)
        if batch.builder is not None:
            self.open[topic_partition] = batch

    def withdraw(self, batch: ProducerBatch, record_count: int) -> bool:
        """Remove a new batch after an error before, during or after `enqueue`, and release the bytes that it holds.

        record_count: the number of records that it began with. If others have appended to it since, or the sender has
            taken it, it stays, takes no more records, and the result is False. Otherwise it has failed.
        """
        topic_partition, reservation = batch.topic_partition, batch.reservation
        with self.lock:
            if self.open.get(topic_partition) is batch:
                self.end_appends(topic_partition)  # a native append does not acquire the lock
            queue = self._queues.get(topic_partition, deque())
            is_waiting, is_incomplete = batch in queue, batch in self._incomplete
            if is_incomplete and (not is_waiting or batch.record_count > record_count):
                return False
            if is_waiting:
                queue.remove(batch)
                if not queue:
                    del self._queues[topic_partition]
            self._incomplete.discard(batch)
            if reservation is not None:
                reservation.release()
        if is_incomplete:  # a flush may wait for it
            batch.complete_exceptionally(InterruptedError("the append was interrupted"))
        return True

    def end_appends(self, topic_partition: TopicPartition) -> None:
        """Close the last batch of a partition for appends. The lock is held."""
        batch = self.open.pop(topic_partition, None)
        if batch is not None:
            builder = batch.builder
            if builder is not None:
                self.capacities[topic_partition] = builder.next_capacity
            batch.end_appends()

    def is_waiting(self, batch: ProducerBatch) -> bool:
        """Return whether a batch is in the queue of its partition."""
        with self.lock:
            return batch in self._queues.get(batch.topic_partition, ())

    def put_back(self, batches: Iterable[ProducerBatch]) -> None:
        """Return taken batches to their places in the queues, except those that were forgotten meanwhile."""
        with self.lock:
            for batch in batches:
                if batch in self._incomplete:
                    self._insert(batch)

    def replace(self, batch: ProducerBatch, parts: Sequence[ProducerBatch]) -> bool:
        """Queue the parts of a taken batch in its place. Return False if it was forgotten. The lock is held."""
        if batch not in self._incomplete:
            return False
        self._incomplete.remove(batch)
        self._incomplete.update(parts)
        for part in reversed(parts):  # each is inserted before the parts after it
            self._insert(part)
        return True

    def _insert(self, batch: ProducerBatch) -> None:
        queue = self._queues.setdefault(batch.topic_partition, deque())
        place = next((k for k, other in enumerate(queue) if other.order > batch.order), len(queue))
        queue.insert(place, batch)

    def take_first(
        self, topic_partition: TopicPartition, is_wanted: Callable[[ProducerBatch], bool]
    ) -> ProducerBatch | None:
        """Remove and return the first batch of a partition, if `is_wanted`. It takes no more records."""
        with self.lock:
            queue = self._queues.get(topic_partition)
            return self._take(topic_partition, queue) if queue and is_wanted(queue[0]) else None

    def take_all(self, is_wanted: Callable[[ProducerBatch], bool]) -> list[ProducerBatch]:
        """Remove and return the batches of every partition before the first that is not wanted."""
        with self.lock:
            return [batch for name in list(self._queues) for batch in self._taken(name, is_wanted)]

    def _taken(
        self, topic_partition: TopicPartition, is_wanted: Callable[[ProducerBatch], bool]
    ) -> Iterator[ProducerBatch]:
        queue = self._queues.get(topic_partition)
        while queue and is_wanted(queue[0]):
            yield self._take(topic_partition, queue)

    def _take(self, topic_partition: TopicPartition, queue: deque[ProducerBatch]) -> ProducerBatch:
        batch = queue.popleft()
        if not queue:
            del self._queues[topic_partition]
            self.end_appends(topic_partition)
        return batch

    def take_incomplete(self) -> tuple[list[ProducerBatch], list[ProducerBatch]]:
        """Remove all batches. Return those that waited, and those in flight."""
        with self.lock:
            waiting = [batch for queue in self._queues.values() for batch in queue]
            in_flight = self._incomplete.difference(waiting)
            for topic_partition in list(self.open):
                self.end_appends(topic_partition)
            self._queues.clear()
            self._incomplete.clear()
        return sorted(waiting, key=_order), sorted(in_flight, key=_order)

    def forget(self, batch: ProducerBatch) -> None:
        """Forget a batch that is done or was split, and release the bytes that it holds."""
        reservation = batch.reservation
        with self.lock:
            self._incomplete.discard(batch)
            if reservation is not None:
                reservation.release()

    def incomplete(self) -> list[ProducerBatch]:
        """Return the batches that wait or are in flight, oldest first."""
        with self.lock:
            return sorted(self._incomplete, key=_order)

    def undelivered(self) -> Undelivered:
        """Return the number of records of incomplete batches, by partition."""
        counts: Counter[TopicPartition] = Counter()
        for batch in self.incomplete():
            counts[batch.topic_partition] += batch.record_count
        return Undelivered(counts)


def _order(batch: ProducerBatch) -> tuple[int, ...]:
    return batch.order


class Undelivered(Counter["TopicPartition"]):
    """Records that no broker acknowledged, by partition.

    >>> from kafkafmt import TopicPartition
    >>> str(Undelivered({TopicPartition("clicks", 0): 3}))
    '3 record(s) in 1 partition(s): clicks-0: 3'
    """

    SHOWN = 5

    def __str__(self) -> str:
        partitions = ", ".join(f"{name}: {count}" for name, count in self.most_common(self.SHOWN))
        more = f", and {len(self) - self.SHOWN} more" if len(self) > self.SHOWN else ""
        return f"{self.total()} record(s) in {len(self)} partition(s): {partitions}{more}"
