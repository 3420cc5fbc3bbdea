"""The futures of appended records: their offsets, once a broker has acknowledged them, or their errors.

A future refers to its batch and its index there. A batch that is split refers to its parts. So neither a split nor an
acknowledgement costs work per record. The methods are those of kafka-python's futures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from _kafkafmt.client.record_place import RecordPlace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.client.accumulator.batch import Outcome, ProducerBatch
    from kafkafmt.types import TopicPartition


class RecordMetadata(NamedTuple):
    """A record that a broker acknowledged.

    offset: -1 if the broker returned none, as with acks=0.
    timestamp: in milliseconds; the broker's if the topic has LogAppendTime.
    serialized_key_size, serialized_value_size: in bytes; -1 for null.
    """

    topic_partition: TopicPartition
    offset: int
    timestamp: int
    serialized_key_size: int
    serialized_value_size: int

    @property
    def topic(self) -> str:
        """The topic of the record."""
        return self.topic_partition.topic

    @property
    def partition(self) -> int:
        """The number of its partition."""
        return self.topic_partition.partition


class RecordFuture(RecordPlace):
    """The outcome of one record: a `RecordMetadata`, or an error."""

    __slots__ = ()

    batch: ProducerBatch

    @property
    def is_done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        return self.batch.part_of(self.index)[0].is_done

    def succeeded(self) -> bool:
        """Return whether the record was acknowledged."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Return whether the record has failed."""
        return self.is_done and self.exception is not None

    @property
    def value(self) -> RecordMetadata | None:
        """The metadata of the record; None if it is not done or has failed."""
        outcome, index = self._outcome()
        return None if outcome is None or outcome.exception_of(index) else self._metadata(outcome, index)

    @property
    def exception(self) -> Exception | None:
        """The error of the record; None if it is not done or was acknowledged."""
        outcome, index = self._outcome()
        return None if outcome is None else outcome.exception_of(index)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds for the outcome. Raises the record's error, or TimeoutError."""
        # The second look: the record may be done within the timeout, and its callbacks return after it.
        if not (self.is_done or self.batch.wait(timeout, self.index) or self.is_done):
            raise self._timed_out(timeout)
        outcome, index = self._outcome()
        assert outcome is not None
        error = outcome.exception_of(index)
        if error is not None:
            raise error.with_traceback(None)  # several threads may raise the same error
        return self._metadata(outcome, index)

    def add_callback(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `callback(*args, metadata, **kwargs)` on success, in the sender's thread; now if it is done."""
        self.batch.add_listener(self.index, lambda: self._call(callback, None, args, kwargs))
        return self

    def add_errback(self, errback: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `errback(*args, exception, **kwargs)` on failure, in the sender's thread; now if it is done."""
        self.batch.add_listener(self.index, lambda: self._call(None, errback, args, kwargs))
        return self

    def add_both(self, both: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `both(*args, metadata or exception, **kwargs)` on success and on failure, as the other two."""
        self.batch.add_listener(self.index, lambda: self._call(both, both, args, kwargs))
        return self

    def _call(
        self,
        callback: Callable[..., Any] | None,
        errback: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        outcome, index = self._outcome()
        assert outcome is not None
        error = outcome.exception_of(index)
        if error is not None and errback is not None:
            errback(*args, error, **kwargs)
        elif error is None and callback is not None:
            callback(*args, self._metadata(outcome, index), **kwargs)

    def _timed_out(self, timeout: float | None) -> Exception:
        return TimeoutError(f"{self.batch.topic_partition}: no answer for a record after {timeout} s")

    def _outcome(self) -> tuple[Outcome | None, int]:
        batch, index = self.batch.part_of(self.index)
        return batch.outcome, index

    def _metadata(self, outcome: Outcome, index: int) -> RecordMetadata:
        return RecordMetadata(
            self.batch.topic_partition,
            outcome.offset_of(index),
            self.timestamp if outcome.log_append_time == -1 else outcome.log_append_time,
            self.key_size,
            self.value_size,
        )


class RecordsOutcome(NamedTuple):
    """The outcome of records that were appended in one call.

    offsets: int64, one per record; -1 for a record that failed, or if the broker returned none, as with acks=0.
    exceptions: the errors of the records that failed, by index in `offsets`.
    """

    offsets: NDArray[np.int64]
    exceptions: dict[int, Exception]


class RecordSpan(NamedTuple):
    """Consecutive records in a batch: the index of the first, and how many they are."""

    batch: ProducerBatch
    first: int
    length: int


def _indexes(span: RecordSpan) -> range:
    return range(span.first, span.first + span.length)


class RecordsFuture:
    """The outcome of records that were appended in one call: one by one, as columns or as whole batches.

    order: the number of each record among the records of all spans; None if it is the same.
    """

    def __init__(self, spans: list[RecordSpan], order: NDArray[np.int64] | None = None) -> None:
        self._spans = spans
        self._order = order

    def __len__(self) -> int:
        """Return the number of records."""
        return sum(span.length for span in self._spans)

    @property
    def is_done(self) -> bool:
        """Whether all records were acknowledged or have failed."""
        # The last span is done last: looked at first, it keeps repeated calls cheap.
        return all(span.batch.is_wholly_done for span in reversed(self._spans))

    def sent_failure(self) -> tuple[int, Exception] | None:
        """Return the number, in the order of the spans, and the error of the first record that was sent and failed.

        None if there is none: records that fail because a transaction aborts may never have been sent.
        """
        places = (span.batch.part_of(index) for span in self._spans for index in _indexes(span))
        for number, (batch, index) in enumerate(places):
            error = None if batch.outcome is None else batch.outcome.exception_of(index)
            if error is not None and batch.known_as is not None:
                return number, error
        return None

    def get(self, timeout: float | None = None) -> NDArray[np.int64]:
        """Wait up to `timeout` seconds. Return the offset of each record, int64, in the order of appending.

        Raises the error of the first record that failed, or TimeoutError. `outcome` has the errors of all records.
        """
        offsets, exceptions = self.outcome(timeout)
        for error in exceptions.values():
            raise error.with_traceback(None)
        return offsets

    def outcome(self, timeout: float | None = None) -> RecordsOutcome:
        """Wait up to `timeout` seconds until all records are done. Return their outcome. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        offsets = np.empty(len(self), np.int64)
        exceptions: dict[int, Exception] = {}
        done = 0
        for batch, first, count in self._spans:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not (batch.is_wholly_done or batch.wait(left) or batch.is_wholly_done):
                raise TimeoutError(
                    f"{batch.topic_partition}: no answer for {count} records after {timeout} s"
                )
            errors = batch.put_offsets(offsets[done : done + count], first)
            exceptions.update((done + index, error) for index, error in errors.items())
            done += count
        if self._order is None:
            return RecordsOutcome(offsets, exceptions)
        failed = [int(number) for number in np.flatnonzero(np.isin(self._order, list(exceptions)))]
        return RecordsOutcome(
            offsets[self._order], {number: exceptions[int(self._order[number])] for number in failed}
        )
