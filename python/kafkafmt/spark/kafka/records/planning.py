"""The driver's side of a batch read: find the offsets of the logs and the bounds, and cut them into tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.spark.kafka.reading import RangeTask
from kafkafmt.spark.kafka.records.bounds import in_logs
from kafkafmt.spark.kafka.records.ranges import cut_ranges
from kafkafmt.spark.stream_offsets import Losses

if TYPE_CHECKING:
    from kafkafmt.spark.kafka.records.options import RecordReadOptions


def plan(options: RecordReadOptions) -> list[RangeTask]:
    """Return the tasks of a batch read, at least one.

    Raises ValueError for topics and partitions that do not exist, and bounds in the wrong order; DataLossError for
    offsets outside the logs, unless failOnDataLoss is false; BrokerError.
    """
    cluster = SourceBrokers(options.brokers)
    try:
        partitions = options.subscription.find(cluster)
        options.subscription.ensure_found(partitions, options.brokers.clients.bootstrap_servers)
        starts, ends = (bound.find(cluster, partitions) for bound in (options.starting, options.ending))
        first, last = cluster.beginnings(partitions), cluster.ends(partitions)
    finally:
        cluster.close()
    losses = Losses(is_error=options.brokers.fails_on_data_loss)
    starts, ends = in_logs(starts, first, last), in_logs(ends, first, last)
    for one in partitions:
        if starts[one] > ends[one]:
            found = f"{options.starting.name} is offset {starts[one]}, {options.ending.name} is offset {ends[one]}"
            raise ValueError(f"partition {one}: expected a start before the end, found {found}")
    ranges = [
        PartitionRange(one, *(losses.first_offset(one, offset, first[one], last[one]) for offset in offsets))
        for one in partitions
        if (offsets := (starts[one], ends[one]))[0] < offsets[1]
    ]
    return tasks_of(ranges, options) or [RangeTask()]


def tasks_of(ranges: Collection[PartitionRange], options: RecordReadOptions) -> list[RangeTask]:
    """Return the tasks that read these ranges."""
    return [RangeTask(one) for one in cut_ranges(ranges, options.min_partitions, options.max_records)]
