"""Progress lines: what has moved since the last one, in all and by partition, and how far behind each is."""

from __future__ import annotations

import time

import structlog

from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# A line each for the partitions farthest behind, no more: there may be thousands.
_MOST_PARTITIONS = 20


class Progress:
    """To be called every so often with the statistics."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()
        self._told: dict[TopicPartition, Moved] = {}

    def __call__(self, statistics: Statistics) -> None:
        now = time.monotonic()
        seconds = max(now - self._told_at, 1e-9)
        moved = {one: _since(known, self._told.get(one)) for one, known in statistics.moved.items()}
        total = Moved()
        for part in moved.values():
            total.add(part.batches, part.records, part.bytes)
        _log.info(
            "progress",
            lag=sum(statistics.lag.values()),
            bytes_per_second=round(total.bytes / seconds),
            batches_per_second=round(total.batches / seconds),
            opened=statistics.opened,
            left_out=statistics.left_out,
            partitions_stopped=len(statistics.stopped),
            memory_held_bytes=statistics.budget.held_bytes,
        )
        behind = sorted({*moved, *statistics.lag}, key=lambda one: -statistics.lag.get(one, 0))
        for one in behind[:_MOST_PARTITIONS]:
            part = moved.get(one, Moved())
            if part.bytes or statistics.lag.get(one):
                _log.info(
                    "progress of a partition",
                    partition=str(one),
                    lag=statistics.lag.get(one),
                    bytes_per_second=round(part.bytes / seconds),
                    batches_per_second=round(part.batches / seconds),
                )
        self._told_at = now
        self._told = {
            one: Moved(known.batches, known.records, known.bytes) for one, known in statistics.moved.items()
        }


def _since(now: Moved, before: Moved | None) -> Moved:
    if before is None:
        return now
    return Moved(now.batches - before.batches, now.records - before.records, now.bytes - before.bytes)
