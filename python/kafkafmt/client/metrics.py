"""The metrics of a producer, in kafka-python's registry and under Kafka's names.

The sender counts into `Traffic` objects, which is cheap. The registry reads them when somebody asks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka.metrics import AnonMeasurable

from kafkafmt.client.accumulator.metrics import WINDOW_MS, WINDOWS
from kafkafmt.client.clock import monotonic_ms

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata
    from kafka.metrics import Metrics

    from kafkafmt.client.accumulator import ProducerBatch, RecordAccumulator

log = logging.getLogger(__name__)

GROUP = "producer-metrics"
_TOPIC_GROUP = "producer-topic-metrics."


@dataclass(slots=True)
class _Window:
    """Counts since `began_ms`."""

    began_ms: float
    batches: int = 0
    records: int = 0
    bytes: int = 0
    retried: int = 0
    failed: int = 0
    ratios: float = 0.0
    record_sizes: int = 0
    largest_batch: int = 0
    largest_record: int = 0


class Traffic:
    """Batches that were sent, retried and refused in the last `WINDOWS` windows of `WINDOW_MS`.

    One thread counts, any thread may read. Results are 0 without values.
    """

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque([_Window(float("-inf"))], WINDOWS)

    def sent(self, batch: ProducerBatch, now_ms: float) -> None:
        """Count a batch that is sent."""
        window, size, record_size = self._window(now_ms), batch.size_in_bytes, batch.max_record_size
        window.batches += 1
        window.records += batch.record_count
        window.bytes += size
        window.ratios += batch.compression_ratio
        window.record_sizes += record_size
        if size > window.largest_batch:
            window.largest_batch = size
        if record_size > window.largest_record:
            window.largest_record = record_size

    def retried(self, records: int, now_ms: float) -> None:
        """Count records that are sent again."""
        self._window(now_ms).retried += records

    def failed(self, records: int, now_ms: float) -> None:
        """Count records that have failed."""
        self._window(now_ms).failed += records

    def average(self, name: str, now_ms: float) -> float:
        """Return a count by batch, such as `bytes`."""
        windows = self._recent(now_ms)
        batches = sum(window.batches for window in windows)
        return sum(getattr(window, name) for window in windows) / batches if batches else 0.0

    def largest(self, name: str, now_ms: float) -> float:
        """Return the largest value, such as `largest_batch`."""
        return max((getattr(window, name) for window in self._recent(now_ms)), default=0.0)

    def rate(self, name: str, now_ms: float) -> float:
        """Return a count per second. As in Kafka's Rate, a time below one window is one window longer."""
        windows = self._recent(now_ms)
        if not windows:
            return 0.0
        elapsed_ms = now_ms - windows[0].began_ms
        if elapsed_ms < WINDOW_MS:
            elapsed_ms += WINDOW_MS
        return float(sum(getattr(window, name) for window in windows) * 1000 / elapsed_ms)

    def _window(self, now_ms: float) -> _Window:
        window = self._windows[-1]
        if now_ms - window.began_ms >= WINDOW_MS:
            window = _Window(now_ms)
            self._windows.append(window)
        return window

    def _recent(self, now_ms: float) -> list[_Window]:
        return [one for one in self._windows.copy() if now_ms - one.began_ms < WINDOWS * WINDOW_MS]


class TotalTraffic(Traffic):
    """The traffic of all topics together, which is added up when somebody asks."""

    def __init__(self, topics: Mapping[str, Traffic]) -> None:
        self._topics = topics

    def _recent(self, now_ms: float) -> list[_Window]:
        windows = [window for one in list(self._topics.values()) for window in one._recent(now_ms)]
        return sorted(windows, key=lambda window: window.began_ms)


class SenderMetrics:
    """Counts of a sender, in total and by topic. registry: None to count nothing."""

    def __init__(self, registry: Metrics | None) -> None:
        self._registry = registry
        self._topics: dict[str, Traffic] = {}
        if registry is not None:
            _register(registry, GROUP, _TOTALS, TotalTraffic(self._topics))

    def sent(self, batches: Iterable[ProducerBatch], now_ms: float) -> None:
        """Count the batches of a request."""
        if self._registry is not None:
            for batch in batches:
                self._topic(batch).sent(batch, now_ms)

    def retried(self, batch: ProducerBatch) -> None:
        """Count a batch that is sent again."""
        if self._registry is not None:
            self._topic(batch).retried(batch.record_count, monotonic_ms())

    def failed(self, batch: ProducerBatch) -> None:
        """Count a batch that has failed."""
        if self._registry is not None:
            self._topic(batch).failed(batch.record_count, monotonic_ms())

    def _topic(self, batch: ProducerBatch) -> Traffic:
        topic = batch.topic_partition.topic
        traffic = self._topics.get(topic)
        if traffic is None:
            assert self._registry is not None
            traffic = self._topics[topic] = Traffic()
            try:
                _register(self._registry, _TOPIC_GROUP + topic, _BY_TOPIC, traffic)
            except Exception:  # of a metrics reporter, which must not keep records from being sent
                log.exception("the metrics of %s are not reported", topic)
        return traffic


_BY_TOPIC: dict[str, tuple[str, Callable[[Traffic, float], float]]] = {
    "record-send-rate": ("Records sent per second", lambda traffic, now: traffic.rate("records", now)),
    "byte-rate": ("Bytes sent per second", lambda traffic, now: traffic.rate("bytes", now)),
    "compression-rate": (
        "Average compressed over uncompressed size",
        lambda traffic, now: traffic.average("ratios", now),
    ),
    "record-retry-rate": ("Records sent again per second", lambda traffic, now: traffic.rate("retried", now)),
    "record-error-rate": ("Records failed per second", lambda traffic, now: traffic.rate("failed", now)),
}
_TOTALS: dict[str, tuple[str, Callable[[Traffic, float], float]]] = {
    **{name: _BY_TOPIC[name] for name in _BY_TOPIC if name != "compression-rate"},
    "batch-size-avg": ("Average bytes of a batch", lambda traffic, now: traffic.average("bytes", now)),
    "batch-size-max": (
        "Bytes of the largest batch",
        lambda traffic, now: traffic.largest("largest_batch", now),
    ),
    "record-size-avg": (
        "Average bytes of the largest record of a batch",
        lambda traffic, now: traffic.average("record_sizes", now),
    ),
    "record-size-max": (
        "Bytes of the largest record",
        lambda traffic, now: traffic.largest("largest_record", now),
    ),
}


def _register(
    registry: Metrics,
    group: str,
    measured: dict[str, tuple[str, Callable[[Traffic, float], float]]],
    traffic: Traffic,
) -> None:
    def measured_now(measure: Callable[[Traffic, float], float]) -> Callable[[], float]:
        return lambda: measure(traffic, monotonic_ms())

    for name, (description, measure) in measured.items():
        add(registry, group, name, description, measured_now(measure))


def add(registry: Metrics, group: str, name: str, description: str, measure: Callable[[], float]) -> None:
    """Add a metric that is measured when it is read."""
    registry.add_metric(registry.metric_name(name, group, description), AnonMeasurable(lambda *_: measure()))


def values_by_group(registry: Metrics) -> dict[str, dict[str, Any]]:
    """Return the values of all metrics, by group and name."""
    values: dict[str, dict[str, Any]] = {}
    for name, metric in registry.metrics.copy().items():
        values.setdefault(name.group, {})[name.name] = metric.value()
    return values


class MetadataAge:
    """The time since the metadata was updated. `ClusterMetadata.add_listener` takes it as a listener."""

    def __init__(self) -> None:
        self._updated_ms = monotonic_ms()

    def __call__(self, _: ClusterMetadata) -> None:
        """Note that the metadata was updated."""
        self._updated_ms = monotonic_ms()

    def seconds(self) -> float:
        """Return the time since the last update, or since the start."""
        return (monotonic_ms() - self._updated_ms) / 1000


def register(
    registry: Metrics,
    accumulator: RecordAccumulator,
    requests: Callable[[], float],
    metadata_age: Callable[[], float],
) -> None:
    """Add the batches and the memory budget of an accumulator, and what the functions return, to a producer's metrics.

    requests: the number of requests in flight. metadata_age: in seconds.
    """
    budget = accumulator.budget

    def counted(name: str) -> Callable[[], float]:
        return lambda: accumulator.metrics.values(monotonic_ms())[name]

    measured: dict[str, tuple[str, Callable[[], float]]] = {
        "batch-split-rate": ("Batches split per second (KIP-126)", counted("batch-split-rate")),
        "batch-split-total": ("Batches split, before or after they were sent", counted("batch-split-total")),
        "batch-refused-total": ("Batches split after a broker refused them", counted("batch-refused-total")),
        "compression-rate-avg": (
            "Average compressed over uncompressed size",
            counted("compression-rate-avg"),
        ),
        "records-per-request-avg": ("Average records of a request", counted("records-per-request-avg")),
        "record-queue-time-avg": (
            "Average milliseconds of a batch in the queue",
            counted("record-queue-time-avg"),
        ),
        "record-queue-time-max": (
            "Most milliseconds of a batch in the queue",
            counted("record-queue-time-max"),
        ),
        "buffer-total-bytes": ("The budget: buffer_memory", lambda: budget.total_bytes),
        "buffer-available-bytes": ("Bytes of the budget that no batch holds", lambda: budget.available_bytes),
        "bufferpool-wait-time-ns-total": (
            "Nanoseconds that callers of send waited for memory (KIP-773)",
            lambda: budget.waited_seconds * 1e9,
        ),
        "requests-in-flight": ("Requests that wait for a response", requests),
        "metadata-age": ("Seconds since the metadata was updated", metadata_age),
        "waiting-threads": ("Threads in send that wait for memory now", lambda: budget.waiting),
    }
    for name, (description, measure) in measured.items():
        add(registry, GROUP, name, description, measure)
