"""Merge partitions by time, within a memory plan that is recalculated at each rebalance.

The bytes for reading and for the target are fixed parts of the plan, reserved while the merge is open. The rest is for
buffers. All partitions share them: the document's `buffered.records.bytes` (Memory Management in Kafka Streams,
"Summary"). When one buffer is empty, all are filled up to the same time. The readers pause partitions without room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafkafmt._util.closing import Closing
from kafkafmt.jobs.memory import LargeBatches
from kafkafmt.jobs.readers import Readers, take_sound
from kafkafmt.memory import MemoryBudget, MemoryPlan
from kafkafmt.streams import PartitionGroup, TimestampError
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.memory import ThreadPlan
    from kafkafmt.streams import Merged
    from kafkafmt.streams.timestamps import TimestampExtractor


class Merge(Closing):
    """Return the records of the assigned partitions, the lowest timestamp first. A context manager.

    plan: the memory plan; this uses the share of one thread.
    budget: the budget to reserve from; None: a new one of the thread's bytes.
    timestamp_extractor: as of PartitionGroup. on_invalid_timestamp: called with the error for a record for which it
        returns no timestamp; the record is left out. None: `take` raises the error.
    buffers_ahead: how many buffers of a partition stay in use while the next records are taken.

    `assign` and `revoke` may be called at any time. A partition that is assigned again continues after its last taken
    record. Not safe to use from several threads.
    """

    def __init__(
        self,
        readers: Readers,
        plan: MemoryPlan,
        *,
        budget: MemoryBudget | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        on_invalid_timestamp: Callable[[TimestampError], object] | None = None,
        buffers_ahead: int = 0,
    ) -> None:
        self.readers, self._plan = readers, plan
        self._on_invalid_timestamp = on_invalid_timestamp
        self.budget = MemoryBudget(plan.thread_bytes) if budget is None else budget
        self._assigned: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int] = {}
        self.read_bytes = 0
        with ExitStack() as stack:
            for name, size in plan.fixed_bytes.items():
                stack.enter_context(self.budget.child(name).reserve(size, timeout=0))
            self._buffers_ahead = buffers_ahead
            self._ahead = stack.enter_context(self.budget.child("ahead").reserve(0))
            self._buffers = self.budget.child("buffers")
            stack.callback(self._buffers.close)
            large = LargeBatches(plan, self.budget)
            stack.callback(large.close)
            self._group = PartitionGroup(
                plan.thread_plan(0).buffered_bytes_per_partition,
                budget=self._buffers,
                timestamp_extractor=timestamp_extractor,
                verify=False,
                batch_bound=large,
            )
            self._reserved = stack.pop_all()

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that can be assigned now: all, unless the readers share them with a group."""
        return self.readers.owned

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that the readers know."""
        return self.readers.partitions

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are assigned now, sorted."""
        return sorted(self._assigned)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset after the last taken record; None if the partition was never assigned."""
        if topic_partition not in self._assigned:
            return self._positions.get(topic_partition)
        if not self._group.buffered_bytes_of(topic_partition):  # control batches at the end are passed, too
            return max(self._group.offset(topic_partition), self.readers.offset(topic_partition))
        return self._group.offset(topic_partition)

    def assign(
        self,
        topic_partitions: Iterable[TopicPartition],
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> ThreadPlan:
        """Add these partitions. Returns the new plan of the thread.

        offsets: where partitions begin that another member of a group has read before.

        Raises MemoryPlanError, and changes nothing, if the memory cannot hold one batch of each partition.
        """
        self._positions.update(offsets or {})
        new = sorted({*topic_partitions} - self._assigned)
        plan = self._divide(len(self._assigned) + len(new))
        for topic_partition in new:
            position = self.readers.seek(topic_partition, self._positions.get(topic_partition))
            self._group.add(topic_partition, position)
            self._assigned.add(topic_partition)
        return plan

    def revoke(self, topic_partitions: Iterable[TopicPartition]) -> ThreadPlan:
        """Remove these partitions with their buffers. Returns the new plan of the thread."""
        for topic_partition in sorted(self._assigned.intersection(topic_partitions)):
            self._positions[topic_partition] = self._group.remove(topic_partition)
            self.readers.rest(topic_partition)
            self._assigned.remove(topic_partition)
        return self._divide(len(self._assigned))

    def _divide(self, partitions: int) -> ThreadPlan:
        """Divide the memory again. Raises MemoryPlanError if it cannot hold one batch of each partition."""
        plan = self._plan.thread_plan(partitions + self._buffers_ahead)
        ahead = self._buffers_ahead * plan.buffered_bytes_per_partition
        if partitions:
            self._group.resize(plan.buffer_bytes - ahead)
        self._ahead.resize(ahead)
        return plan

    def take(self, most_records: int | None = None) -> Merged | None:
        """Return the next records, of one partition or several; None after the last record of all assigned ones.

        Raises CorruptRecordError and OSError if a log cannot be read, TimestampError, and MemoryPlanError for a batch
        that is too large for the plan.
        """
        while (merged := take_sound(self._group, self.readers, lambda: self._take(most_records))) is None:
            if not self._fill() and self.readers.is_over:
                return None
        return merged

    def _take(self, most_records: int | None) -> Merged | None:
        """Take the next records that are buffered. Records without a timestamp are left out, or raise the error."""
        while True:
            try:
                return self._group.take_merged(most_records)
            except TimestampError as error:
                if self._on_invalid_timestamp is None:
                    raise
                self._on_invalid_timestamp(error)
                self._group.skip(error.topic_partition)

    def _fill(self) -> bool:
        """Fill the buffers that have room, until no more batches are there. Returns whether one was filled."""
        is_filled = False
        while True:
            wanting = self._group.wanting()
            ready = self.readers.ready(wanting, waits=not is_filled)
            # Partitions that are not wanted had no record for a while, and were finished.
            fed = [one for one in ready if one not in wanting]
            for topic_partition in fed:
                self._feed(topic_partition)
            for topic_partition in self._group.filling():
                if self.readers.is_ready(topic_partition):
                    fed.append(topic_partition)
                    self._feed(topic_partition)
            if not fed:
                return is_filled
            is_filled = True

    def _feed(self, topic_partition: TopicPartition) -> None:
        run = self.readers.read(topic_partition)
        if run is None:
            self._group.finish(topic_partition)
            return
        # Skip offsets that were deleted, or were reported as damage.
        self._group.pass_over(topic_partition, int(run.index["last_offset"].min()))
        fed = 0
        try:
            fed = self._group.feed(topic_partition, run)
        finally:  # `feed` may raise an error of a callback of the budget
            self.read_bytes += int(run.index["size"][:fed].sum())
            if fed < len(run):
                self.readers.seek(topic_partition, self._group.fetch_offset(topic_partition))

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were reserved."""
        return self.budget.peak_bytes

    def stop(self) -> None:
        """Let `take` return None once it would wait for a cluster. Any thread may call this."""
        self.readers.stop()

    def leave(self) -> None:
        """End the reading after the last record: a group's positions are committed."""
        self.readers.leave()

    def close(self) -> None:
        """Drop all buffers, and release all memory."""
        for topic_partition in sorted(self._assigned):
            self._positions[topic_partition] = self._group.remove(topic_partition)
        self._assigned.clear()
        self._reserved.close()
