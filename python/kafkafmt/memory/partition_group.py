"""The queues of several partitions, merged by timestamp (Kafka Streams' PartitionGroup).

The next record is that of the partition whose next record has the smallest timestamp; within a partition records stay
in the order of their offsets, though their timestamps may go back. Nothing is handed out while a partition that is not
finished has nothing: its next record might be the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.memory.record_queue import NO_TIMESTAMP, QueueOptions, RecordQueue, Taken
from kafkafmt.sizes import parse_named_size

if TYPE_CHECKING:
    from _kafkafmt.decode import Record
    from _kafkafmt.scan import BatchRun
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.memory.record_queue import TimestampExtractor
    from kafkafmt.types import TopicPartition

_LATEST = int(np.iinfo(np.int64).max)
_ALL = int(np.iinfo(np.intp).max)


class PartitionGroup:
    """Partitions merged by timestamp, each with up to `buffered_bytes_per_partition` of raw batches.

    buffered_bytes_per_partition: bytes, or a text as `1m`; one batch and its window are always taken. budget: of what
    is held in all. timestamp_extractor: takes a Record and the largest timestamp that its partition has had (-1 before
    there is one), and returns its timestamp, 0 or more; else it is the record's own. verify: check CRCs.
    max_decompressed_bytes: of any one batch, bytes or a text. Not for several threads at once.

    Attributes:
        stream_time: the largest timestamp that was handed out, -1 before there is one.
        failed: the partition whose next record could not be read, when `take` raised; else None.
    """

    def __init__(
        self,
        buffered_bytes_per_partition: int | str,
        *,
        budget: MemoryBudget | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        verify: bool = True,
        max_decompressed_bytes: int | str = DEFAULT_MAX_DECOMPRESSED_BYTES,
    ) -> None:
        self.stream_time = NO_TIMESTAMP
        self.failed: TopicPartition | None = None
        self._bound = parse_named_size("buffered_bytes_per_partition", buffered_bytes_per_partition)
        self._budget = budget
        limit = parse_named_size("max_decompressed_bytes", max_decompressed_bytes)
        self._options = QueueOptions(timestamp_extractor, verify, limit)
        self._queues: dict[TopicPartition, RecordQueue] = {}
        # (timestamp, partition, queue) of those whose next record is known; the others are in `_headless`.
        self._heads: list[tuple[int, TopicPartition, RecordQueue]] = []
        self._headless: dict[TopicPartition, RecordQueue] = {}
        self._last: RecordQueue | None = None

    # Partitions

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._queues

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """In the order in which they were added."""
        return tuple(self._queues)

    def add(self, topic_partition: TopicPartition, offset: int = 0) -> None:
        """Take in a partition, whose records are handed out from `offset` on.

        Raises ValueError where it is there already, and MemoryBudgetError where the budget is closed.
        """
        if topic_partition in self._queues:
            raise ValueError(f"{topic_partition} is in the group already")
        if offset < 0:
            raise ValueError(f"{topic_partition}: expected an offset of 0 or more, found {offset}")
        queue = RecordQueue(topic_partition, offset, self._bound, self._options, self._budget)
        self._queues[topic_partition] = self._headless[topic_partition] = queue

    def remove(self, topic_partition: TopicPartition) -> int:
        """Let go of a partition and of all that is held for it; where its records go on that were not handed out.

        Raises KeyError where it is not there, as all do that take a partition.
        """
        self._settle()
        queue = self._queues.pop(topic_partition)
        queue.close()
        self._take_out(queue)
        if self.failed == topic_partition:
            self.failed = None
        return queue.offset

    def resize(self, buffered_bytes_per_partition: int | str) -> None:
        """Have another bound. What is held above it stays until it is used up."""
        self._bound = parse_named_size("buffered_bytes_per_partition", buffered_bytes_per_partition)
        for queue in self._queues.values():
            queue.buffered_bytes_bound = self._bound

    def offset(self, topic_partition: TopicPartition) -> int:
        """Of the partition's next record, or less where that is not known yet."""
        return self._queues[topic_partition].offset

    def fetch_offset(self, topic_partition: TopicPartition) -> int:
        """Where the batches begin that the partition is to be fed next."""
        return self._queues[topic_partition].fetch_offset

    # What comes in

    def feed(self, topic_partition: TopicPartition, run: BatchRun) -> int:
        """Copy the batches of a run in, as many as the partition has room for; how many those are.

        The others are to be fed again, from `fetch_offset` on, once the partition is `wanting`. Where a partition holds
        nothing, one batch is always taken. Control batches and empty ones are left out. Raises ValueError for batches
        behind those that were left.
        """
        self._settle()
        return self._queues[topic_partition].feed(run)

    def pass_over(self, topic_partition: TopicPartition, offset: int) -> None:
        """Wait for no batches in front of `offset`: the log has lost or compacted them since, or they are damaged."""
        self._queues[topic_partition].pass_over(offset)

    def wanting(self) -> list[TopicPartition]:
        """The partitions that have room and are not finished: those first that nothing can be handed out without."""
        self._settle()
        wanting = [tp for tp, queue in self._queues.items() if queue.is_wanting]
        wanting.sort(key=lambda tp: not self._queues[tp].is_empty)
        return wanting

    def finish(self, topic_partition: TopicPartition) -> None:
        """Nothing more is to come, until it is fed again: nobody waits for the partition once it is empty."""
        self._queues[topic_partition].is_finished = True

    @property
    def buffered_bytes(self) -> int:
        """All that is held: raw batches, their index, windows and the rows of their records."""
        return sum(queue.held_bytes for queue in self._queues.values())

    def buffered_bytes_of(self, topic_partition: TopicPartition) -> int:
        """What of `buffered_bytes` is held for that partition."""
        return self._queues[topic_partition].held_bytes

    # What goes out

    def take(self, most_records: int | None = None) -> Taken | None:
        """The next records, all of one partition, as many as come before any of another, and as its window has.

        None where a partition that is not finished holds nothing, or all are empty. What was taken before is let go of.

        Raises KafkaFormatError where the next batch of a partition is damaged; its message and `failed` say which. What
        is before it was handed out, and the group goes on after `skip` or `remove`. Raises what a timestamp extractor
        raises, and ValueError for a timestamp below 0 or what is none, with partition and offset.
        """
        most = _ALL if most_records is None else min(most_records, _ALL)
        if most < 1:
            raise ValueError(f"most_records: expected 1 or more, found {most_records}")
        self._settle()
        self.failed = None
        if self._headless and not self._find_heads():
            return None
        heads = self._heads
        while heads:
            timestamp, topic_partition, queue = heads[0]
            self.failed = topic_partition
            found = queue.open()
            self.failed = None
            if found != timestamp:
                self._correct_head(found)
                if found is None and not queue.is_finished:
                    return None
                continue
            self._last = queue
            taken = queue.take(*self._limit(topic_partition), most)
            if queue.partition_time > self.stream_time:
                self.stream_time = queue.partition_time
            return taken
        return None

    def _limit(self, topic_partition: TopicPartition) -> tuple[int, bool]:
        """Up to when the first partition may go, before the second is the next; and whether at that time, too."""
        heads = self._heads
        if len(heads) == 1:
            return _LATEST, True
        second = heads[1] if len(heads) == 2 or heads[1] < heads[2] else heads[2]
        return second[0], topic_partition < second[1]

    def pop(self) -> tuple[TopicPartition, Record] | None:
        """The next record and its partition; None where `take` gives None."""
        taken = self.take(1)
        if taken is None:
            return None
        return taken.topic_partition, next(taken.located.iterate(taken.first))

    def skip(self, topic_partition: TopicPartition) -> int:
        """Leave out what `take` raised for; the offset behind it.

        That is a damaged batch, what is left of it, or one record that has no timestamp by the extractor. Raises
        LookupError where the partition is not `failed`.
        """
        if self.failed != topic_partition:
            raise LookupError(
                f"{topic_partition}: expected the partition that could not be read, {self.failed}"
            )
        queue = self._queues[topic_partition]
        offset = queue.skip()
        self._take_out(queue)
        self._headless[topic_partition] = queue
        self.failed = None
        return offset

    def _take_out(self, queue: RecordQueue) -> None:
        """Forget the queue's next record, where it was known."""
        if self._headless.pop(queue.topic_partition, None) is None:
            self._heads = [head for head in self._heads if head[2] is not queue]
            heapify(self._heads)

    def _settle(self) -> None:
        """Let go of what was taken last, and put its partition where its next record belongs."""
        queue, self._last = self._last, None
        if queue is None:
            return
        queue.settle()
        timestamp = queue.known_timestamp
        if timestamp is not None:
            heapreplace(self._heads, (timestamp, queue.topic_partition, queue))
        else:
            heappop(self._heads)
            self._headless[queue.topic_partition] = queue

    def _find_heads(self) -> bool:
        """Find the next record of each partition; False where one is to be waited for."""
        is_complete = True
        for topic_partition, queue in list(self._headless.items()):
            self.failed = topic_partition
            timestamp = queue.head_timestamp()
            self.failed = None
            if timestamp is not None:
                heappush(self._heads, (timestamp, topic_partition, queue))
                del self._headless[topic_partition]
            elif not queue.is_finished:
                is_complete = False
        return is_complete

    def _correct_head(self, timestamp: int | None) -> None:
        """The first partition's batch has been opened, and its next record has another timestamp, or is none."""
        _, topic_partition, queue = self._heads[0]
        if timestamp is not None:
            heapreplace(self._heads, (timestamp, topic_partition, queue))
        else:
            heappop(self._heads)
            self._headless[topic_partition] = queue
