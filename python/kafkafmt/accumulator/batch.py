"""A batch of the producer on its way: open while records are appended, then bytes, then done, failed or split."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.layout import RECORD_BATCH_OVERHEAD
from _kafkafmt.producer_state import set_producer_state
from kafkafmt.accumulator.sequences import ProducerState

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.reservations import Reservation
    from kafkafmt.builder import RecordBatchBuilder
    from kafkafmt.types import TopicPartition

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What became of a batch: acknowledged from `base_offset` on, or refused as `error` says of each record."""

    base_offset: int = -1
    log_append_time: int = -1
    error: Callable[[int], Exception] | None = None

    def offset_of(self, index: int) -> int:
        return self.base_offset + index if self.base_offset >= 0 else -1

    def exception_of(self, index: int) -> Exception | None:
        return self.error(index) if self.error is not None else None


class ProducerBatch:
    """Records for one partition that go out together.

    created_ms: when its first record was appended, and so the time that its delivery counts from; the parts of a
    batch that is split have that of the whole. order: where it stands among the batches of its partition, in
    order of their records. reservation: what it holds of the budget. attempts: how often it was sent in vain.
    may_have_arrived: whether it was, itself. whole: what may have arrived of which it is a part.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        records: RecordBatchBuilder | bytes,
        *,
        count: int = 0,
        created_ms: float,
    ) -> None:
        self.topic_partition = topic_partition
        self.begin(created_ms)
        self.order: tuple[int, ...] = ()
        self.reservation: Reservation | None = None
        self.attempts = 0
        self.may_have_arrived = False
        self.whole: ProducerBatch | None = None
        self.producer_state: ProducerState | None = None
        self.compression_ratio = 1.0
        self.was_half_full = True  # by the estimate, when it was closed
        self.max_record_size = 0  # bytes, uncompressed, with what surrounds key, value and headers
        self.outcome: Outcome | None = None
        self._builder = None if isinstance(records, bytes) else records
        self.builder = self._builder  # what takes the records, while they may be appended
        self._data: Buffer | None = records if isinstance(records, bytes) else None
        self._size = len(records) if isinstance(records, bytes) else 0
        self._count = count
        self._parts: list[ProducerBatch] = []
        self._first_of_parts: list[int] = []
        self._listeners: list[tuple[int, Callable[[], None]]] = []
        self._lock = threading.Lock()
        self._settled = threading.Event()

    @property
    def reserved_bytes(self) -> int:
        return 0 if self.reservation is None else self.reservation.size_bytes

    # Open

    def begin(self, now_ms: float) -> None:
        """Count its age from now: it has its first record, and memory."""
        self.created_ms = now_ms
        self.last_attempt_ms = now_ms

    @property
    def is_full(self) -> bool:
        """Whether it will take no more records, or is as large as it should get."""
        builder = self.builder
        return builder is None or builder.is_full

    @property
    def record_count(self) -> int:
        builder = self._builder  # which another thread may take away
        return self._count if builder is None else len(builder)

    def end_appends(self) -> None:
        """Let no more records in."""
        self.builder = None

    def close(self) -> bool:
        """Compress the records, and let go of what held them; False where that was done before."""
        self.builder = None
        builder = self._builder
        if builder is None:
            return False
        data = builder.build()
        self.was_half_full = 2 * builder.estimated_size >= (builder.batch_size or 0)
        self.compression_ratio = (len(data) - RECORD_BATCH_OVERHEAD) / builder.size_in_bytes
        self.max_record_size = builder.max_record_size
        self._count = len(builder)
        self._data = data
        self._size = len(data)
        self._builder = None
        return True

    # Closed

    @property
    def data(self) -> Buffer:
        """The batch as it is sent, until it is deallocated."""
        assert self._data is not None, "a batch is closed before it is sent"
        return self._data

    @property
    def size_in_bytes(self) -> int:
        """Of the whole batch as it is sent, or as it is estimated to be while it is open."""
        builder = self._builder
        return self._size if builder is None else builder.estimated_size

    @property
    def largest_batch_size(self) -> int:
        """What the limit of a topic is held against, in bytes."""
        return self.size_in_bytes

    def set_producer_state(self, state: ProducerState) -> None:
        """Say in its header who sends it, and with which sequence numbers. What was sent before stays as it is."""
        data = bytearray(self.data)
        set_producer_state(data, *state)
        self._data = data
        self.producer_state = state

    def let_go(self) -> None:
        """Free the records: the batch is not sent any more."""
        self._data = None

    def retry(self, now_ms: float) -> None:
        """It was sent, and is to be sent again."""
        self.attempts += 1
        self.may_have_arrived = True
        self.last_attempt_ms = now_ms

    def has_reached_delivery_timeout(self, delivery_timeout_ms: float, now_ms: float) -> bool:
        return now_ms - self.created_ms >= delivery_timeout_ms

    # In doubt

    @property
    def in_doubt(self) -> ProducerBatch | None:
        """The numbered batch of which nobody knows whether it arrived: this one, or a whole that it is a part of.

        None where there is none: a whole did not arrive after all where a broker took a part of it, by its numbers.
        """
        if self.whole is not None and not self.whole.has_accepted_part():
            return self.whole
        return self if self.may_have_arrived and self.producer_state is not None else None

    @property
    def known_as(self) -> ProducerState | None:
        """The numbers by which a broker may know its records; None where it knows none of them."""
        if self.producer_state is not None:
            return self.producer_state
        doubted = self.in_doubt
        return None if doubted is None else doubted.producer_state

    def has_accepted_part(self) -> bool:
        """Whether a broker has a batch that this one was split into."""
        return any(part.is_accepted or part.has_accepted_part() for part in self._parts)

    # Done

    @property
    def is_accepted(self) -> bool:
        """Whether a broker has it."""
        return self.outcome is not None and self.outcome.error is None

    @property
    def is_done(self) -> bool:
        """Whether it was acknowledged or failed; never where it was split."""
        return self.outcome is not None

    @property
    def is_wholly_done(self) -> bool:
        """Whether it, or every part that it was split into, was acknowledged or failed."""
        return all(part.is_wholly_done for part in self._parts) if self._parts else self.is_done

    def complete(self, base_offset: int, log_append_time: int = -1) -> bool:
        """A broker has it. Returns False where its outcome was known before, which then stays."""
        return self._settle(Outcome(base_offset, log_append_time))

    def complete_exceptionally(
        self, exception: Exception, exception_of: Callable[[int], Exception] | None = None
    ) -> bool:
        """It failed, with an error of its own for each record where `exception_of` has one. As `complete`."""
        return self._settle(Outcome(error=exception_of or (lambda index: exception)))

    def split_into(self, parts: Sequence[ProducerBatch]) -> None:
        """Forward all who wait for its records to the parts, which hold them in order."""
        first = 0
        starts = []
        for part in parts:
            starts.append(first)
            first += part.record_count
        assert first == self.record_count, "a split keeps every record"
        with self._lock:
            self._first_of_parts = starts
            self._parts = list(parts)
            listeners, self._listeners = self._listeners, []
        for index, listener in listeners:
            self.add_listener(index, listener)
        self._settled.set()

    def part_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that holds a record by now, and the record's index there."""
        batch = self
        while batch._parts:
            number = bisect_right(batch._first_of_parts, index) - 1
            index -= batch._first_of_parts[number]
            batch = batch._parts[number]
        return batch, index

    def wait(self, timeout: float | None = None, index: int | None = None) -> bool:
        """Wait until all of it is done, or the record at `index`, and the callbacks were called.

        False after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        batches = [self]
        while batches:
            batch = batches.pop()
            left = threading.TIMEOUT_MAX if deadline is None else max(deadline - time.monotonic(), 0)
            if not batch._settled.wait(min(left, threading.TIMEOUT_MAX)):
                return False
            if batch._parts and index is not None:
                number = bisect_right(batch._first_of_parts, index) - 1
                index -= batch._first_of_parts[number]
                batches.append(batch._parts[number])
            else:
                batches.extend(batch._parts)
        return True

    def add_listener(self, index: int, listener: Callable[[], None]) -> None:
        """Have `listener` called once the record at `index` is done; at once where it is."""
        while True:
            batch, place = self.part_of(index)
            with batch._lock:
                if not batch._parts:
                    if batch.outcome is None:
                        batch._listeners.append((place, listener))
                        return
                    break
        _call(listener)

    def put_offsets(self, offsets: NDArray[np.int64], first: int = 0) -> dict[int, Exception]:
        """Set the offsets of its records from number `first` on, as many as there is room for; -1 for none.

        Returns the errors of those that failed, by their index in `offsets`. All of it is done.
        """
        if self._parts:
            failed: dict[int, Exception] = {}
            done, number = 0, bisect_right(self._first_of_parts, first) - 1
            while done < len(offsets):
                part, start = self._parts[number], first + done - self._first_of_parts[number]
                stop = min(done + part.record_count - start, len(offsets))
                errors = part.put_offsets(offsets[done:stop], start)
                failed.update((done + index, error) for index, error in errors.items())
                done, number = stop, number + 1
            return failed
        outcome = self.outcome
        assert outcome is not None
        count = len(offsets)
        offsets[:] = np.arange(count) + outcome.offset_of(first) if outcome.base_offset >= 0 else -1
        return (
            {} if outcome.error is None else {index: outcome.error(first + index) for index in range(count)}
        )

    def _settle(self, outcome: Outcome) -> bool:
        with self._lock:
            if self.outcome is not None or self._parts:
                return False
            self.outcome = outcome
            listeners, self._listeners = self._listeners, []
            self._count = self.record_count
            self.builder = None
            self._builder = None
        try:
            for _, listener in listeners:
                _call(listener)
        finally:
            self._settled.set()
        return True

    def __repr__(self) -> str:
        return f"<ProducerBatch of {self.record_count} records for {self.topic_partition}>"


def _call(listener: Callable[[], None]) -> None:
    """A caller's function that fails must not take the others, or the sender, with it."""
    try:
        listener()
    except Exception:
        log.exception("a callback of a record failed")
