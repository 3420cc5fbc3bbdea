"""Queue the raw batches of one partition, and know the timestamp of its next record (Kafka Streams' RecordQueue).

Batches are kept as raw bytes, compressed as they came, so that a bound in bytes holds (Memory Management in Kafka
Streams, "Deserialized Objects Buffering"). Only the first batch has a buffer of located records. Its first timestamp is
read from the header if that is certain. The user's timestamp extractor is called for a record once it is the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.batches.scan import BatchRun
from _kafkafmt.streams.merge import PLACE_BYTES
from _kafkafmt.streams.record_cursor import INDEX_ROW_BYTES, RecordCursor
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.runs import chunk_ranges, select_batches
from kafkafmt.streams.decode_buffers import DecodeBuffers, buffers_at
from kafkafmt.streams.held_bytes import HeldBytes
from kafkafmt.streams.timestamps import TimestampError
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.records.decode import LocatedRecords, Record
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.streams.batch_bound import BatchBound
    from kafkafmt.streams.buffer_bound import BufferBound
    from kafkafmt.streams.timestamps import TimestampExtractor
    from kafkafmt.types import TopicPartition

NO_TIMESTAMP = -1
# Small batches are copied, and later released, in chunks of this size.
_CHUNK_BYTES = 64 * 1024
_LATEST = np.iinfo(np.int64).max


class RecordSlice(NamedTuple):
    """The next records of a partition: those from `first` to before `stop` of `located`.

    They stay valid as long as this object exists. Their bytes count as used until the group is asked again.
    """

    topic_partition: TopicPartition
    located: LocatedRecords
    first: int
    stop: int

    def records(self) -> Iterator[Record]:
        """Iterate over the records as `Record` objects."""
        return self.located.iterate(self.first, self.stop)


@dataclass(frozen=True)
class QueueOptions:
    """The options that all queues of a group share; see `PartitionGroup`."""

    timestamp_extractor: TimestampExtractor | None = None
    verify: bool = True
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    batch_bound: BatchBound | None = None


class _Chunk(NamedTuple):
    """Batches that are copied and released together. size: their bytes with those of their index rows."""

    run: BatchRun
    size: int


class RecordQueue:
    """The batches of a partition from `offset` on, within `bound`; one batch and its buffer always fit.

    Raises MemoryBudgetError if the budget is closed.

    Attributes:
        offset: that of the next record, or a lower one if it is not known yet.
        fetch_offset: the offset from which the queue is to be fed next.
        partition_time: the largest timestamp that was taken, -1 at first.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        bound: BufferBound,
        options: QueueOptions,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.offset = self.fetch_offset = self._start = offset
        self._accepted_end = offset  # the offset after the batches that were accepted
        self.partition_time = NO_TIMESTAMP
        self._options = options
        self._bound = bound
        self._held = HeldBytes(budget, bound)
        self._last_timestamp = NO_TIMESTAMP
        self._chunks: deque[_Chunk] = deque()
        self._number = 0  # of the first batch in the first chunk with records left
        self._buffers: DecodeBuffers | None = None
        self._cursor: RecordCursor | None = None
        self._extracted: int | None = None
        self._places_bytes = 0
        self._refused_bytes = 0
        self._refused_offset: int | None = None
        self._is_budget_short = False  # the budget refused a chunk, and no chunk was released since

    @property
    def held_bytes(self) -> int:
        """All bytes in use: raw batches with their index rows, and the buffer with its rows."""
        return self._held.count

    @property
    def is_empty(self) -> bool:
        """Whether no batch is buffered."""
        return not self._chunks

    @property
    def is_finished(self) -> bool:
        """Whether no more batches will be fed, so that the group does not wait for this queue."""
        return not self._held.has_part

    def finish(self) -> None:
        """Leave the part of the bound to other queues, until this one is fed again."""
        self._held.keep_part(False)

    @property
    def is_wanting(self) -> bool:
        """Whether the queue is not finished, and has room for what it refused last. An empty queue has room."""
        return self._is_wanting(self._bound.batch_room(self._held))

    @property
    def is_wanting_part(self) -> bool:
        """Whether the queue is wanting, and the room is in its part of the bound."""
        return self._is_wanting(self._bound.batch_room(self._held, is_shared=False))

    @property
    def runs_out_at(self) -> int:
        """The order in which queues are fed: the lowest number first.

        It is the timestamp up to which records are buffered, if the headers of batches show it; so all partitions are
        buffered up to the same time. With a timestamp extractor it is the number of buffered bytes.
        """
        if self.is_empty:
            return NO_TIMESTAMP - 1
        return self._last_timestamp if self._options.timestamp_extractor is None else self._held.count

    def _is_wanting(self, room: int) -> bool:
        if self.is_finished or self.is_empty:
            return not self.is_finished
        return not self._is_budget_short and max(self._refused_bytes, 1) <= room

    # What comes in

    def feed(self, run: BatchRun) -> int:
        """Copy as many batches of a run as there is room for. Returns how many of the run were accepted.

        An empty queue always accepts one. Batches below `fetch_offset`, empty batches and control batches are skipped,
        and count as accepted. Raises ValueError if the run begins after a batch that was refused.
        """
        self._ensure_follows(run)
        self._held.keep_part(True)
        stop = 0
        wanted = _wanted(run, self.fetch_offset, verify=self._options.verify)
        max_bytes = max(min(_CHUNK_BYTES, self._bound.part_bytes // 8), 1)
        try:
            for first, end in chunk_ranges(run.index["size"].astype(np.int64) + INDEX_ROW_BYTES, max_bytes):
                numbers = wanted[(wanted >= first) & (wanted < end)]
                taken = self._take_in(run, numbers) if len(numbers) else 0
                if taken < len(numbers):
                    stop = int(numbers[taken])
                    break
                stop = end
        finally:  # a callback of the budget may raise: batches that were copied already must not be fed again
            if stop:
                self._accepted_end = max(self._accepted_end, int(run.index["last_offset"][stop - 1]) + 1)
                self.pass_over(self._accepted_end)
        if not self._chunks:
            self.offset = max(self.offset, self._accepted_end)
        self._remember_refused(run, stop)
        return stop

    def pass_over(self, offset: int) -> None:
        """Skip to `offset`: `feed` continues there, unless it is past it already.

        It may be within a batch. All records of that batch at or after `self.offset` are kept.
        """
        if offset > self.fetch_offset:
            self.fetch_offset, self._refused_offset = offset, None

    def _ensure_follows(self, run: BatchRun) -> None:
        refused = self._refused_offset
        if refused is not None and len(run) and int(run.index["last_offset"][0]) > refused:
            found = int(run.index["last_offset"][0])
            raise ValueError(
                f"{self.topic_partition}: expected batches from offset {self.fetch_offset} on, for which there was "
                f"no room, found the last offset {found}"
            )

    def _remember_refused(self, run: BatchRun, stop: int) -> None:
        if stop == len(run):
            self._refused_offset = None
            return
        # Wait for room for the whole rest, to avoid a feed for each batch, but for half of the part at most.
        rest = run.end_position - int(run.index["position"][stop])
        self._refused_offset = int(run.index["last_offset"][stop])
        self._refused_bytes = max(self._refused_bytes, min(rest, self._bound.part_bytes // 2))

    def _take_in(self, run: BatchRun, numbers: NDArray[np.intp]) -> int:
        """Copy all of these batches or none; an empty queue copies at least one. Returns how many."""
        if self._copy_in(run, numbers, is_needed=False):
            return len(numbers)
        return int(self.is_empty and self._copy_in(run, numbers[:1], is_needed=True))

    def _copy_in(self, run: BatchRun, numbers: NDArray[np.intp], *, is_needed: bool) -> bool:
        rows = run.index[numbers]
        start, end = int(rows["position"][0]), int(rows["position"][-1]) + int(rows["size"][-1])
        size = end - start + len(rows) * INDEX_ROW_BYTES
        self._admit(run, int(numbers[0]), int(rows["size"].max()))
        has_room = size <= self._bound.batch_room(self._held)
        if not ((has_room or is_needed) and self._held.try_add(size)):
            if not is_needed:
                self._refused_bytes, self._is_budget_short = size, has_room
                return False
            self._held.add(size)
        try:
            copied = bytes(memoryview(run.buffer).cast("B")[start - run.origin : end - run.origin])
            self._chunks.append(_Chunk(BatchRun(copied, rows, start), size))
        except BaseException:  # as a MemoryError
            self._held.remove(size)
            raise
        self._held.count_batches(size)
        self._last_timestamp = int(rows["max_timestamp"][-1])
        return True

    def _admit(self, run: BatchRun, number: int, size: int) -> None:
        """Raise MemoryPlanError if the job has no memory for so many bytes of one batch."""
        bound = self._options.batch_bound
        if bound is not None:
            bound.admit(self.topic_partition, run, number, size)

    # What goes out

    @property
    def known_timestamp(self) -> int | None:
        """The timestamp of the next record, if that is located and its timestamp known; else None."""
        if self._cursor is None or self._options.timestamp_extractor is not None:
            return self._extracted
        return self._cursor.timestamp

    @property
    def open_cursor(self) -> RecordCursor | None:
        """The cursor of the buffer with the next record; None if there is no buffer, or a timestamp extractor."""
        return None if self._options.timestamp_extractor is not None else self._cursor

    @property
    def is_cursor_used_up(self) -> bool:
        """Whether all records of the open decode buffer were taken."""
        return self._cursor is not None and self._cursor.next == self._cursor.count

    def head_timestamp(self) -> int | None:
        """Return the timestamp of the next record; None if there is no record.

        It is taken from the batch header if possible: Kafka's format defines there the timestamp of the first record.
        If the record itself is later, `open` corrects this. If it is earlier, which no known producer writes, it is
        merged by the header's timestamp. Raises KafkaFormatError for a damaged batch, and TimestampError if the
        extractor raises an error or returns no timestamp.
        """
        if self._cursor is None:
            by_header = self._timestamp_by_header()
            if by_header is not None:
                return by_header
        return self.open()

    def _timestamp_by_header(self) -> int | None:
        if self._buffers is not None or not self._chunks or self._options.timestamp_extractor is not None:
            return None
        row = self._chunks[0].run.index[self._number]
        if row["magic"] < 2 or row["has_delete_horizon"] or row["base_offset"] < self._first_wanted:
            return None
        is_log_append = row["timestamp_type"] == TimestampType.LOG_APPEND_TIME
        return int(row["max_timestamp"] if is_log_append else row["base_timestamp"])

    @property
    def _first_wanted(self) -> int:
        """The offset below which records of the next batch are dropped: those that another segment has, too.

        Only the first batch of a chunk may have such records.
        """
        return self._start if self._number else max(self._start, self.offset)

    def open(self) -> int | None:
        """Decode the buffer of the next record, and return the record's timestamp. Raises as `head_timestamp`."""
        while self._cursor is None:
            if not self._chunks:
                return None
            self._next_buffer()
        if self._options.timestamp_extractor is None:
            return self._cursor.timestamp
        if self._extracted is None:
            self._extracted = self._extract(self._cursor)
        return self._extracted

    def _next_buffer(self) -> None:
        """Decode the next buffer. If it has no records, the queue moves on without one."""
        run = self._chunks[0].run
        try:
            if self._buffers is None:
                options, self._start = self._options, self._first_wanted
                self._buffers = buffers_at(
                    run,
                    self._number,
                    self._held,
                    verify=options.verify,
                    limit=options.max_decompressed_bytes,
                    admit=self._admit,
                    most_bytes=None if options.batch_bound is None else options.batch_bound.most_bytes,
                )
            located = self._buffers.next(self._bound.buffer_room(self._held))
        except KafkaFormatError as error:
            error.message = f"{self.topic_partition}: {error.message}"
            raise
        first = 0 if located is None else located.first_at_or_above(self._start)
        if located is not None and first < len(located):
            self._cursor = RecordCursor(located, first)
        else:
            self._close_buffer()

    def take(self, limit: int, is_inclusive: bool, most_records: int) -> RecordSlice:
        """Take the next record, of the buffer that `open` made, and those after it up to the timestamp `limit`.

        is_inclusive: whether records at `limit` are taken, too. The slice ends at the first later record, at the end of
        the buffer, or after `most_records`.
        """
        cursor = self._cursor
        assert cursor is not None
        first = cursor.next
        if self._options.timestamp_extractor is None:
            stop = cursor.take(limit, is_inclusive, most_records)
            if cursor.latest > self.partition_time:
                self.partition_time = cursor.latest
        else:
            stop = self._take_extracted(cursor, limit, is_inclusive, most_records)
        self.offset = cursor.next_offset
        return RecordSlice(self.topic_partition, cursor.located, first, stop)

    def follow_cursor(self) -> int:
        """Update offset and time from the cursor, after a merge took records of it. Returns the partition's time."""
        assert self._cursor is not None
        self.partition_time = max(self.partition_time, self._cursor.latest)
        self.offset = self._cursor.next_offset
        return self.partition_time

    def reserve_places(self, count: int) -> int:
        """Reserve places for `count` records of a merge, or for fewer if the budget has no room. Returns how many."""
        more = count * PLACE_BYTES - self._places_bytes
        if more > 0:
            self._places_bytes += self._held.add_up_to(more, 0)
        else:
            self._places_bytes += more
            self._held.remove(-more)
        return self._places_bytes // PLACE_BYTES

    def _take_extracted(self, cursor: RecordCursor, limit: int, is_inclusive: bool, most_records: int) -> int:
        stop = cursor.next
        while most_records > 0 and self._extracted is not None:
            self.partition_time = max(self.partition_time, self._extracted)
            self._extracted = None
            stop = cursor.take(_LATEST, True, 1)
            most_records -= 1
            if stop == cursor.count:
                break
            try:
                self._extracted = self._extract(cursor)
            except (TimestampError, MemoryError):
                break  # `open` calls the extractor again; the records before that one are returned first
            if self._extracted > limit or (self._extracted == limit and not is_inclusive):
                break
        return stop

    def _extract(self, cursor: RecordCursor) -> int:
        record = next(cursor.located.iterate(cursor.next))
        assert self._options.timestamp_extractor is not None
        try:
            timestamp = self._options.timestamp_extractor(record, self.partition_time)
            if not (isinstance(timestamp, (int, np.integer)) and 0 <= timestamp <= _LATEST):
                raise ValueError(f"expected a timestamp from 0 to {_LATEST}, found {timestamp!r}")
        except MemoryError:  # not an error of the record
            raise
        except Exception as error:
            message = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise TimestampError(self.topic_partition, record.offset, message) from error
        return int(timestamp)

    def release_taken(self) -> None:
        """Release the buffer if all its records were taken."""
        if self.is_cursor_used_up:
            self._close_buffer()

    def _close_buffer(self) -> None:
        buffers = self._buffers
        self._cursor = None
        assert buffers is not None
        if not buffers.is_used_up:
            buffers.release()
            return
        self._advance_to(buffers.number)

    def _advance_to(self, number: int) -> None:
        """Move to batch `number` of the first chunk. Releases the buffers, and the chunk if it has no such batch."""
        if self._buffers is not None:
            self._buffers.close()
        self._buffers = self._cursor = self._extracted = None
        self._number = number
        if number == len(self._chunks[0].run):
            size = self._chunks.popleft().size
            self._held.count_batches(-size)
            self._held.remove(size)
            self._number = 0
            self._is_budget_short = False
        if not self._chunks:
            self.offset = max(self.offset, self._accepted_end)

    def skip(self) -> int:
        """Skip what could not be read: a record without an extracted timestamp, or the rest of the batch.

        Returns the offset after it.
        """
        if self._cursor is not None:
            self._cursor.take(_LATEST, True, 1)
            self.offset = self._cursor.next_offset
            self._extracted = None
            self.release_taken()
        else:
            number = self._number if self._buffers is None else self._buffers.number
            self.offset = max(self.offset, int(self._chunks[0].run.index["last_offset"][number]) + 1)
            self._advance_to(number + 1)
        return self.offset

    def close(self) -> None:
        """Release all batches and buffers."""
        if self._buffers is not None:
            self._buffers.close()
        self._buffers = self._cursor = None
        self._chunks.clear()
        self._held.close()


def _wanted(run: BatchRun, offset: int, *, verify: bool) -> NDArray[np.intp]:
    """Return the numbers of the batches with records at or after `offset`, without control batches.

    verify: empty and control batches are included if their CRC fails, so that reading them raises the error.
    """
    rows = run.index
    left_out = (rows["count"] == 0) | rows["is_control"]
    if verify and left_out.any():
        left_out[left_out] = select_batches(run, left_out).valid()
    return np.flatnonzero((rows["last_offset"] >= offset) & ~left_out)
