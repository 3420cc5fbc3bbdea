"""Log progress: the rates since the last report, in total and by partition, and the lag of each partition."""

from __future__ import annotations

import time
from dataclasses import replace

import structlog

from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# Only the partitions with the largest lag get a line each, as there may be thousands.
_MAX_PARTITIONS = 20


class Progress:
    """Logs progress each time it is called with the statistics."""

    def __init__(self) -> None:
        self._reported_at = time.monotonic()
        self._reported: dict[TopicPartition, Moved] = {}

    def __call__(self, statistics: Statistics) -> None:
        now = time.monotonic()
        seconds = max(now - self._reported_at, 1e-9)
        moved = {
            one: known.since(self._reported.get(one, Moved())) for one, known in statistics.moved.items()
        }
        total = Moved()
        for part in moved.values():
            total.add(part.batches, part.records, part.bytes)
        _log.info(
            "progress",
            lag=sum(statistics.lag.values()),
            bytes_per_second=round(total.bytes / seconds),
            batches_per_second=round(total.batches / seconds),
            batches_by_way={way: known.batches for way, known in statistics.ways.items() if known.batches},
            opened=statistics.opened,
            left_out=statistics.left_out,
            partitions_stopped=len(statistics.failures),
            memory_held_bytes=statistics.budget.held_bytes,
        )
        behind = sorted({*moved, *statistics.lag}, key=lambda one: -statistics.lag.get(one, 0))
        for one in behind[:_MAX_PARTITIONS]:
            part = moved.get(one, Moved())
            if part.bytes or statistics.lag.get(one):
                _log.info(
                    "progress of a partition",
                    partition=str(one),
                    lag=statistics.lag.get(one),
                    bytes_per_second=round(part.bytes / seconds),
                    batches_per_second=round(part.batches / seconds),
                )
        self._reported_at = now
        self._reported = {one: replace(known) for one, known in statistics.moved.items()}
