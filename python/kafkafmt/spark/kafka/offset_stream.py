"""The driver's side: find the offsets of the logs, the end of a read or micro-batch, and the ranges of its tasks.

Micro-batches end between batches: at the ends of the logs, or at an edge of the batch that contains the limit. The
driver keeps no state that a stream needs after a restart from its checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.listing import Attempts, list_logs
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.scanning.brokers.splitting import cut_ranges
from kafkafmt.scanning.selection import LATEST, Bound, ensure_all_named
from kafkafmt.spark.kafka.reading import RangeTask
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.stream_offsets import Losses, Offsets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.spark.kafka.options import KafkaReadOptions


def plan(options: KafkaReadOptions) -> list[RangeTask]:
    """Return the tasks of a batch read, or one task with an empty range if there are no records.

    Raises ValueError for topics that do not exist and offsets outside the log, and BrokerError.
    """
    cluster = SourceBrokers(options.brokers)
    try:
        partitions = options.subscription.find(cluster)
        options.subscription.ensure_found(partitions, options.clients.bootstrap_servers)
        first, last = cluster.beginnings(partitions), cluster.ends(partitions)
        bounds = _Bounds(cluster, first, last)
        starts = bounds.find("startingOffsets", options.starting, first)
        ends = bounds.find("endingOffsets", options.ending, last)
        ranges = [PartitionRange(one, starts[one], ends[one]) for one in partitions]
        for one in ranges:
            if (
                one.start > one.end
                and options.starting.timestamp is None
                and options.ending.timestamp is None
            ):
                what = f"startingOffsets {one.start} is after endingOffsets {one.end}"
                raise ValueError(f"partition {one.topic_partition}: {what}")
        cut = cut_ranges(ranges, options.min_partitions, cluster)
        return [RangeTask(one) for one in cut] or [RangeTask()]
    finally:
        cluster.close()


class KafkaStream:
    """An OffsetStream of the partitions that the options select."""

    def __init__(self, options: KafkaReadOptions) -> None:
        self._options = options
        self._cluster = SourceBrokers(options.brokers)
        self._first: Offsets = {}
        self._ends: Offsets = {}
        self._listed_for: Offsets | None = None  # the offsets for which the ends were listed
        self._target: Offsets | None = None
        self._deleted: AbstractSet[TopicPartition] = (
            frozenset()
        )  # what the last listing lacked, after all attempts
        self._losses = Losses(is_error=options.fails_on_data_loss)

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets at which a new stream begins. Raises the errors of `plan`."""
        self._list({})
        self._options.subscription.ensure_found(self._ends, self._options.clients.bootstrap_servers)
        bounds = _Bounds(self._cluster, self._first, self._ends)
        return bounds.find("startingOffsets", self._options.starting, self._first)

    def latest_offsets(
        self, start: Offsets | None = None, limit: Amount = UNLIMITED
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of a micro-batch: the ends of the logs, or of the last batches within the limit.

        A partition that `start` lacks is new, and is read from its beginning. Raises DataLossError and BrokerError.
        """
        known = start if start is not None else {}
        self._list(known)
        self._losses.report_missing(known, self._ends.keys())
        firsts = {one: self._first_offset(one, known.get(one)) for one in self._ends}
        ends = {
            **known,
            **{one: end for one in firsts if (end := self._end_offset(one, firsts[one])) is not None},
        }
        if limit != UNLIMITED:
            ends |= self._limited(
                {one: (firsts[one], ends[one]) for one in firsts if one in ends}, limit.rows
            )
        self._listed_for = ends
        return ends

    def end_offsets(self) -> Offsets:
        """Return the end offsets of the partitions, by the isolation level, when they were last listed."""
        return self._ends

    def fix_end(self) -> None:
        """Make the stream end at the current ends of the partitions. Raises BrokerError."""
        self._list({})
        self._target = self._ends

    def tasks(self, start: Offsets, end: Offsets) -> list[RangeTask]:
        """Return the tasks from `start` to before `end`. Raises the errors of `latest_offsets`."""
        if end != self._listed_for:
            self._list({**start, **end})
            self._listed_for = end
        self._losses.report_missing({**end, **start}, self._ends.keys())
        ranges = []
        for one in sorted(end.keys() & self._ends.keys()):
            first, stop = self._first_offset(one, start.get(one)), end[one]
            if stop > self._ends[one]:
                stop = self._first_offset(one, stop)
            ranges.append(PartitionRange(one, first, stop))
        return [RangeTask(one) for one in cut_ranges(ranges, self._options.min_partitions, self._cluster)]

    def forget(self, offsets: Offsets) -> None:
        """Do nothing: only the last listing is kept."""

    def _list(self, known: Offsets) -> None:
        """List the offsets of the logs. known: what was listed before. Partitions that were deleted are not awaited."""
        awaited = {one: offset for one, offset in known.items() if one not in self._deleted}
        subscription = self._options.subscription
        self._first, self._ends = list_logs(self._cluster, subscription.find, awaited, Attempts())
        self._deleted = known.keys() - self._ends.keys()
        self._listed_for = None

    def _first_offset(self, one: TopicPartition, wanted: int | None) -> int:
        return self._losses.first_offset(one, wanted, self._first[one], self._ends[one])

    def _end_offset(self, one: TopicPartition, first: int) -> int | None:
        """Return the offset to read a partition to; None for a partition that appeared after `fix_end`."""
        end = self._ends[one]
        if self._target is not None:
            if one not in self._target:
                return None
            end = min(end, self._target[one])
        return max(first, end)

    def _limited(
        self, spans: Mapping[TopicPartition, tuple[int, int]], limit: int
    ) -> dict[TopicPartition, int]:
        """Return ends within each partition's share of the limit, in complete batches, at least one batch each.

        spans: the first offset and the end of each partition. limit: in offsets.
        """
        total = sum(end - first for first, end in spans.values())
        if total <= limit:
            return {}
        reached = {
            one: first + max(1, math.floor(limit * (end - first) / total))
            for one, (first, end) in spans.items()
            if end > first
        }
        inside = {one: offset for one, offset in reached.items() if offset < spans[one][1]}
        for one, (below, above) in self._cluster.batch_edges(inside).items():
            first, end = spans[one]
            reached[one] = below if below > first else min(above, end)
        return reached


class _Bounds:
    """Converts bounds to offsets, in partitions with the given first offsets and ends."""

    def __init__(self, cluster: SourceBrokers, first: Offsets, last: Offsets) -> None:
        self._cluster = cluster
        self._first = first
        self._last = last

    def find(self, name: str, bound: Bound, own: Offsets) -> dict[TopicPartition, int]:
        """Return the offset of each partition for a bound.

        name: of the option, for messages. own: the default offsets, the starts or the ends of the logs. Raises
        ValueError for missing or unknown partitions and for offsets outside the log.
        """
        if bound.is_latest:
            return dict(self._last)
        if bound.timestamp is not None:
            at = self._cluster.at_timestamp(own, bound.timestamp)
            return {one: self._last[one] if (found := at[one]) is None else found for one in own}
        if bound.offsets is None:
            return dict(own)
        ensure_all_named(name, bound, {str(one): one for one in own})
        return {one: self._offset(name, one, bound.offsets[one], own[one]) for one in own}

    def _offset(self, name: str, one: TopicPartition, given: int | None, own: int) -> int:
        if given is None:
            return own
        first, last = self._first[one], self._last[one]
        if given == LATEST:
            return last
        if not first <= given <= last:
            has = f"the log has {first} to {last}"
            raise ValueError(f"partition {one}: {name} {given} is outside the log: {has}")
        return given
