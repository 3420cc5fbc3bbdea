"""Batches that a producer passes on as they are (KIP-712), closed from the start, or several for one request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from _kafkafmt.producer_state import set_producer_state
from _kafkafmt.stamp import copy_without_state
from kafkafmt.accumulator.batch import ProducerBatch
from kafkafmt.accumulator.sequences import ProducerState
from kafkafmt.log.directory import part_of_run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.types import TopicPartition


# What is copied at once of many batches that go out one by one.
_COPY_BYTES = 256 * 1024


class PassedPiece(NamedTuple):
    """Batches end to end; the largest of them has `largest` bytes."""

    data: memoryview
    batch_count: int
    record_count: int
    largest: int


class RequestLimits(NamedTuple):
    """How many batches of a partition go into one request, and bytes of several; one goes whatever its size."""

    max_batches: int
    max_bytes: int

    def allow(self, batches: int, size: int) -> bool:
        return batches <= self.max_batches and size <= self.max_bytes

    def parts(self, rows: NDArray[np.void]) -> Iterator[tuple[int, int]]:
        """First and stop of what goes out together, of the batches that these index rows are of."""
        ends = rows["size"].cumsum(dtype="i8")
        first, done = 0, 0
        while first < len(rows):
            stop = int(ends.searchsorted(done + self.max_bytes, "right"))
            stop = min(max(stop, first + 1), first + self.max_batches)
            yield first, stop
            first, done = stop, int(ends[stop - 1])

    def pieces(self, run: BatchRun, *, keeps_producer_state: bool) -> Iterator[PassedPiece]:
        """Copies of what goes out together, made as they are asked for: their headers may be written in."""
        rows = run.index
        is_single = self.max_batches == 1
        copied_together = RequestLimits(len(rows), _COPY_BYTES) if is_single else self
        for first, stop in copied_together.parts(rows):
            part = part_of_run(run, first, stop)
            data = memoryview(copy_without_state(part, producer=not keeps_producer_state, offsets=True))
            sizes, counts = part.index["size"].tolist(), part.index["count"].tolist()
            if not is_single:
                yield PassedPiece(data, len(sizes), sum(counts), max(sizes))
                continue
            done = 0
            for size, count in zip(sizes, counts, strict=True):
                yield PassedPiece(data[done : done + size], 1, count, size)
                done += size


class PassedBatches(ProducerBatch):
    """A ProducerBatch that is one v2 batch or several, as they were, but for who sends them.

    To the accumulator and its sender they are one: numbered, sent, retried and acknowledged together, their records
    counted from the first one on. Where they must be split, each becomes a batch of its own.
    """

    def __init__(
        self, topic_partition: TopicPartition, piece: PassedPiece, limits: RequestLimits, *, created_ms: float
    ) -> None:
        super().__init__(topic_partition, b"", count=piece.record_count, created_ms=created_ms)
        self._limits = limits
        self._pieces = [piece.data]
        self._batch_count = piece.batch_count
        self._largest = piece.largest
        self._size = len(piece.data)

    @property
    def is_full(self) -> bool:
        return not self._limits.allow(self._batch_count + 1, self._size + 1)

    @property
    def largest_batch_size(self) -> int:
        return self._largest

    def absorb(self, other: PassedBatches) -> bool:
        """Take the batches of another behind its own, and what it reserved, unless that is too much for one request.

        Not once it was closed.
        """
        if not self._pieces or not self._limits.allow(
            self._batch_count + other._batch_count, self._size + other._size
        ):
            return False
        self._pieces += other._pieces
        self._batch_count += other._batch_count
        self._count += other._count
        self._size += other._size
        self._largest = max(self._largest, other._largest)
        if self.reservation is not None and other.reservation is not None:
            self.reservation.absorb(other.reservation)
        return True

    def close(self) -> bool:
        """Put the batches end to end. False: nothing was compressed, and nothing is to be learned from it."""
        if self._pieces:
            self._data = self._pieces[0] if len(self._pieces) == 1 else bytearray().join(self._pieces)
            self._pieces = []
        return False

    def set_producer_state(self, state: ProducerState) -> None:
        set_producer_state(self.data, *state)
        self.producer_state = state
