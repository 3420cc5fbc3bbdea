"""Merge partitions of a log directory by time, within a memory plan that is recalculated at each rebalance.

The bytes for reading and for the target are fixed parts of the plan, reserved while the merge is open. The rest is for
buffers. All partitions share them: the document's `buffered.records.bytes` (Memory Management in Kafka Streams,
"Summary"). When one buffer is empty, all are filled up to the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafkafmt._util.closing import Closing
from kafkafmt.jobs.partition_readers import PartitionReaders, take_sound
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

    `assign` and `revoke` may be called at any time. A partition that is assigned again continues after its last taken
    record. Not safe to use from several threads.
    """

    def __init__(
        self,
        readers: PartitionReaders,
        plan: MemoryPlan,
        *,
        budget: MemoryBudget | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        on_invalid_timestamp: Callable[[TimestampError], object] | None = None,
    ) -> None:
        self._readers, self._plan = readers, plan
        self._on_invalid_timestamp = on_invalid_timestamp
        self.budget = MemoryBudget(plan.thread_bytes) if budget is None else budget
        self._assigned: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int] = {}
        self.read_bytes = 0
        with ExitStack() as stack:
            for name, size in plan.fixed_bytes.items():
                stack.enter_context(self.budget.child(name).reserve(size, timeout=0))
            self._buffers = self.budget.child("buffers")
            stack.callback(self._buffers.close)
            self._group = PartitionGroup(
                plan.thread_plan(0).buffered_bytes_per_partition,
                budget=self._buffers,
                timestamp_extractor=timestamp_extractor,
                verify=False,
            )
            self._reserved = stack.pop_all()

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that can be assigned."""
        return self._readers.partitions

    @property
    def assigned(self) -> list[TopicPartition]:
        """The partitions that are assigned now, sorted."""
        return sorted(self._assigned)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset after the last taken record; None if the partition was never assigned."""
        if topic_partition in self._assigned:
            return self._group.offset(topic_partition)
        return self._positions.get(topic_partition)

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> ThreadPlan:
        """Add these partitions. Returns the new plan of the thread.

        Raises MemoryPlanError, and changes nothing, if the memory cannot hold one batch of each partition.
        """
        new = sorted({*topic_partitions} - self._assigned)
        plan = self._plan.thread_plan(len(self._assigned) + len(new))
        self._group.resize(plan.buffer_bytes)
        for topic_partition in new:
            position = self._readers.seek(topic_partition, self._positions.get(topic_partition))
            self._group.add(topic_partition, position)
            self._assigned.add(topic_partition)
        return plan

    def revoke(self, topic_partitions: Iterable[TopicPartition]) -> ThreadPlan:
        """Remove these partitions with their buffers. Returns the new plan of the thread."""
        for topic_partition in sorted(self._assigned.intersection(topic_partitions)):
            self._positions[topic_partition] = self._group.remove(topic_partition)
            self._readers.rest(topic_partition)
            self._assigned.remove(topic_partition)
        plan = self._plan.thread_plan(len(self._assigned))
        if self._assigned:
            self._group.resize(plan.buffer_bytes)
        return plan

    def take(self, most_records: int | None = None) -> Merged | None:
        """Return the next records, of one partition or several; None after the last record of all assigned ones.

        Raises CorruptRecordError and OSError if a log cannot be read, and TimestampError.
        """
        while (merged := take_sound(self._group, self._readers, lambda: self._take(most_records))) is None:
            if not self._fill():
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
        """Fill the buffers that have room. Returns whether one had."""
        had_room = False
        for topic_partition in self._group.filling():
            had_room = True
            self._feed(topic_partition)
        return had_room

    def _feed(self, topic_partition: TopicPartition) -> None:
        run = self._readers.read(topic_partition)
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
                self._readers.seek(topic_partition, self._group.fetch_offset(topic_partition))

    def close(self) -> None:
        """Drop all buffers, and release all memory."""
        for topic_partition in sorted(self._assigned):
            self._positions[topic_partition] = self._group.remove(topic_partition)
        self._assigned.clear()
        self._reserved.close()
