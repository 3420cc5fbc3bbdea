"""The metrics of the accumulator, under the names of Kafka's producer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_MS = 30_000
WINDOWS = 2


class Sampled:
    """The values of the last `WINDOWS` windows of `WINDOW_MS`, as Kafka's metrics keep them.

    One thread records, any thread may read. Results are 0.0 without values, never NaN.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._last: _Sample | None = None

    def record(self, value: float, now_ms: float) -> None:
        """Add a value."""
        sample = self._last
        if sample is None or now_ms - sample.began_ms >= WINDOW_MS:
            sample = self._last = self._begin_sample(now_ms)
        sample.count += 1
        sample.total += value
        if value > sample.largest:
            sample.largest = value

    def _begin_sample(self, now_ms: float) -> _Sample:
        while self._samples and not _is_recent(self._samples[0], now_ms):
            self._samples.popleft()
        sample = _Sample(now_ms)
        self._samples.append(sample)
        return sample

    def average(self, now_ms: float) -> float:
        """Return the average of the recent values; 0 without values."""
        samples = self._recent(now_ms)
        count = sum(sample.count for sample in samples)
        return sum(sample.total for sample in samples) / count if count else 0.0

    def largest(self, now_ms: float) -> float:
        """Return the largest recent value; 0 without values."""
        return max((sample.largest for sample in self._recent(now_ms)), default=0.0)

    def rate(self, now_ms: float) -> float:
        """Return the sum of the values per second. As in Kafka's Rate, a time below one window is one window longer."""
        samples = self._recent(now_ms)
        if not samples:
            return 0.0
        elapsed_ms = now_ms - samples[0].began_ms
        if elapsed_ms < WINDOW_MS:
            elapsed_ms += WINDOW_MS
        return sum(sample.total for sample in samples) * 1000 / elapsed_ms

    def _recent(self, now_ms: float) -> list[_Sample]:
        return [sample for sample in self._samples.copy() if _is_recent(sample, now_ms)]


def _is_recent(sample: _Sample, now_ms: float) -> bool:
    return now_ms - sample.began_ms < WINDOWS * WINDOW_MS


@dataclass(slots=True)
class _Sample:
    began_ms: float
    count: int = 0
    total: float = 0.0
    largest: float = 0.0


class AccumulatorMetrics:
    """Counts and averages of batches that were drained or split. Only the sender's thread records, any may read."""

    def __init__(self) -> None:
        self.batch_split_total = 0
        self.batch_refused_total = 0
        self._splits = Sampled()
        self._compression_rate = Sampled()
        self._records_per_request = Sampled()
        self._queue_time_ms = Sampled()

    def record_batch(self, compression_ratio: float, queue_time_ms: float, now_ms: float) -> None:
        """Record a drained batch: compressed over uncompressed size, and its time in the queue."""
        self._compression_rate.record(compression_ratio, now_ms)
        self._queue_time_ms.record(queue_time_ms, now_ms)

    def record_request(self, records: int, now_ms: float) -> None:
        """Record the number of records in a request."""
        self._records_per_request.record(records, now_ms)

    def record_split(self, now_ms: float, *, was_refused: bool) -> None:
        """Record the split of a batch, and whether a broker had refused it."""
        self.batch_split_total += 1
        self.batch_refused_total += was_refused
        self._splits.record(1, now_ms)

    def values(self, now_ms: float) -> dict[str, float]:
        """Return each metric by Kafka's name. Times are in milliseconds, averages are over the last minute.

        - batch-split-rate, batch-split-total: batches that were split, before or after they were sent (KIP-126).
        - batch-refused-total: batches that were split because a broker had refused them.
        - compression-rate-avg: compressed over uncompressed size.
        """
        return {
            "batch-split-rate": self._splits.rate(now_ms),
            "batch-split-total": self.batch_split_total,
            "batch-refused-total": self.batch_refused_total,
            "compression-rate-avg": self._compression_rate.average(now_ms),
            "records-per-request-avg": self._records_per_request.average(now_ms),
            "record-queue-time-avg": self._queue_time_ms.average(now_ms),
            "record-queue-time-max": self._queue_time_ms.largest(now_ms),
        }
