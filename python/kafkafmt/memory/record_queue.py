"""The raw batches of one partition in order, and the timestamp of the next record in them (Kafka Streams' RecordQueue).

What waits is kept as it came, compressed and in bytes, so that a bound in bytes holds (Memory Management in Kafka
Streams, "Deserialized Objects Buffering"): only of the first batch is there a window of located records. Its first
timestamp is taken from its header where that is certain. A timestamp extractor of the user's own sees each record once
it is the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.merge import PLACE_BYTES
from _kafkafmt.scan import BatchRun
from _kafkafmt.window import INDEX_ROW_BYTES, RecordWindow
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.memory.held_bytes import HeldBytes
from kafkafmt.memory.windows import Windows, windows_at
from kafkafmt.types import TimestampType

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from _kafkafmt.decode import LocatedRecords, Record
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.types import TopicPartition

    TimestampExtractor: TypeAlias = Callable[[Record, int], int]

NO_TIMESTAMP = -1
# Small batches are copied that many bytes at a time, and let go of as many at a time.
_CHUNK_BYTES = 64 * 1024
_LATEST = np.iinfo(np.int64).max


class Taken(NamedTuple):
    """Records `first` to in front of `stop` of `located`, which are the next of their partition.

    They are there for as long as this is kept; what is held for them is counted until the group is asked again.
    """

    topic_partition: TopicPartition
    located: LocatedRecords
    first: int
    stop: int

    def records(self) -> Iterator[Record]:
        """As `Record` objects."""
        return islice(self.located.iterate(self.first), self.stop - self.first)


@dataclass(frozen=True)
class QueueOptions:
    """What queues of a group have in common; see `PartitionGroup`."""

    timestamp_extractor: TimestampExtractor | None = None
    verify: bool = True
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES


class _Chunk(NamedTuple):
    """Batches that were copied together, and are let go of together."""

    run: BatchRun
    size: int


class RecordQueue:
    """The batches of a partition from `offset` on, within `buffered_bytes`, one batch and its window excepted.

    Attributes:
        offset: of the next record, or less where that is not known yet.
        fetch_offset: where the batches go on that it is to be fed next.
        partition_time: the largest timestamp that was taken, -1 before there is one.
        is_finished: nothing more is to come, so that nobody waits for it.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        offset: int,
        buffered_bytes: int,
        options: QueueOptions,
        budget: MemoryBudget | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.offset = self.fetch_offset = self._start = offset
        self.buffered_bytes_bound = buffered_bytes
        self.partition_time = NO_TIMESTAMP
        self.is_finished = False
        self._options = options
        self._held = HeldBytes(budget)
        self._chunks: deque[_Chunk] = deque()
        self._number = 0  # of the first batch of the first chunk that is not used up
        self._windows: Windows | None = None
        self._window: RecordWindow | None = None
        self._extracted: int | None = None
        self._places_bytes = 0
        self._refused_bytes = 0
        self._refused_offset: int | None = None
        self._is_budget_short = False  # and was when it was fed, until something of it was used up

    @property
    def held_bytes(self) -> int:
        """All that is held: batches as they came with their index rows, and the window with its rows."""
        return self._held.count

    @property
    def is_empty(self) -> bool:
        return not self._chunks

    @property
    def is_wanting(self) -> bool:
        """Whether it is not finished, and below its bound, by as much as was refused last."""
        if self.is_finished or self.is_empty:
            return not self.is_finished
        return not self._is_budget_short and self._has_room_for(self._refused_bytes)

    def _has_room_for(self, size: int) -> bool:
        bound = self.buffered_bytes_bound
        if self._windows is None:
            bound -= bound // 4  # for a window
        return self._held.count + max(size, 1) <= bound

    # What comes in

    def feed(self, run: BatchRun) -> int:
        """Copy batches in, as many as there is room for; how many of the run that were.

        One is always taken where nothing is held. Those that are below `fetch_offset`, empty or control batches are
        left out, and counted as taken. Raises ValueError where the run begins behind a batch that was refused.
        """
        self._ensure_follows(run)
        self.is_finished = False
        stop = 0
        wanted = _wanted(run, self.fetch_offset)
        most_bytes = max(min(_CHUNK_BYTES, self.buffered_bytes_bound // 8), 1)
        try:
            for first, end in _stretches(run, most_bytes):
                numbers = wanted[(wanted >= first) & (wanted < end)]
                taken = self._take_in(run, numbers) if len(numbers) else 0
                if taken < len(numbers):
                    stop = int(numbers[taken])
                    break
                stop = end
        finally:  # those who are asked for memory may raise anything: what is in already does not come again
            if stop:
                self.pass_over(int(run.index["last_offset"][stop - 1]) + 1)
        if not self._chunks:
            self.offset = max(self.offset, self.fetch_offset)
        self._remember_refused(run, stop)
        return stop

    def pass_over(self, offset: int) -> None:
        """Wait for nothing in front of `offset`: `feed` goes on there, if that is not behind it already."""
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
        # The whole rest, so as not to be fed batch after batch, but no more than half of what may be held.
        rest = run.end_position - int(run.index["position"][stop])
        self._refused_offset = int(run.index["last_offset"][stop])
        self._refused_bytes = max(self._refused_bytes, min(rest, self.buffered_bytes_bound // 2))

    def _take_in(self, run: BatchRun, numbers: NDArray[np.intp]) -> int:
        """Copy those batches in, all of them or none, but one where nothing is held; how many."""
        if self._copy_in(run, numbers, is_needed=False):
            return len(numbers)
        return int(self.is_empty and self._copy_in(run, numbers[:1], is_needed=True))

    def _copy_in(self, run: BatchRun, numbers: NDArray[np.intp], *, is_needed: bool) -> bool:
        rows = run.index[numbers]
        start, end = int(rows["position"][0]), int(rows["position"][-1]) + int(rows["size"][-1])
        size = end - start + len(rows) * INDEX_ROW_BYTES
        has_room = self._has_room_for(size)
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
        return True

    # What goes out

    @property
    def known_timestamp(self) -> int | None:
        """The timestamp of the next record, where it is known and the record located."""
        if self._window is None or self._options.timestamp_extractor is not None:
            return self._extracted
        return self._window.timestamp

    @property
    def open_window(self) -> RecordWindow | None:
        """The window of the next record, where that is located and its timestamp is the record's own."""
        return None if self._options.timestamp_extractor is not None else self._window

    @property
    def is_window_used_up(self) -> bool:
        return self._window is not None and self._window.next == self._window.count

    def head_timestamp(self) -> int | None:
        """The timestamp of the next record; None where there is none.

        By the header it is that which Kafka's format says the first record has. A record that is later than that is put
        right by `open`; one that is earlier, which no known producer writes, has its turn when the header says.
        Raises KafkaFormatError for a damaged batch, and ValueError for what an extractor returns.
        """
        if self._window is None:
            by_header = self._timestamp_by_header()
            if by_header is not None:
                return by_header
        return self.open()

    def _timestamp_by_header(self) -> int | None:
        if self._windows is not None or not self._chunks or self._options.timestamp_extractor is not None:
            return None
        row = self._chunks[0].run.index[self._number]
        if row["magic"] < 2 or row["has_delete_horizon"] or row["base_offset"] < self._start:
            return None
        is_log_append = row["timestamp_type"] == TimestampType.LOG_APPEND_TIME
        return int(row["max_timestamp"] if is_log_append else row["base_timestamp"])

    def open(self) -> int | None:
        """As `head_timestamp`, with the window there that the record is in."""
        while self._window is None:
            if not self._chunks:
                return None
            self._next_window()
        if self._options.timestamp_extractor is None:
            return self._window.timestamp
        if self._extracted is None:
            self._extracted = self._extract(self._window)
        return self._extracted

    def _next_window(self) -> None:
        """Make the window that comes next; there may be none yet then."""
        run = self._chunks[0].run
        try:
            if self._windows is None:
                options = self._options
                self._windows = windows_at(
                    run, self._number, self._held, verify=options.verify, limit=options.max_decompressed_bytes
                )
            located = self._windows.next(self._window_room())
        except KafkaFormatError as error:
            error.message = f"{self.topic_partition}: {error.message}"
            raise
        first = 0 if located is None else located.first_at_or_above(self._start)
        if located is not None and first < len(located):
            self._window = RecordWindow(located, first)
        else:
            self._close_window()

    def _window_room(self) -> int:
        """What there is for a window beside the batches."""
        own = 0 if self._windows is None else self._windows.held_bytes
        return self.buffered_bytes_bound - (self._held.count - own)

    def take(self, limit: int, is_inclusive: bool, most_records: int) -> Taken:
        """The next record, of the window that `open` made, and those behind it up to the first later than `limit`.

        Where `is_inclusive` is not set, one at `limit` is too late as well.
        """
        window = self._window
        assert window is not None
        first = window.next
        if self._options.timestamp_extractor is None:
            stop = window.take(limit, is_inclusive, most_records)
            if window.latest > self.partition_time:
                self.partition_time = window.latest
        else:
            stop = self._take_extracted(window, limit, is_inclusive, most_records)
        self.offset = window.next_offset
        return Taken(self.topic_partition, window.located, first, stop)

    def follow_window(self) -> int:
        """Be where the window is, of which some were taken in a merge; the partition's time then."""
        assert self._window is not None
        self.partition_time = max(self.partition_time, self._window.latest)
        self.offset = self._window.next_offset
        return self.partition_time

    def hold_places(self, count: int) -> int:
        """Hold the places of so many records in a merge, or fewer where the budget has no room; how many."""
        more = count * PLACE_BYTES - self._places_bytes
        if more > 0:
            self._places_bytes += self._held.add_up_to(more, 0)
        else:
            self._places_bytes += more
            self._held.remove(-more)
        return self._places_bytes // PLACE_BYTES

    def _take_extracted(self, window: RecordWindow, limit: int, is_inclusive: bool, most_records: int) -> int:
        stop = window.next
        while most_records > 0 and self._extracted is not None:
            self.partition_time = max(self.partition_time, self._extracted)
            self._extracted = None
            stop = window.take(_LATEST, True, 1)
            most_records -= 1
            if stop == window.count:
                break
            try:
                self._extracted = self._extract(window)
            except Exception:  # raised again once that record is the next: those before it are handed out
                break
            if self._extracted > limit or (self._extracted == limit and not is_inclusive):
                break
        return stop

    def _extract(self, window: RecordWindow) -> int:
        record = next(window.located.iterate(window.next))
        assert self._options.timestamp_extractor is not None
        timestamp = self._options.timestamp_extractor(record, self.partition_time)
        if not isinstance(timestamp, (int, np.integer)) or timestamp < 0:
            raise ValueError(
                f"{self.topic_partition}: timestamp extractor: expected 0 or more for the record at offset "
                f"{record.offset}, found {timestamp!r}"
            )
        return int(timestamp)

    def settle(self) -> None:
        """Let go of what was taken: whoever took it has had it."""
        if self.is_window_used_up:
            self._close_window()

    def _close_window(self) -> None:
        windows = self._windows
        self._window = None
        assert windows is not None
        if not windows.is_used_up:
            windows.release()
            return
        self._go_on_at(windows.number)

    def _go_on_at(self, number: int) -> None:
        """Let go of all batches before that one."""
        if self._windows is not None:
            self._windows.close()
        self._windows = self._window = self._extracted = None
        self._number = number
        if number == len(self._chunks[0].run):
            self._held.remove(self._chunks.popleft().size)
            self._number = 0
            self._is_budget_short = False
        if not self._chunks:
            self.offset = max(self.offset, self.fetch_offset)

    def skip(self) -> int:
        """Leave out what could not be read: a record that an extractor refused, or the batch; the offset behind it."""
        if self._window is not None:
            self._window.take(_LATEST, True, 1)
            self.offset = self._window.next_offset
            self._extracted = None
            self.settle()
        else:
            number = self._number if self._windows is None else self._windows.number
            self.offset = max(self.offset, int(self._chunks[0].run.index["last_offset"][number]) + 1)
            self._go_on_at(number + 1)
        return self.offset

    def close(self) -> None:
        """Let go of everything."""
        if self._windows is not None:
            self._windows.close()
        self._windows = self._window = None
        self._chunks.clear()
        self._held.close()


def _wanted(run: BatchRun, offset: int) -> NDArray[np.intp]:
    """The numbers of the batches that have records, none of them a marker, at `offset` or behind it."""
    rows = run.index
    return np.flatnonzero((rows["last_offset"] >= offset) & (rows["count"] != 0) & ~rows["is_control"])


def _stretches(run: BatchRun, most_bytes: int) -> Iterator[tuple[int, int]]:
    """A run in stretches of up to so many bytes, or one batch that is larger."""
    sizes = run.index["size"].astype(np.int64) + INDEX_ROW_BYTES
    ends = sizes.cumsum()
    first = 0
    while first < len(run):
        limit = int(ends[first] - sizes[first]) + most_bytes
        end = max(int(ends.searchsorted(limit, side="right")), first + 1)
        yield first, end
        first = end
