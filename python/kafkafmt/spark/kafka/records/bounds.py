"""Where a read of records begins and ends in each partition, by the rules of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.scanning.selection import EARLIEST, LATEST
from kafkafmt.spark.values import MAX_LONG, json_value
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.scanning.brokers.cluster import SourceBrokers
    from kafkafmt.spark.stream_offsets import Offsets

ByPartition = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class RecordBound:
    """The start or the end of a read.

    name: of the option that gave it, for messages.
    offsets: EARLIEST or LATEST for all partitions, or an offset, EARLIEST or LATEST for each partition.
    timestamps: milliseconds for all partitions or for each; instead of `offsets`. The bound is the offset of the first
    record at or after the timestamp.
    unmatched_is_latest: whether a partition without such a record has its end as the bound. If not, it is an error.
    """

    name: str
    offsets: int | ByPartition = LATEST
    timestamps: int | ByPartition | None = None
    unmatched_is_latest: bool = True

    def find(
        self, cluster: SourceBrokers, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return an offset, EARLIEST or LATEST for each partition.

        A given offset may be outside the log. Raises ValueError if partitions are missing or unknown, or no record
        matches a timestamp; BrokerError.
        """
        given = self.offsets if self.timestamps is None else self.timestamps
        if isinstance(given, int):
            given = dict.fromkeys(partitions, given)
        self._ensure_all_named(given, partitions)
        return dict(given) if self.timestamps is None else self._at_timestamps(cluster, given)

    def _at_timestamps(self, cluster: SourceBrokers, given: ByPartition) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for time in set(given.values()):
            at = cluster.at_timestamp([one for one in given if given[one] == time], time)
            unmatched = sorted(one for one, offset in at.items() if offset is None)
            if unmatched and not self.unmatched_is_latest:
                raise ValueError(
                    f"partition {unmatched[0]}: {self.name} {time}: found no record at or after it; "
                    "startingOffsetsByTimestampStrategy=latest begins at the end"
                )
            found.update((one, LATEST if offset is None else offset) for one, offset in at.items())
        return found

    def _ensure_all_named(self, given: ByPartition, partitions: Collection[TopicPartition]) -> None:
        """Raise ValueError unless `given` has all partitions and no others."""
        missing = sorted(set(partitions) - given.keys())
        if missing:
            raise ValueError(
                f"option {self.name}: expected every partition, found none of {', '.join(map(str, missing))}"
            )
        unknown = sorted(given.keys() - set(partitions))
        if unknown:
            raise ValueError(f"option {self.name}: {', '.join(map(str, unknown))}: no such partition is read")


def parse_by_partition(value: str, least: int) -> dict[TopicPartition, int]:
    """Parse Spark's JSON of numbers by partition. least: the least number. Raises ValueError."""
    example = '{"topic": {"0": 23, "1": -1}}' if least < 0 else '{"topic": {"0": 1700000000000}}'
    expected = f"expected JSON as {example}"
    given = json_value(value)
    found: dict[TopicPartition, int] = {}
    for topic, partitions in given.items() if isinstance(given, dict) else [("", None)]:
        for partition, number in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            if not partition.isdecimal() or type(number) is not int or not least <= number <= MAX_LONG:
                raise ValueError(expected)
            found[TopicPartition(topic, int(partition))] = number
    if not found:
        raise ValueError(expected)
    return found


def ensure_in_order(start: RecordBound, end: RecordBound) -> None:
    """Raise ValueError if both bounds are given by partition, and name others or are in the wrong order."""
    for low, high in ((start.offsets, end.offsets), (start.timestamps, end.timestamps)):
        if not isinstance(low, Mapping) or not isinstance(high, Mapping):
            continue
        other = sorted(low.keys() ^ high.keys())
        if other:
            both = f"options {start.name} and {end.name}"
            raise ValueError(f"{both}: expected the same partitions, found {other[0]} in one of them")
        for one in sorted(low):
            if low[one] > high[one] >= 0:
                raise ValueError(f"partition {one}: {start.name} {low[one]} is after {end.name} {high[one]}")


def in_logs(found: ByPartition, first: Offsets, last: Offsets) -> dict[TopicPartition, int]:
    """Return the offsets with those of the logs' starts and ends instead of EARLIEST and LATEST."""
    logs = {EARLIEST: first, LATEST: last}
    return {one: logs[offset][one] if offset in logs else offset for one, offset in found.items()}
