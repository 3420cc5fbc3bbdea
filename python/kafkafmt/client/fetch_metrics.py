"""The metrics of fetches, under the names of kafka-python's consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.consumer.fetcher import FetchManagerMetrics

if TYPE_CHECKING:
    from kafka.metrics import Metrics

    from kafkafmt.types import TopicPartition


class FetchMetrics:
    """Records what was fetched and consumed. metrics: kafka-python's registry; None to record nothing."""

    def __init__(self, metrics: Metrics | None, prefix: str) -> None:
        self._sensors = None if metrics is None else FetchManagerMetrics(metrics, prefix)

    def record(self, topic_partition: TopicPartition, size: int, count: int) -> None:
        """Record that so many records, of so many bytes, were consumed of a partition."""
        if self._sensors is not None:
            self._sensors.bytes_fetched.record(size)
            self._sensors.records_fetched.record(count)
            self._sensors.record_topic_fetch_metrics(topic_partition.topic, size, count)

    def record_latency(self, seconds: float) -> None:
        """Record the time of a request."""
        if self._sensors is not None:
            self._sensors.fetch_latency.record(seconds * 1000)

    def record_lag(self, lag: int) -> None:
        """Record how many records a partition has after the consumer's position."""
        if self._sensors is not None:
            self._sensors.records_fetch_lag.record(lag)
