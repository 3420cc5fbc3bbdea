"""Batches that a producer sends as they are (KIP-712), one or several per request. They take no records."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.batches.stamp import copy_without_state
from kafkafmt.client.accumulator.batch import ProducerBatch
from kafkafmt.client.accumulator.sequences import ProducerState
from kafkafmt.records.runs import slice_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition


# How many bytes of batches are copied at once, if each is sent alone.
_COPY_BYTES = 256 * 1024


class RawRun(NamedTuple):
    """Adjacent batches. largest: the size of the largest of them, in bytes."""

    data: memoryview
    batch_count: int
    record_count: int
    largest: int


class RequestLimits(NamedTuple):
    """The most batches of a partition in one request, and the most bytes of several; one batch may be larger.

    max_batch_bytes: the most bytes of a batch in a request of several. A larger one is split, and each batch of its
        request is sent alone then.
    """

    max_batches: int
    max_bytes: int
    max_batch_bytes: int = sys.maxsize

    def allow(self, batches: int, size: int) -> bool:
        """Return whether a request may hold so many batches of so many bytes."""
        return batches <= self.max_batches and size <= self.max_bytes

    def parts(self, rows: NDArray[np.void]) -> Iterator[tuple[int, int]]:
        """Yield first and stop of the batches that one request takes. rows: the index rows of all batches."""
        sizes = rows["size"].astype(np.int64)
        ends, large = sizes.cumsum(), (sizes > self.max_batch_bytes).nonzero()[0]
        first, done = 0, 0
        while first < len(rows):
            stop = int(ends.searchsorted(done + self.max_bytes, "right"))
            next_large = large.searchsorted(first)
            if next_large < len(large):
                stop = min(stop, int(large[next_large]))
            stop = min(max(stop, first + 1), first + self.max_batches)
            yield first, stop
            first, done = stop, int(ends[stop - 1])

    def runs(self, run: BatchRun, *, keeps_producer_state: bool) -> Iterator[RawRun]:
        """Yield writable copies of the batches that one request takes, each made when the iterator reaches it."""
        rows = run.index
        is_single = self.max_batches == 1
        copied_together = RequestLimits(len(rows), _COPY_BYTES) if is_single else self
        for first, stop in copied_together.parts(rows):
            part = slice_run(run, first, stop)
            data = memoryview(copy_without_state(part, producer=not keeps_producer_state, offsets=True))
            sizes, counts = part.index["size"].tolist(), part.index["count"].tolist()
            if not is_single:
                yield RawRun(data, len(sizes), sum(counts), max(sizes))
                continue
            done = 0
            for size, count in zip(sizes, counts, strict=True):
                yield RawRun(data[done : done + size], 1, count, size)
                done += size


class RawBatches(ProducerBatch):
    """A ProducerBatch of one or several whole v2 batches. Only the producer's fields in their headers change.

    The accumulator and its sender handle them as one batch: they are numbered, sent, retried and acknowledged together,
    and their records are counted through. If they must be split, each becomes a batch of its own.
    """

    def __init__(
        self, topic_partition: TopicPartition, run: RawRun, limits: RequestLimits, *, created_ms: float
    ) -> None:
        super().__init__(topic_partition, b"", count=run.record_count, created_ms=created_ms)
        self._limits = limits
        self._runs = [run.data]
        self._batch_count = run.batch_count
        self._largest = run.largest
        self._size = len(run.data)

    @property
    def is_full(self) -> bool:
        """Whether no further batch fits."""
        return self._is_large or not self._limits.allow(self._batch_count + 1, self._size + 1)

    @property
    def _is_large(self) -> bool:
        return self._largest > self._limits.max_batch_bytes

    @property
    def largest_batch_size(self) -> int:
        """The size of the largest batch, in bytes."""
        return self._largest

    def absorb(self, other: RawBatches) -> bool:
        """Append the batches of `other`, and take over its reservation.

        Returns False, and changes nothing, if it was closed, if all are too much for one request, or if a batch is
        too large for a request of several.
        """
        batches, size = self._batch_count + other._batch_count, self._size + other._size
        if not self._runs or self._is_large or other._is_large or not self._limits.allow(batches, size):
            return False
        before = len(self._runs), self._batch_count, self._count, self._size, self._largest
        try:
            self._runs += other._runs
            self._batch_count += other._batch_count
            self._count += other._count
            self._size += other._size
            self._largest = max(self._largest, other._largest)
            if self.reservation is not None and other.reservation is not None:
                self.reservation.absorb(other.reservation)
        except BaseException:  # of a signal handler
            runs, self._batch_count, self._count, self._size, self._largest = before
            del self._runs[runs:]
            raise
        return True

    def close(self) -> bool:
        """Join the batches. Return False: nothing was compressed, so the estimator must not learn from it."""
        if self._runs:
            self._data = self._runs[0] if len(self._runs) == 1 else bytearray().join(self._runs)
            self._runs = []
        return False

    def set_producer_state(self, state: ProducerState) -> None:
        """Write producer id, epoch and sequence numbers into the headers, and new CRCs."""
        set_producer_state(self.data, *state)
        self.producer_state = state
