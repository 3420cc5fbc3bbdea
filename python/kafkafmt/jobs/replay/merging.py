"""Partitions of a log directory merged by time, within a plan that is made anew whenever partitions come or go.

What reading takes is the consumer's part of the plan and what the target holds the producer's; both are reserved for as
long as the merge is open. The rest is buffers, as many bytes for each partition as the plan says for so many of them
(Memory Management in Kafka Streams, "Summary"). Buffers are filled when one of them is empty, all of them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafkafmt.closing import Closing
from kafkafmt.jobs.partition_readers import PartitionReaders, take_sound
from kafkafmt.memory import MemoryBudget, MemoryPlan, PartitionGroup
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.memory import Merged, ThreadPlan


class Merge(Closing):
    """Hands out the records of the partitions that are assigned, the lowest timestamp first. A context manager.

    plan: of the memory, whose first thread this is. budget: what it is reserved from; one of the thread's bytes where
    it is None.

    `assign` and `revoke` may be called at any time. What was taken of a partition is not taken again: assigned anew, it
    goes on where it was. Not safe for threads.
    """

    def __init__(
        self, readers: PartitionReaders, plan: MemoryPlan, *, budget: MemoryBudget | None = None
    ) -> None:
        self._readers, self._plan = readers, plan
        self.budget = MemoryBudget(plan.thread_bytes) if budget is None else budget
        self._assigned: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int] = {}
        self.read_bytes = 0
        fixed = plan.thread_plan(0)
        with ExitStack() as stack:
            for name, size in (("consumer", fixed.consumer_bytes), ("producer", fixed.producer_bytes)):
                stack.enter_context(self.budget.child(name).reserve(size, timeout=0))
            self._buffers = self.budget.child("buffers")
            stack.callback(self._buffers.close)
            self._group = PartitionGroup(
                fixed.buffered_bytes_per_partition, budget=self._buffers, verify=False
            )
            self._reserved = stack.pop_all()

    @property
    def partitions(self) -> list[TopicPartition]:
        """All that there are to assign."""
        return self._readers.partitions

    @property
    def assigned(self) -> list[TopicPartition]:
        return sorted(self._assigned)

    def position(self, topic_partition: TopicPartition) -> int | None:
        """The offset behind the last record that was taken; None for a partition that was never assigned."""
        if topic_partition in self._assigned:
            return self._group.offset(topic_partition)
        return self._positions.get(topic_partition)

    def assign(self, topic_partitions: Iterable[TopicPartition]) -> ThreadPlan:
        """Merge these as well; returns the plan that holds from now on.

        Raises MemoryPlanError where there is no memory for a batch of each partition; then nothing is changed.
        """
        new = sorted({*topic_partitions} - self._assigned)
        plan = self._plan.thread_plan(len(self._assigned) + len(new))
        self._group.resize(plan.buffered_bytes_per_partition)
        for topic_partition in new:
            position = self._readers.seek(topic_partition, self._positions.get(topic_partition))
            self._group.add(topic_partition, position)
            self._assigned.add(topic_partition)
        return plan

    def revoke(self, topic_partitions: Iterable[TopicPartition]) -> ThreadPlan:
        """Merge these no more; what is buffered of them is dropped. Returns the plan that holds from now on."""
        for topic_partition in sorted(self._assigned.intersection(topic_partitions)):
            self._positions[topic_partition] = self._group.remove(topic_partition)
            self._readers.rest(topic_partition)
            self._assigned.remove(topic_partition)
        plan = self._plan.thread_plan(len(self._assigned))
        self._group.resize(plan.buffered_bytes_per_partition)
        return plan

    def take(self, most_records: int | None = None) -> Merged | None:
        """The next records, of one partition or several; None once all that is assigned was taken.

        Raises CorruptRecordError and OSError where a log cannot be read.
        """
        group = self._group
        while (merged := take_sound(group, self._readers, lambda: group.take_merged(most_records))) is None:
            if not self._fill():
                return None
        return merged

    def _fill(self) -> bool:
        """Fill the buffers that have room; was there any?"""
        has_room = False
        while wanting := self._group.wanting():
            has_room = True
            for topic_partition in wanting:
                self._feed(topic_partition)
        return has_room

    def _feed(self, topic_partition: TopicPartition) -> None:
        run = self._readers.read(topic_partition)
        if run is None:
            self._group.finish(topic_partition)
            return
        # What the log has no more, or what was told as damage, is not read up to again.
        self._group.pass_over(topic_partition, int(run.index["last_offset"].min()))
        fed = 0
        try:
            fed = self._group.feed(topic_partition, run)
        finally:  # which may raise what those raise who are asked for memory
            self.read_bytes += int(run.index["size"][:fed].sum())
            if fed < len(run):
                self._readers.seek(topic_partition, self._group.fetch_offset(topic_partition))

    def close(self) -> None:
        """Drop what is buffered and give all memory back."""
        for topic_partition in sorted(self._assigned):
            self._positions[topic_partition] = self._group.remove(topic_partition)
        self._assigned.clear()
        self._reserved.close()
