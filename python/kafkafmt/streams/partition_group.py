"""Merge the queues of several partitions by timestamp (Kafka Streams' PartitionGroup).

The group returns the record with the smallest timestamp among the next records of all partitions. Within a partition,
records stay in the order of their offsets, even if timestamps decrease. Nothing is returned while an unfinished
partition is empty: its next record might have the smallest timestamp.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from _kafkafmt.streams.merge import Heads, MergedRecords
from kafkafmt._util.sizes import parse_named_size
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.memory.plan import DEFAULT_LEAST_BATCH_BYTES
from kafkafmt.streams.buffer_bound import BufferBound
from kafkafmt.streams.merged import Merged
from kafkafmt.streams.record_queue import NO_TIMESTAMP, QueueOptions, RecordQueue, RecordSlice

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from _kafkafmt.records.decode import Record
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.streams.batch_bound import BatchBound
    from kafkafmt.streams.timestamps import TimestampExtractor
    from kafkafmt.types import TopicPartition

_ALL = int(np.iinfo(np.intp).max)
# More records at once are not faster.
_MAX_MERGED = 4096
# Beside one batch: a small decompressor, the least buffer and its rows.
DEFAULT_LEAST_BYTES = DEFAULT_LEAST_BATCH_BYTES + 512 * 1024


class PartitionGroup:
    """Merge partitions by timestamp; buffer up to `buffered_bytes` of raw batches for all of them.

    Not safe to use from several threads at once.

    buffered_bytes: bytes, or a text such as `64m`. It is the document's `buffered.records.bytes`. Busy partitions use
        what others leave. An empty partition always accepts one batch and its buffer.
    least_bytes: what each partition may always hold, or an equal part of `buffered_bytes` if that is less. The default
        is enough for a batch of Kafka's default `max.message.bytes`. With `buffered_bytes`, all parts are equal.
    budget: reserves the bytes of all partitions.
    timestamp_extractor: called with a Record and the largest timestamp of its partition so far (-1 at first). It
        returns the timestamp of the record, from 0 to 2^63 - 1. If None, the record's own timestamp is used.
    verify: check CRCs.
    max_decompressed_bytes: the limit for each batch, bytes or a text.
    batch_bound: refuses batches, and records of compressed ones, that are too large for the memory of a job. None: none
        is refused.

    Attributes:
        stream_time: the largest timestamp that was returned, -1 at first.
        failed: the partition whose next record could not be read, after `take` raised; else None.
    """

    def __init__(
        self,
        buffered_bytes: int | str,
        *,
        least_bytes: int | str = DEFAULT_LEAST_BYTES,
        budget: MemoryBudget | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        verify: bool = True,
        max_decompressed_bytes: int | str = DEFAULT_MAX_DECOMPRESSED_BYTES,
        batch_bound: BatchBound | None = None,
    ) -> None:
        self.stream_time = NO_TIMESTAMP
        self.failed: TopicPartition | None = None
        self._bound = BufferBound(
            parse_named_size("buffered_bytes", buffered_bytes), parse_named_size("least_bytes", least_bytes)
        )
        self._budget = budget
        limit = parse_named_size("max_decompressed_bytes", max_decompressed_bytes)
        self._options = QueueOptions(timestamp_extractor, verify, limit, batch_bound)
        self._queues: dict[TopicPartition, RecordQueue] = {}
        # The queues whose next record is known, by rank, the index in `_ranked`. The others are in `_headless`.
        self._heads = Heads(0)
        self._headless: dict[TopicPartition, RecordQueue] = {}
        self._ranked: list[RecordQueue] = []
        self._ranks: dict[TopicPartition, int] = {}
        self._is_ranked = True
        self._last: RecordQueue | None = None  # the next call releases its taken records
        self._placing: RecordQueue | None = None  # counts the places of the last merge

    # Partitions

    def __len__(self) -> int:
        return len(self._queues)

    def __contains__(self, topic_partition: object) -> bool:
        return topic_partition in self._queues

    @property
    def partitions(self) -> Sequence[TopicPartition]:
        """The partitions in the order in which they were added."""
        return tuple(self._queues)

    def add(self, topic_partition: TopicPartition, offset: int = 0) -> None:
        """Add a partition, whose records are returned from `offset` on.

        Raises ValueError if the group has the partition already or the offset is negative, and MemoryBudgetError if the
        budget is closed.
        """
        if topic_partition in self._queues:
            raise ValueError(f"{topic_partition} is in the group already")
        if offset < 0:
            raise ValueError(f"{topic_partition}: expected an offset of 0 or more, found {offset}")
        queue = RecordQueue(topic_partition, offset, self._bound, self._options, self._budget)
        self._queues[topic_partition] = self._headless[topic_partition] = queue
        self._is_ranked = False

    def remove(self, topic_partition: TopicPartition) -> int:
        """Remove a partition and release its bytes. Returns the offset of its first record that was not returned.

        This and all methods that take a partition raise KeyError if the group does not have it.
        """
        self._release_taken()
        queue = self._queues.pop(topic_partition)
        queue.close()
        self._take_out(queue)
        self._is_ranked = False
        if self.failed == topic_partition:
            self.failed = None
        return queue.offset

    def resize(self, buffered_bytes: int | str) -> None:
        """Change the bound of all partitions. Batches beyond it stay until their records were returned."""
        self._bound.resize(parse_named_size("buffered_bytes", buffered_bytes))

    def offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the partition's next record, or a lower one if it is not known yet."""
        return self._queues[topic_partition].offset

    def fetch_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset from which the partition is to be fed next."""
        return self._queues[topic_partition].fetch_offset

    # What comes in

    def feed(self, topic_partition: TopicPartition, run: BatchRun) -> int:
        """Copy as many batches of a run as the partition has room for. Returns how many of the run were accepted.

        Feed the others again, from `fetch_offset` on, once `wanting` lists the partition. An empty partition always
        accepts one batch. Control batches and empty batches are skipped, and count as accepted. Raises ValueError if
        the run begins after a batch that was not accepted.
        """
        self._release_taken()
        return self._queues[topic_partition].feed(run)

    def pass_over(self, topic_partition: TopicPartition, offset: int) -> None:
        """Do not wait for batches before `offset`: they were deleted or compacted since, or are damaged."""
        self._queues[topic_partition].pass_over(offset)

    def wanting(self) -> list[TopicPartition]:
        """Return the partitions that have room and are not finished; those that run out first come first."""
        self._release_taken()
        wanting = [tp for tp, queue in self._queues.items() if queue.is_wanting]
        wanting.sort(key=lambda tp: self._queues[tp].runs_out_at)
        return wanting

    def filling(self) -> Iterator[TopicPartition]:
        """Iterate over the partitions to feed until the bound is reached: always the one that runs out first.

        So all partitions are buffered up to about the same time, and busy ones get more bytes. Feed or finish each
        partition before the next one is requested; one that was not fed is left out from then on. The iterator ends
        once no partition has room.
        """
        queues = [(self._queues[tp].runs_out_at, tp) for tp in self.wanting()]
        heapq.heapify(queues)
        is_full = False  # the partition that runs out first had no room
        while queues:
            topic_partition = queues[0][1]
            queue = self._queues[topic_partition]
            was_fed, fetch_offset = False, queue.fetch_offset
            if queue.is_wanting_part if is_full else queue.is_wanting:
                yield topic_partition
                was_fed = queue.fetch_offset > fetch_offset
                is_full = is_full or not (queue.is_finished or queue.is_wanting)
            if was_fed:
                heapq.heapreplace(queues, (queue.runs_out_at, topic_partition))
            else:
                heapq.heappop(queues)

    def finish(self, topic_partition: TopicPartition) -> None:
        """Mark the partition as finished until it is fed again: `take` does not wait for it once it is empty."""
        self._queues[topic_partition].finish()

    @property
    def buffered_bytes(self) -> int:
        """The bytes of all partitions: raw batches, their index, buffers and the rows of their records."""
        return sum(queue.held_bytes for queue in self._queues.values())

    def buffered_bytes_of(self, topic_partition: TopicPartition) -> int:
        """Return the part of `buffered_bytes` that belongs to this partition."""
        return self._queues[topic_partition].held_bytes

    # What goes out

    def take(self, most_records: int | None = None) -> RecordSlice | None:
        """Return the next records of one partition: those of its buffer that come before any other partition's.

        Returns None if an unfinished partition is empty, or if all are. The records of the previous call are released.

        Raises KafkaFormatError if the next batch of a partition is damaged; message and `failed` name the partition.
        All records before it were returned; continue with `skip` or `remove`. The same holds for TimestampError, which
        says that a timestamp extractor raised an error, or returned no timestamp. A MemoryError of the extractor is
        raised unchanged, and the next call calls it again. Raises ValueError if `most_records` is below 1.
        """
        most = _checked(most_records)
        queue = self._next()
        return None if queue is None else self._take_of(queue, most)

    def take_merged(self, most_records: int | None = None) -> Merged | None:
        """Return the next records of all partitions, in merged order; otherwise as `take`.

        They end where a buffer is used up, or before a partition that has no buffer yet. With a timestamp extractor, or
        if the budget has no room for the order, they are of one partition.
        """
        most = _checked(most_records)
        queue = self._next()
        if queue is None:
            return None
        is_alone = len(self._heads) == 1 or self._options.timestamp_extractor is not None
        if is_alone or not (places := self._reserve_places(queue, min(most, _MAX_MERGED))):
            taken = self._take_of(queue, most)
            return Merged([taken.topic_partition], MergedRecords(*taken[1:]))
        records, ranks = self._heads.merge(places)
        queue.reserve_places(len(records))
        queues = [self._ranked[rank] for rank in ranks]
        for queue in queues:
            self.stream_time = max(self.stream_time, queue.follow_cursor())
        first = self._ranked[self._heads.first[0]]
        self._last = first if first.is_cursor_used_up else None
        return Merged([queue.topic_partition for queue in queues], records)

    def _next(self) -> RecordQueue | None:
        """Release taken records, and open the buffer of the next record. Returns its queue; None if there is none."""
        queue = self._find_next()
        if queue is None:  # the caller waits for batches, and their reader may wait for bytes
            self._bound.release_excess()
        return queue

    def _find_next(self) -> RecordQueue | None:
        self._release_taken()
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

    def _reserve_places(self, queue: RecordQueue, most: int) -> int:
        self._placing = queue
        return queue.reserve_places(most)

    def _take_of(self, queue: RecordQueue, most: int) -> RecordSlice:
        self._last = queue
        taken = queue.take(*self._heads.limit(), most)
        if queue.partition_time > self.stream_time:
            self.stream_time = queue.partition_time
        return taken

    def pop(self) -> tuple[TopicPartition, Record] | None:
        """Return the next record and its partition; None if `take` returns None. Raises as `take`."""
        taken = self.take(1)
        if taken is None:
            return None
        return taken.topic_partition, next(taken.located.iterate(taken.first))

    def skip(self, topic_partition: TopicPartition) -> int:
        """Skip what `take` raised for: the rest of a damaged batch, or one record without an extracted timestamp.

        Returns the offset after it. Raises LookupError if the partition is not `failed`.
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
        """Assign the ranks again after partitions were added or removed."""
        known = [(self._ranked[rank], timestamp) for rank, timestamp in self._heads.known()]
        self._ranked = sorted(self._queues.values(), key=lambda queue: queue.topic_partition)
        self._ranks = {queue.topic_partition: rank for rank, queue in enumerate(self._ranked)}
        self._heads = Heads(len(self._ranked))
        for queue, timestamp in known:
            self._heads.push(self._ranks[queue.topic_partition], timestamp, queue.open_cursor)
        self._is_ranked = True

    def _take_out(self, queue: RecordQueue) -> None:
        """Remove the queue from the heads, or from `_headless`."""
        if self._headless.pop(queue.topic_partition, None) is None:
            self._heads.remove(self._ranks[queue.topic_partition])

    def _release_taken(self) -> None:
        """Release the records that were taken last, and move their partition to the place of its next record."""
        if self._placing is not None:
            self._placing.reserve_places(0)
            self._placing = None
        queue, self._last = self._last, None
        if queue is not None:
            queue.release_taken()
            self._correct_head(queue, queue.known_timestamp)

    def _find_heads(self) -> bool:
        """Find the next record of each partition. Returns False if an unfinished partition has none."""
        is_complete = True
        for topic_partition, queue in list(self._headless.items()):
            self.failed = topic_partition
            timestamp = queue.head_timestamp()
            self.failed = None
            if timestamp is not None:
                self._heads.push(self._ranks[topic_partition], timestamp, queue.open_cursor)
                del self._headless[topic_partition]
            elif not queue.is_finished:
                is_complete = False
        return is_complete

    def _correct_head(self, queue: RecordQueue, timestamp: int | None) -> None:
        """Update the first head: its queue's next record has another timestamp or buffer. None: it has no record."""
        if timestamp is not None:
            self._heads.replace(timestamp, queue.open_cursor)
        else:
            self._heads.pop()
            self._headless[queue.topic_partition] = queue


def _checked(most_records: int | None) -> int:
    if most_records is not None and most_records < 1:
        raise ValueError(f"most_records: expected 1 or more, found {most_records}")
    return _ALL if most_records is None else min(most_records, _ALL)
