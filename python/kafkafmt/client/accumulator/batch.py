"""A batch of the producer. It is open for records, then closed and compressed, then acknowledged, failed or split."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.client.appending import BatchState
from _kafkafmt.wire.layout import RECORD_BATCH_OVERHEAD
from kafkafmt.build.builder import build_writable
from kafkafmt.client.accumulator.sequences import ProducerState
from kafkafmt.types import check_int

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.build.builder import RecordBatchBuilder
    from kafkafmt.types import TopicPartition

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """The outcome of a batch: acknowledged or failed.

    base_offset: the offset of its first record; -1 if it failed, or the broker returned none.
    log_append_time: in milliseconds; -1 for topics with CreateTime.
    error: returns the error of the record with that index; None if the batch was acknowledged.
    """

    base_offset: int = -1
    log_append_time: int = -1
    error: Callable[[int], Exception] | None = None

    def offset_of(self, index: int) -> int:
        """Return the offset of the record with that index in the batch; -1 if the base offset is -1."""
        return self.base_offset + index if self.base_offset >= 0 else -1

    def exception_of(self, index: int) -> Exception | None:
        """Return the error of the record with that index in the batch; None if the batch was acknowledged."""
        return self.error(index) if self.error is not None else None


class ProducerBatch(BatchState):
    """Records for one partition that are sent together.

    created_ms: the time of the first append, from which the delivery timeout counts. Parts of a split batch keep it.
    order: the sort key among the batches of the partition, in the order of their records.
    reservation: the bytes that it holds of the budget.
    attempts: how often it, or the batch that it is a part of, was sent without success.
    may_have_arrived: whether an attempt of this batch itself may have arrived.
    whole: the batch that it is a part of, if that one may have arrived.
    producer_state: the producer state in its bytes; None if they have none.
    builder: takes records; None once no more may be appended.
    is_closing: whether a thread compresses it now.
    was_half_full: by the estimated size, when it was closed.
    max_record_size: in bytes, uncompressed, a record's varints included.
    records_size: the bytes of all records, uncompressed; 0 if the batch was built elsewhere.
    """

    order: tuple[int, ...]
    reservation: Reservation | None
    whole: ProducerBatch | None
    producer_state: ProducerState | None
    builder: RecordBatchBuilder | None
    outcome: Outcome | None
    _builder: RecordBatchBuilder | None
    _data: Buffer | None
    _parts: list[ProducerBatch]
    records_size: int = 0

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
        if isinstance(records, bytes):
            self._data = records
            self._size = len(records)
            self._count = count
        else:
            self.builder = self._builder = records

    @property
    def reserved_bytes(self) -> int:
        """The bytes that it holds of the budget."""
        return 0 if self.reservation is None else self.reservation.size_bytes

    # Open

    def begin(self, now_ms: float) -> None:
        """Start the delivery timeout: the batch has its first record, and its memory."""
        self.created_ms = now_ms
        self.last_attempt_ms = now_ms

    @property
    def is_full(self) -> bool:
        """Whether it is closed for appends, or has reached its target size."""
        builder = self.builder
        return builder is None or builder.is_full

    @property
    def record_count(self) -> int:
        """The number of records, also after they were sent."""
        builder = self._builder  # another thread may set it to None
        return self._count if builder is None else len(builder)

    def end_appends(self) -> None:
        """Close the batch for appends."""
        self.builder = None

    def close(self) -> bool:
        """Compress the records into the bytes to send, and free the builder. Return False if that was done before."""
        self.builder = None
        builder = self._builder
        if builder is None:
            return False
        data = build_writable(builder)
        size = len(data)
        self.was_half_full = 2 * builder.estimated_size >= (builder.batch_size or 0)
        self.compression_ratio = (size - RECORD_BATCH_OVERHEAD) / builder.size_in_bytes
        self.max_record_size = builder.max_record_size
        self.records_size = builder.size_in_bytes
        self._count = len(builder)
        self._size = size
        self._data = data
        self._builder = None
        if self.outcome is not None:  # it was aborted meanwhile
            self._data = None
        return True

    # Closed

    @property
    def data(self) -> Buffer:
        """The bytes that are sent, until the batch is deallocated.

        Raises RuntimeError for a batch that was not drained yet, and for one without its bytes.
        """
        data = self._data
        if data is None:
            lack = "its bytes were freed" if self._builder is None else "it is open, and was not drained"
            raise RuntimeError(f"{self!r}: expected the bytes of a drained batch: {lack}")
        return data

    @property
    def size_in_bytes(self) -> int:
        """The size of the bytes that are sent; while the batch is open, an estimate of it."""
        builder = self._builder
        return self._size if builder is None else builder.estimated_size

    @property
    def largest_batch_size(self) -> int:
        """The size in bytes that must not exceed the limit of the topic."""
        return self.size_in_bytes

    def set_producer_state(self, state: ProducerState) -> None:
        """Write producer id, epoch and base sequence into the bytes.

        If they ever had a state, into a copy: a sender may still read the old bytes.
        """
        data = self._data
        if self._was_numbered or not isinstance(data, bytearray):
            data = bytearray(self.data)
        set_producer_state(data, *state)
        self._was_numbered = True
        self._data = data
        self.producer_state = state

    def release_records(self) -> None:
        """Free the bytes, because the batch is not sent any more."""
        self._data = None

    def retry(self, now_ms: float) -> None:
        """Count an attempt that failed and is repeated."""
        self.attempts += 1
        self.may_have_arrived = True
        self.last_attempt_ms = now_ms

    def has_reached_delivery_timeout(self, delivery_timeout_ms: float, now_ms: float) -> bool:
        """Return whether `delivery_timeout_ms` has passed since the first append."""
        return now_ms - self.created_ms >= delivery_timeout_ms

    # In doubt

    @property
    def in_doubt(self) -> ProducerBatch | None:
        """The batch with sequence numbers that may or may not have arrived: this one, or the one it is a part of.

        None if there is no such batch. Once a broker has accepted a part, its sequence numbers prove that the whole
        did not arrive.
        """
        if self.whole is not None and not self.whole.has_accepted_part():
            return self.whole
        return self if self.may_have_arrived and self.producer_state is not None else None

    @property
    def known_as(self) -> ProducerState | None:
        """The producer state under which a broker may know the records; None if it cannot know them."""
        if self.producer_state is not None:
            return self.producer_state
        doubted = self.in_doubt
        return None if doubted is None else doubted.producer_state

    def has_accepted_part(self) -> bool:
        """Return whether a broker has acknowledged a batch that this one was split into."""
        return any(part.is_accepted or part.has_accepted_part() for part in self._parts)

    # Done

    @property
    def is_accepted(self) -> bool:
        """Whether a broker has acknowledged it."""
        return self.outcome is not None and self.outcome.error is None

    @property
    def is_done(self) -> bool:
        """Whether it was acknowledged or has failed. False for a batch that was split."""
        return self.outcome is not None

    @property
    def is_wholly_done(self) -> bool:
        """Whether it, or every part that it was split into, was acknowledged or has failed."""
        return all(part.is_wholly_done for part in self._parts) if self._parts else self.is_done

    def complete(self, base_offset: int, log_append_time: int = -1) -> bool:
        """Mark it as acknowledged. Return False, and change nothing, if it was done or split before.

        Raises TypeError for an offset or a time that is no integer.
        """
        check_int("base_offset", base_offset)
        check_int("log_append_time", log_append_time)
        return self._finish(Outcome(base_offset, log_append_time))

    def complete_exceptionally(
        self, exception: Exception, exception_of: Callable[[int], Exception] | None = None
    ) -> bool:
        """Mark it as failed, with `exception` or the `exception_of` each record's index. Return as `complete`.

        Raises TypeError for an object that is no exception.
        """
        ensure_exception("exception", exception)
        if not (exception_of is None or callable(exception_of)):
            raise TypeError(f"exception_of: expected a function, found {exception_of!r}")
        return self._finish(Outcome(error=exception_of or (lambda index: exception)))

    def split_into(self, parts: Sequence[ProducerBatch]) -> None:
        """Replace the batch by parts, which have its records in order. Futures and callbacks refer to them then."""
        first = 0
        starts = []
        for part in parts:
            starts.append(first)
            first += part.record_count
        assert first == self.record_count, "a split keeps every record"
        self._first_of_parts = starts
        for index, listener in self._replace(list(parts)):
            self.add_listener(index, listener)
        self._finish_waits()

    def part_of(self, index: int) -> tuple[ProducerBatch, int]:
        """Return the batch, or part, that has the record at `index` now, and the record's index there."""
        batch = self
        while batch._parts:
            number = bisect_right(batch._first_of_parts, index) - 1
            index -= batch._first_of_parts[number]
            batch = batch._parts[number]
        return batch, index

    def wait(self, timeout: float | None = None, index: int | None = None) -> bool:
        """Wait until all records, or the one at `index`, are done and their callbacks have returned.

        timeout: in seconds; None to wait without limit. Returns False if it has passed.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        batches = [self]
        while batches:
            batch = batches.pop()
            left = threading.TIMEOUT_MAX if deadline is None else max(deadline - time.monotonic(), 0)
            if not batch._await_finish(min(left, threading.TIMEOUT_MAX)):
                return False
            if batch._parts and index is not None:
                number = bisect_right(batch._first_of_parts, index) - 1
                index -= batch._first_of_parts[number]
                batches.append(batch._parts[number])
            else:
                batches.extend(batch._parts)
        return True

    def add_listener(self, index: int, listener: Callable[[], None]) -> None:
        """Call `listener` when the record at `index` is done; now if it is done already."""
        while True:
            batch, place = self.part_of(index)
            if batch._listen((place, listener)):
                return
            if batch.outcome is not None:
                break
        _call(listener)

    def put_offsets(self, offsets: NDArray[np.int64], first: int = 0) -> dict[int, Exception]:
        """Fill `offsets` with the offsets of the records from index `first` on; -1 for a record that has none.

        The batch must be wholly done. Returns the errors of failed records, by their index in `offsets`.
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

    def _finish(self, outcome: Outcome) -> bool:
        count = self.record_count
        listeners = self._end(outcome)
        if listeners is None:
            return False
        self._count = count
        self.builder = None
        self._builder = None
        end: BaseException | None = None
        try:
            for _, listener in listeners:
                try:
                    _call(listener)
                except (
                    BaseException
                ) as error:  # SystemExit, say: it ends the program after the other callbacks
                    end = end or error
        finally:
            self._finish_waits()
        if end is not None:
            raise end
        return True

    def _await_finish(self, timeout: float) -> bool:
        """Wait until it is done and its callbacks have returned, or until it was split."""
        if self._is_finished:
            return True
        # The event is kept before the flag is read, and `_finish_waits` reads it after it has set the flag.
        event: threading.Event = self.__dict__.setdefault("_event", threading.Event())
        return self._is_finished or event.wait(timeout)

    def _finish_waits(self) -> None:
        self._is_finished = True
        event = self.__dict__.get("_event")
        if event is not None:
            event.set()

    def __repr__(self) -> str:
        return f"<ProducerBatch of {self.record_count} records for {self.topic_partition}>"


def ensure_exception(name: str, value: object) -> None:
    """Raise TypeError, with the name of the argument, if a value is no exception."""
    if not isinstance(value, Exception):
        raise TypeError(f"{name}: expected an exception, found {value!r}")


def _call(listener: Callable[[], None]) -> None:
    """Call a caller's function. Log its exception, so that it stops neither the other callbacks nor the sender."""
    try:
        listener()
    except Exception:
        log.exception("a callback of a record failed")
