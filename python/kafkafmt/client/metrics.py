"""The accumulator's metrics, in kafka-python's registry and under Kafka's names.

kafka-python's Sender records the others itself: compression-rate-avg, records-per-request-avg, batch-size-avg.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafka.metrics import AnonMeasurable

if TYPE_CHECKING:
    from kafka.metrics import Metrics

    from kafkafmt.client.accumulator import RecordAccumulator

GROUP = "producer-metrics"


def register(metrics: Metrics, accumulator: RecordAccumulator, clock_ms: Callable[[], float]) -> None:
    """Add the split batches and the memory budget of an accumulator to the metrics of its producer."""
    budget = accumulator.budget

    def counted(name: str) -> Callable[[], float]:
        return lambda: accumulator.metrics.values(clock_ms())[name]

    measured: dict[str, tuple[str, Callable[[], float]]] = {
        "batch-split-rate": ("Batches split per second (KIP-126)", counted("batch-split-rate")),
        "batch-split-total": ("Batches split, before or after they were sent", counted("batch-split-total")),
        "batch-refused-total": ("Batches split after a broker refused them", counted("batch-refused-total")),
        "buffer-total-bytes": ("The budget: buffer_memory", lambda: budget.total_bytes),
        "buffer-available-bytes": ("Bytes of the budget that no batch holds", lambda: budget.available_bytes),
        "bufferpool-wait-time-ns-total": (
            "Nanoseconds that callers of send waited for memory (KIP-773)",
            lambda: budget.waited_seconds * 1e9,
        ),
        "waiting-threads": ("Threads in send that wait for memory now", lambda: budget.waiting),
    }
    for name, (description, measure) in measured.items():
        metrics.add_metric(
            metrics.metric_name(name, GROUP, description),
            AnonMeasurable(lambda *_, measure=measure: measure()),
        )
