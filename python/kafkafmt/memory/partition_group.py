"""The queues of several partitions, merged by timestamp (Kafka Streams' PartitionGroup).

The next record is that of the partition whose next record has the smallest timestamp; within a partition records stay
in the order of their offsets, though their timestamps may go back. Nothing is handed out while a partition that is not
finished has nothing: its next record might be the one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.merge import Heads, MergedRecords
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.memory.merged import Merged
from kafkafmt.memory.record_queue import NO_TIMESTAMP, QueueOptions, RecordQueue, Taken
from kafkafmt.sizes import parse_named_size

if TYPE_CHECKING:
    from _kafkafmt.decode import Record
    from _kafkafmt.scan import BatchRun
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.memory.record_queue import TimestampExtractor
    from kafkafmt.types import TopicPartition

_ALL = int(np.iinfo(np.intp).max)
# More at a time make nothing faster.
_MOST_MERGED = 4096


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
        # Those whose next record is known, by rank, which is that in `_ranked`; the others are in `_headless`.
        self._heads = Heads(0)
        self._headless: dict[TopicPartition, RecordQueue] = {}
        self._ranked: list[RecordQueue] = []
        self._ranks: dict[TopicPartition, int] = {}
        self._is_ranked = True
        self._last: RecordQueue | None = None  # the first head, where it is to be settled
        self._placing: RecordQueue | None = None  # what the places of a merge are counted to

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
        self._is_ranked = False

    def remove(self, topic_partition: TopicPartition) -> int:
        """Let go of a partition and of all that is held for it; where its records go on that were not handed out.

        Raises KeyError where it is not there, as all do that take a partition.
        """
        self._settle()
        queue = self._queues.pop(topic_partition)
        queue.close()
        self._take_out(queue)
        self._is_ranked = False
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
        most = _checked(most_records)
        queue = self._next()
        return None if queue is None else self._take_of(queue, most)

    def take_merged(self, most_records: int | None = None) -> Merged | None:
        """As `take`, but of all partitions: until a window is used up, or a partition is next that has none yet.

        Where there is a timestamp extractor, or the budget has no room for the order, they are of one partition still.
        """
        most = _checked(most_records)
        queue = self._next()
        if queue is None:
            return None
        is_alone = len(self._heads) == 1 or self._options.timestamp_extractor is not None
        if is_alone or not (places := self._hold_places(queue, min(most, _MOST_MERGED))):
            taken = self._take_of(queue, most)
            return Merged([taken.topic_partition], MergedRecords(*taken[1:]))
        records, ranks = self._heads.merge(places)
        queue.hold_places(len(records))
        queues = [self._ranked[rank] for rank in ranks]
        for queue in queues:
            self.stream_time = max(self.stream_time, queue.follow_window())
        first = self._ranked[self._heads.first[0]]
        self._last = first if first.is_window_used_up else None
        return Merged([queue.topic_partition for queue in queues], records)

    def _next(self) -> RecordQueue | None:
        """Let go of what was taken, and open the window of the next record; None where it is to be waited for."""
        self._settle()
        self.failed = None
        if not self._is_ranked:
            self._rank()
        if self._headless and not self._find_heads():
            return None
        while self._heads:
            rank, timestamp = self._heads.first
            queue = self._ranked[rank]
            self.failed = queue.topic_partition
            found = queue.open()
            self.failed = None
            self._correct_head(queue, found)
            if found == timestamp:
                return queue
            if found is None and not queue.is_finished:
                return None
        return None

    def _hold_places(self, queue: RecordQueue, most: int) -> int:
        self._placing = queue
        return queue.hold_places(most)

    def _take_of(self, queue: RecordQueue, most: int) -> Taken:
        self._last = queue
        taken = queue.take(*self._heads.limit(), most)
        if queue.partition_time > self.stream_time:
            self.stream_time = queue.partition_time
        return taken

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

    def _rank(self) -> None:
        """Give all partitions their ranks anew: some have come or gone."""
        known = [(self._ranked[rank], timestamp) for rank, timestamp in self._heads.known()]
        self._ranked = sorted(self._queues.values(), key=lambda queue: queue.topic_partition)
        self._ranks = {queue.topic_partition: rank for rank, queue in enumerate(self._ranked)}
        self._heads = Heads(len(self._ranked))
        for queue, timestamp in known:
            self._heads.push(self._ranks[queue.topic_partition], timestamp, queue.open_window)
        self._is_ranked = True

    def _take_out(self, queue: RecordQueue) -> None:
        """Forget the queue's next record, where it was known."""
        if self._headless.pop(queue.topic_partition, None) is None:
            self._heads.remove(self._ranks[queue.topic_partition])

    def _settle(self) -> None:
        """Let go of what was taken last, and put its partition where its next record belongs."""
        if self._placing is not None:
            self._placing.hold_places(0)
            self._placing = None
        queue, self._last = self._last, None
        if queue is not None:
            queue.settle()
            self._correct_head(queue, queue.known_timestamp)

    def _find_heads(self) -> bool:
        """Find the next record of each partition; False where one is to be waited for."""
        is_complete = True
        for topic_partition, queue in list(self._headless.items()):
            self.failed = topic_partition
            timestamp = queue.head_timestamp()
            self.failed = None
            if timestamp is not None:
                self._heads.push(self._ranks[topic_partition], timestamp, queue.open_window)
                del self._headless[topic_partition]
            elif not queue.is_finished:
                is_complete = False
        return is_complete

    def _correct_head(self, queue: RecordQueue, timestamp: int | None) -> None:
        """The first partition's next record has another timestamp or window than it had, or is none."""
        if timestamp is not None:
            self._heads.replace(timestamp, queue.open_window)
        else:
            self._heads.pop()
            self._headless[queue.topic_partition] = queue


def _checked(most_records: int | None) -> int:
    if most_records is not None and most_records < 1:
        raise ValueError(f"most_records: expected 1 or more, found {most_records}")
    return _ALL if most_records is None else min(most_records, _ALL)
