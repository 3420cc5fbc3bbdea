"""What a mirror has moved, for its summary, its progress lines and its metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafkafmt.forwarding import ForwardingStats, RefusalReason

if TYPE_CHECKING:
    from kafkafmt.log.reading import SourceDamage
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.mirror.moving import OffsetsGone, Stopped, Unreached
    from kafkafmt.types import TopicPartition


@dataclass
class Moved:
    """What the target has acknowledged, by the source's batches."""

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batches: int, records: int, size_bytes: int) -> None:
        self.batches += batches
        self.records += records
        self.bytes += size_bytes


@dataclass
class Statistics:
    """forwarding: what forwarders have counted, where batches are made such that a broker takes them.

    budget: of what the mirror holds.
    """

    budget: MemoryBudget
    moved: defaultdict[TopicPartition, Moved] = field(default_factory=lambda: defaultdict(Moved))
    forwarding: list[ForwardingStats] = field(default_factory=list)
    skipped: list[SourceDamage] = field(default_factory=list)
    stopped: dict[TopicPartition, Stopped] = field(default_factory=dict)
    unreached: list[Unreached] = field(default_factory=list)
    gone: list[OffsetsGone] = field(default_factory=list)
    possibly_doubled: int = 0
    lag: dict[TopicPartition, int] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @property
    def total(self) -> Moved:
        total = Moved()
        for moved in self.moved.values():
            total.add(moved.batches, moved.records, moved.bytes)
        return total

    @property
    def opened(self) -> dict[str, int]:
        """Batches by the reason why they were decompressed, or converted up."""
        return _summed(stats.opened for stats in self.forwarding)

    @property
    def left_out(self) -> dict[str, int]:
        """Batches of which nothing goes on, by the reason."""
        return _summed(stats.left_out for stats in self.forwarding)

    @property
    def gone_offsets(self) -> int:
        """Offsets that the source deleted before they were mirrored."""
        return sum(one.to_offset - one.from_offset for one in self.gone.copy())

    def as_dict(self) -> dict[str, Any]:
        """The summary for machines."""
        total = self.total
        return {
            "batches": total.batches,
            "records": total.records,
            "bytes": total.bytes,
            "opened": self.opened,
            "left_out": self.left_out,
            "skipped": [
                {
                    "topic": one.topic_partition.topic,
                    "partition": one.topic_partition.partition,
                    "first_offset": one.offset,
                    "next_offset": one.next_offset,
                    "message": one.message,
                }
                for one in self.skipped
            ],
            "possibly_doubled": self.possibly_doubled,
            "lag": {str(partition): lag for partition, lag in sorted(self.lag.items())},
            "stopped": [
                {
                    "topic": topic,
                    "partition": partition,
                    "offset": one.offset,
                    "message": one.message,
                }
                for (topic, partition), one in sorted(self.stopped.items())
            ],
            "unreached": [
                {
                    "topic": one.topic_partition.topic,
                    "partition": one.topic_partition.partition,
                    "from_offset": one.from_offset,
                    "to_offset": one.to_offset,
                }
                for one in self.unreached
            ],
            "gone": [
                {
                    "topic": one.topic_partition.topic,
                    "partition": one.topic_partition.partition,
                    "from_offset": one.from_offset,
                    "to_offset": one.to_offset,
                }
                for one in self.gone
            ],
            "memory": {
                one.name: {"total_bytes": one.total_bytes, "peak_bytes": one.peak_bytes}
                for one in self.budget.usage()
            },
            "seconds": round(time.monotonic() - self.began, 3),
        }


def _summed(counters: Iterable[Counter[RefusalReason]]) -> dict[str, int]:
    total: Counter[RefusalReason] = Counter()
    for counter in counters:
        total.update(dict(counter))  # at once: a scrape is in another thread than the mirror
    return {reason.value: count for reason, count in total.items() if count}
