"""Lag in seconds, and the latency that MirrorMaker 2 has as `replication-latency-ms`."""

from __future__ import annotations

from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.types import TopicPartition

PARTITION = TopicPartition("t", 0)
MOVED = Moved(1, 10, 100)


def test_latency_when_batches_arrive_then_has_the_last_one_the_extremes_and_the_mean() -> None:
    now = 1000.0
    statistics = Statistics(MemoryBudget(1, "mirror"), clock=lambda: now)
    for timestamp in (999_000, 999_800, 999_400):
        statistics.count(PARTITION, MOVED, "raw", timestamp)
    statistics.count(PARTITION, MOVED, "raw", -1)  # a batch of format v0
    summary = statistics.as_dict()["replication_latency_ms"]
    assert summary == {"t-0": {"last": 600, "min": 200, "avg": 600.0, "max": 1000}}
    statistics.count(PARTITION, MOVED, "raw", 2_000_000)  # its producer's clock is ahead
    assert statistics.latencies[PARTITION].least == 0


def test_lag_in_seconds_when_the_source_has_more_then_is_the_age_of_the_last_record() -> None:
    now = 1000.0
    statistics = Statistics(MemoryBudget(1, "mirror"), clock=lambda: now)
    other, idle = PARTITION._replace(partition=1), PARTITION._replace(partition=2)
    statistics.count(PARTITION, MOVED, "raw", 999_500)
    statistics.count(idle, MOVED, "raw", 1_000)
    statistics.lag = {PARTITION: 7, other: 3, idle: 0}
    assert statistics.lag_seconds == {PARTITION: 0.5, idle: 0.0}, "nothing of the other one has arrived"
