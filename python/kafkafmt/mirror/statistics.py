"""The statistics of a mirror, for its summary, its progress lines and its metrics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from kafkafmt.build.forwarding import ForwardingStats, RefusalReason

if TYPE_CHECKING:
    from kafkafmt.log.gaps import OffsetsGone, SourceDamage
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.types import TopicPartition

# How batches are moved: as they are; combined with others; decompressed, because the target would refuse them; or as
# records.
Way: TypeAlias = Literal["raw", "combined", "opened", "deep"]


@dataclass(frozen=True)
class Stopped:
    """A partition that was stopped: the first offset that was not mirrored, and why.

    is_left_out: this is no failure, because the user has not named its topic, which would close a loop.
    """

    topic_partition: TopicPartition
    offset: int
    message: str
    is_left_out: bool = False


@dataclass(frozen=True)
class Unreached:
    """A partition that was not mirrored to the end that it had at the start, by a mirror that does not follow.

    from_offset: the offset that was reached. to_offset: the end offset.
    """

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int


class Splits(NamedTuple):
    """The batches that producers have split: all; those that a broker had refused; a second, over the last minute."""

    batches: int
    refused: int
    rate: float


@dataclass
class Moved:
    """The batches, records and bytes that the target has acknowledged, as the source counts them.

    A batch that was opened counts as the batches that were made of it, and their bytes.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0

    def add(self, batches: int, records: int, size_bytes: int) -> None:
        """Add batches that have arrived."""
        self.batches += batches
        self.records += records
        self.bytes += size_bytes

    def since(self, before: Moved) -> Moved:
        """Return the difference to an earlier count."""
        return Moved(self.batches - before.batches, self.records - before.records, self.bytes - before.bytes)


@dataclass
class Latency:
    """The times from the timestamps of a partition's records to the acknowledgement of their batches, in ms.

    One value for each batch or run of batches that was sent, by its last batch: `last`, and since the start the least,
    the most, and sum and number for the mean.
    """

    last: int = 0
    least: int = 0
    most: int = 0
    total: int = 0
    count: int = 0

    def note(self, latency_ms: int) -> None:
        """Count one value."""
        self.least = min(self.least, latency_ms) if self.count else latency_ms
        self.most = max(self.most, latency_ms)
        self.last = latency_ms
        self.total += latency_ms
        self.count += 1

    @property
    def mean(self) -> float:
        """The mean since the start; 0 without values."""
        return self.total / self.count if self.count else 0.0


@dataclass
class Statistics:
    """The statistics of a mirror.

    budget: the bytes that the mirror holds.
    ways: what was moved in each way, over all partitions.
    combined_into: the number of batches that were made of combined ones.
    forwarding: the counts of the forwarders, which change batches so that a broker accepts them.
    possibly_doubled: the number of records that may be at the target twice.
    batch_metrics: return the metrics of the producers' batches, by Kafka's name.
    topics: the names of mirrored topics at the target, by those at the source.
    left_out_topics: topics that were not mirrored, because that would close a loop, and why.
    unsynced_topics: topics whose configuration the target has refused, and why.
    failed_tasks: such as the sync of groups, at the end of the mirror.
    latencies: from the timestamps of records to the acknowledgement of the target.
    last_timestamps: those of the last records that have arrived, in ms.
    clock: returns the time in seconds, as `time.time`.
    """

    budget: MemoryBudget
    moved: defaultdict[TopicPartition, Moved] = field(default_factory=lambda: defaultdict(Moved))
    ways: dict[Way, Moved] = field(default_factory=lambda: {way: Moved() for way in get_args(Way)})
    combined_into: int = 0
    forwarding: list[ForwardingStats] = field(default_factory=list)
    skipped: list[SourceDamage] = field(default_factory=list)
    stopped: dict[TopicPartition, Stopped] = field(default_factory=dict)
    unreached: list[Unreached] = field(default_factory=list)
    failed_tasks: list[str] = field(default_factory=list)
    gone: list[OffsetsGone] = field(default_factory=list)
    possibly_doubled: int = 0
    batch_metrics: list[Callable[[], Mapping[str, float]]] = field(default_factory=list)
    lag: dict[TopicPartition, int] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    left_out_topics: dict[str, str] = field(default_factory=dict)
    unsynced_topics: dict[str, str] = field(default_factory=dict)
    latencies: defaultdict[TopicPartition, Latency] = field(default_factory=lambda: defaultdict(Latency))
    last_timestamps: dict[TopicPartition, int] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    began: float = field(default_factory=time.monotonic)

    def count(self, topic_partition: TopicPartition, moved: Moved, way: Way, max_timestamp: int) -> None:
        """Count batches that have arrived, or one batch that was made of combined ones.

        max_timestamp: of the last batch, in ms; -1 if it has none.
        """
        for counted in (self.moved[topic_partition], self.ways[way]):
            counted.add(moved.batches, moved.records, moved.bytes)
        self.combined_into += way == "combined"
        if max_timestamp >= 0:
            self.last_timestamps[topic_partition] = max_timestamp
            # Clocks of producers may be ahead.
            self.latencies[topic_partition].note(max(int(self.clock() * 1000) - max_timestamp, 0))

    @property
    def failures(self) -> dict[TopicPartition, Stopped]:
        """The partitions that were stopped, without those that were left out."""
        return {one: stopped for one, stopped in self.stopped.copy().items() if not stopped.is_left_out}

    @property
    def lag_seconds(self) -> dict[TopicPartition, float]:
        """The age of the last mirrored record, by partition; 0 if the partition has no record after it."""
        now, known = self.clock(), self.last_timestamps.copy()
        return {
            one: max(round(now - known[one] / 1000, 3), 0.0) if lag and one in known else 0.0
            for one, lag in self.lag.copy().items()
            if one in known or not lag
        }

    @property
    def total(self) -> Moved:
        """Return the sum over all partitions."""
        total = Moved()
        for moved in self.moved.values():
            total.add(moved.batches, moved.records, moved.bytes)
        return total

    @property
    def opened(self) -> dict[str, int]:
        """The number of batches of the source that were decompressed or up-converted, by reason."""
        return _summed(stats.opened for stats in self.forwarding)

    @property
    def left_out(self) -> dict[str, int]:
        """The number of batches that were left out, by reason."""
        return _summed(stats.left_out for stats in self.forwarding)

    @property
    def splits(self) -> Splits:
        """The batches that the producers have split, because the target would have refused them or has (KIP-126)."""
        counts = [metrics() for metrics in self.batch_metrics]
        return Splits(
            int(sum(one["batch-split-total"] for one in counts)),
            int(sum(one["batch-refused-total"] for one in counts)),
            sum(one["batch-split-rate"] for one in counts),
        )

    @property
    def gone_offsets(self) -> int:
        """The number of offsets that the source deleted before they were mirrored."""
        return sum(one.to_offset - one.from_offset for one in self.gone.copy())

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        total, splits = self.total, self.splits
        seconds = round(time.monotonic() - self.began, 3)
        return {
            "batches": total.batches,
            "records": total.records,
            "bytes": total.bytes,
            "ways": {way: asdict(moved) for way, moved in self.ways.items()},
            "combined_into": self.combined_into,
            "batch_split_total": splits.batches,
            "batch_refused_total": splits.refused,
            "batch_split_rate": round(splits.batches / seconds, 3) if seconds else 0.0,
            "opened": self.opened,
            "left_out": self.left_out,
            "skipped": [
                _of_partition(
                    one.topic_partition,
                    first_offset=one.offset,
                    next_offset=one.next_offset,
                    message=one.message,
                )
                for one in self.skipped
            ],
            "possibly_doubled": self.possibly_doubled,
            "topics": dict(sorted(self.topics.items())),
            "left_out_topics": dict(sorted(self.left_out_topics.items())),
            "unsynced_topics": dict(sorted(self.unsynced_topics.items())),
            "failed_tasks": self.failed_tasks,
            "lag": {str(partition): lag for partition, lag in sorted(self.lag.items())},
            "lag_seconds": {str(one): seconds for one, seconds in sorted(self.lag_seconds.items())},
            "replication_latency_ms": {
                str(one): {
                    "last": known.last,
                    "min": known.least,
                    "avg": round(known.mean, 3),
                    "max": known.most,
                }
                for one, known in sorted(self.latencies.items())
            },
            "stopped": [
                _of_partition(topic_partition, offset=one.offset, message=one.message)
                for topic_partition, one in sorted(self.failures.items())
            ],
            "unreached": [_offsets(one) for one in self.unreached],
            "gone": [_offsets(one) for one in self.gone],
            "memory": {
                one.name: {"total_bytes": one.total_bytes, "peak_bytes": one.peak_bytes}
                for one in self.budget.usage()
            },
            "seconds": seconds,
        }


def _of_partition(topic_partition: TopicPartition, **values: object) -> dict[str, object]:
    return {"topic": topic_partition.topic, "partition": topic_partition.partition, **values}


def _offsets(one: Unreached | OffsetsGone) -> dict[str, object]:
    return _of_partition(one.topic_partition, from_offset=one.from_offset, to_offset=one.to_offset)


def _summed(counters: Iterable[Counter[RefusalReason]]) -> dict[str, int]:
    total: Counter[RefusalReason] = Counter()
    for counter in counters:
        total.update(dict(counter))  # copied at once, because metrics are read in another thread
    return {reason.value: count for reason, count in total.items() if count}
