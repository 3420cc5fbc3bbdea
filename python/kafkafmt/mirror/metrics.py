"""What a mirror has moved, in Prometheus' form (library: prometheus-client): its statistics, when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric

    from kafkafmt.mirror.statistics import Statistics

_PARTITION = ("topic", "partition")


def registry_of(statistics: Statistics) -> CollectorRegistry:
    """A registry whose metrics are these statistics."""
    registry = CollectorRegistry()
    registry.register(_Statistics(statistics))
    return registry


class _Statistics(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        statistics = self._statistics
        moved = list(statistics.moved.items())
        for name, help_text in (
            ("batches", "Batches that the target has acknowledged."),
            ("records", "Records that the target has acknowledged."),
            ("bytes", "Bytes of batches that the target has acknowledged."),
        ):
            counter = CounterMetricFamily(f"kafkafmt_mirror_{name}", help_text, labels=_PARTITION)
            for (topic, partition), known in moved:
                counter.add_metric([topic, str(partition)], getattr(known, name))
            yield counter
        for name, help_text, counts in (
            ("opened_batches", "Batches that had to be decompressed, by the reason.", statistics.opened),
            ("left_out_batches", "Batches of which nothing went on, by the reason.", statistics.left_out),
        ):
            counter = CounterMetricFamily(f"kafkafmt_mirror_{name}", help_text, labels=["reason"])
            for reason, count in counts.items():
                counter.add_metric([reason], count)
            yield counter
        lag = GaugeMetricFamily(
            "kafkafmt_mirror_lag",
            "Offsets that the source's end is ahead of what has arrived.",
            labels=_PARTITION,
        )
        for (topic, partition), behind in list(statistics.lag.items()):
            lag.add_metric([topic, str(partition)], behind)
        yield lag
        yield GaugeMetricFamily(
            "kafkafmt_mirror_stopped_partitions",
            "Partitions that are mirrored no further.",
            value=len(statistics.stopped),
        )
        yield CounterMetricFamily(
            "kafkafmt_mirror_skipped_stretches",
            "Damaged stretches that were passed over.",
            value=len(statistics.skipped),
        )
        yield CounterMetricFamily(
            "kafkafmt_mirror_gone_offsets",
            "Offsets that the source deleted before they were mirrored.",
            value=statistics.gone_offsets,
        )
        yield CounterMetricFamily(
            "kafkafmt_mirror_possibly_doubled_records",
            "Records that may be at the target twice.",
            value=statistics.possibly_doubled,
        )
        usage = statistics.budget.usage()
        for name, help_text, sizes in (
            ("total", "What may be held of a budget.", [one.total_bytes for one in usage]),
            ("held", "What is held of a budget.", [one.held_bytes for one in usage]),
            ("peak", "The most that ever was.", [one.peak_bytes for one in usage]),
        ):
            gauge = GaugeMetricFamily(f"kafkafmt_memory_{name}_bytes", help_text, labels=["budget"])
            for one, size in zip(usage, sizes, strict=True):
                gauge.add_metric([one.name], size)
            yield gauge
