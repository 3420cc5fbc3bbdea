"""Export the statistics of a mirror as Prometheus metrics, with prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from prometheus_client import Metric

    from kafkafmt.mirror.statistics import Statistics

_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
_PARTITION = ("topic", "partition")


def registry_of(statistics: Statistics) -> CollectorRegistry:
    """Return a registry that reads the statistics at each scrape."""
    registry = CollectorRegistry()
    registry.register(_Statistics(statistics))
    return registry


class _Statistics(Collector):
    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        yield from _moved(self._statistics)
        yield from _ways(self._statistics)
        yield from _reasons(self._statistics)
        yield from _lags(self._statistics)
        yield from _times(self._statistics)
        yield from _topics(self._statistics)
        yield from _counters(self._statistics)
        yield from _memory(self._statistics)


def _moved(statistics: Statistics) -> Iterator[Metric]:
    """Yield what the target has acknowledged of each partition."""
    moved = list(statistics.moved.items())
    for name, help_text in (
        ("batches", "Batches that the target has acknowledged: those of the source, or made of opened ones."),
        ("records", "Records that the target has acknowledged."),
        ("bytes", "Bytes of batches that the target has acknowledged."),
    ):
        family = CounterMetricFamily(f"kafkafmt_mirror_{name}", help_text, labels=_PARTITION)
        yield _filled(family, [(one, getattr(known, name)) for one, known in moved])


def _ways(statistics: Statistics) -> Iterator[Metric]:
    """Yield what was moved in each way."""
    for name, help_text in (
        ("batches", "Acknowledged batches, by the way in which they were moved."),
        ("records", "Acknowledged records, by the way in which they were moved."),
        ("bytes", "Bytes of acknowledged batches, by the way in which they were moved."),
    ):
        family = CounterMetricFamily(f"kafkafmt_mirror_way_{name}", help_text, labels=["way"])
        yield _filled(family, [((way,), getattr(known, name)) for way, known in statistics.ways.items()])


def _reasons(statistics: Statistics) -> Iterator[Metric]:
    """Yield how many batches were opened or left out for each reason."""
    for name, help_text, by_reason in (
        (
            "opened_batches",
            "Batches of the source that had to be decompressed, by reason.",
            statistics.opened,
        ),
        ("left_out_batches", "Batches that were left out, by reason.", statistics.left_out),
    ):
        family = CounterMetricFamily(f"kafkafmt_mirror_{name}", help_text, labels=["reason"])
        yield _filled(family, (((reason,), count) for reason, count in by_reason.items()))


def _lags(statistics: Statistics) -> Iterator[Metric]:
    """Yield how far each partition is behind in offsets."""
    help_text = "Offsets between the position that has arrived and the end of the source."
    family = GaugeMetricFamily("kafkafmt_mirror_lag", help_text, labels=_PARTITION)
    yield _filled(family, list(statistics.lag.items()))


def _times(statistics: Statistics) -> Iterator[Metric]:
    """Yield how far each partition is behind in time."""
    lag = GaugeMetricFamily(
        "kafkafmt_mirror_lag_seconds",
        "Age of the last record that has arrived, if the source has more; else 0.",
        labels=_PARTITION,
    )
    yield _filled(lag, list(statistics.lag_seconds.items()))
    known = list(statistics.latencies.items())
    for suffix, help_text, values in (
        ("", "of the last batch", [(one, latency.last) for one, latency in known]),
        ("_min", "the least since the start", [(one, latency.least) for one, latency in known]),
        ("_avg", "the mean since the start", [(one, latency.mean) for one, latency in known]),
        ("_max", "the most since the start", [(one, latency.most) for one, latency in known]),
    ):
        text = f"Time from the timestamp of a record to its acknowledgement: {help_text}."
        yield _filled(
            GaugeMetricFamily(f"kafkafmt_mirror_replication_latency_ms{suffix}", text, labels=_PARTITION),
            values,
        )


def _topics(statistics: Statistics) -> Iterator[Metric]:
    """Yield the names of topics, and how many topics and partitions are not mirrored."""
    family = GaugeMetricFamily(
        "kafkafmt_mirror_topic_info",
        "The name of a mirrored topic at the target; always 1.",
        labels=["topic", "target_topic"],
    )
    yield _filled(family, ((names, 1) for names in statistics.topics.copy().items()))
    yield GaugeMetricFamily(
        "kafkafmt_mirror_left_out_topics",
        "Topics that are not mirrored, because their records came from the target.",
        value=len(statistics.left_out_topics),
    )
    yield GaugeMetricFamily(
        "kafkafmt_mirror_stopped_partitions",
        "Partitions that were stopped.",
        value=len(statistics.failures),
    )


def _counters(statistics: Statistics) -> Iterator[Metric]:
    """Yield what is counted over all partitions."""
    splits = statistics.splits
    yield GaugeMetricFamily(
        "kafkafmt_mirror_batch_split_rate",
        "Batches that were split in a second, over the last minute (KIP-126).",
        value=splits.rate,
    )
    for name, help_text, count in (
        ("batch_split", "Batches that were split (KIP-126).", splits.batches),
        ("batch_refused", "Batches that were split because the target had refused them.", splits.refused),
        ("combined_into_batches", "Batches that were made of combined ones.", statistics.combined_into),
        ("skipped_stretches", "Damaged ranges that were skipped.", len(statistics.skipped)),
        (
            "gone_offsets",
            "Offsets that the source deleted before they were mirrored.",
            statistics.gone_offsets,
        ),
        (
            "possibly_doubled_records",
            "Records that may be at the target twice.",
            statistics.possibly_doubled,
        ),
    ):
        yield CounterMetricFamily(f"kafkafmt_mirror_{name}", help_text, value=count)


def _memory(statistics: Statistics) -> Iterator[Metric]:
    """Yield the bytes of each budget."""
    usage = statistics.budget.usage()
    for name, help_text in (
        ("total", "Total bytes of a budget."),
        ("held", "Bytes of a budget that are held."),
        ("peak", "Most bytes of a budget that were held."),
    ):
        family = GaugeMetricFamily(f"kafkafmt_memory_{name}_bytes", help_text, labels=["budget"])
        yield _filled(family, (((one.name,), getattr(one, f"{name}_bytes")) for one in usage))


def _filled(family: _Family, values: Iterable[tuple[Iterable[object], float]]) -> _Family:
    """Add a value for each list of labels."""
    for labels, value in values:
        family.add_metric(list(map(str, labels)), value)
    return family
