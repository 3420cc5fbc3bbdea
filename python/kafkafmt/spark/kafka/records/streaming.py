"""For streams only. `spark.readStream.format("kafkafmt.kafka")` reads the records of brokers, and then new ones.

The offsets in the checkpoint are those of Spark's Kafka source, in the same form. So a query continues from a
checkpoint of the other source. A partition that appears during a query is read from its beginning. One that was
deleted is reported as data loss, and no longer read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.listing import list_logs
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.spark.kafka.reading import RangeTask
from kafkafmt.spark.kafka.records.bounds import in_logs
from kafkafmt.spark.kafka.records.options import RecordReadOptions
from kafkafmt.spark.kafka.records.planning import tasks_of
from kafkafmt.spark.kafka.records.reading import COLUMN_TYPES, read_range
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.source.schema import OutputColumns
from kafkafmt.spark.stream_offsets import Losses, Offsets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


class RecordSource:
    """A StreamSource of the partitions that the options select."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema

    @cached_property
    def _options(self) -> RecordReadOptions:
        return RecordReadOptions.parse_stream(self._given)

    @cached_property
    def _output(self) -> OutputColumns:
        return OutputColumns.among(COLUMN_TYPES, self._options.columns, self._schema)

    def check(self) -> None:
        assert self._output

    @property
    def limit(self) -> Amount:
        return self._options.limit

    def open(self) -> RecordStream:
        self._options.warn_of_ignored(self._given, is_stream=True)
        return RecordStream(self._options)

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(task, RangeTask)
        return read_range(task, self._options, self._output)


class RecordStream:
    """An OffsetStream of the partitions that the options select."""

    def __init__(self, options: RecordReadOptions) -> None:
        self._options = options
        self._cluster = SourceBrokers(options.brokers)
        self._first: Offsets = {}
        self._ends: Offsets = {}
        self._listed_for: Offsets | None = None  # the offsets for which the ends were listed
        self._target: Offsets | None = None
        self._last_batch_at = -math.inf
        self._losses = Losses(is_error=options.brokers.fails_on_data_loss)

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets at which a new stream begins. Raises ValueError as `plan` does, and BrokerError."""
        self._list({})
        servers = self._options.brokers.clients.bootstrap_servers
        self._options.subscription.ensure_found(self._ends, servers)
        return in_logs(self._options.starting.find(self._cluster, self._ends), self._first, self._ends)

    def latest_offsets(
        self, start: Offsets | None = None, limit: Amount = UNLIMITED
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of a micro-batch: the ends of the logs, or within the limit.

        start: None if Spark does not pass it. Then lost records are found when the tasks are planned.

        Returns `start` if there are fewer offsets than minOffsetsPerTrigger. Raises DataLossError and BrokerError.
        """
        known = start if start is not None else {}
        self._list(known)
        self._losses.report_missing(known, self._ends.keys())
        wanted = self._ends if self._target is None else self._ends.keys() & self._target.keys()
        firsts = {
            one: self._first[one] if start is None else self._first_offset(one, known.get(one))
            for one in sorted(wanted)
        }
        ends = {one: max(first, self._end_offset(one)) for one, first in firsts.items()}
        if limit != UNLIMITED:
            if known and self._is_to_wait(sum(ends[one] - firsts[one] for one in ends)):
                return dict(known)
            ends = _limited(firsts, ends, limit.rows)
        # The listing of `fix_end` lacks a known partition if the broker did not know it then.
        ends = {one: known[one] for one in known.keys() & self._ends.keys()} | ends
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
            self._list(end)
            self._listed_for = end
        self._losses.report_missing({**end, **start}, self._ends.keys())
        ranges = []
        for one in sorted(end.keys() & self._ends.keys()):
            first, stop = self._first_offset(one, start.get(one)), end[one]
            if stop > self._ends[one]:
                stop = self._losses.first_offset(one, stop, self._first[one], self._ends[one])
            ranges.append(PartitionRange(one, first, stop))
        return tasks_of(ranges, self._options)

    def forget(self, offsets: Offsets) -> None:
        """Do nothing: only the last listing is kept."""

    def _list(self, known: Offsets) -> None:
        """List the offsets of the logs. known: what was listed before."""
        options = self._options
        self._first, self._ends = list_logs(self._cluster, options.subscription.find, known, options.attempts)
        self._listed_for = None

    def _first_offset(self, one: TopicPartition, wanted: int | None) -> int:
        first = self._first[one]
        # A new partition begins at offset 0, unless records were deleted before the stream found it.
        return self._losses.first_offset(
            one, 0 if wanted is None else wanted, first, max(first, self._ends[one])
        )

    def _end_offset(self, one: TopicPartition) -> int:
        end = self._ends[one]
        return end if self._target is None else min(end, self._target[one])

    def _is_to_wait(self, offsets: int) -> bool:
        """Return whether this is less than minOffsetsPerTrigger, and maxTriggerDelay has not passed."""
        least, now = self._options.min_offsets, time.monotonic()
        if (
            least is not None
            and offsets < least
            and now - self._last_batch_at < self._options.max_delay_seconds
        ):
            return True
        self._last_batch_at = now
        return False


def _limited(firsts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return ends within each partition's share of the limit, in proportion to its offsets, at least one."""
    total = sum(ends[one] - firsts[one] for one in ends)
    if total <= limit:
        return dict(ends)
    reached = {}
    for one, first in firsts.items():
        share = limit * (ends[one] - first) / total
        reached[one] = min(ends[one], first + (math.ceil(share) if share < 1 else math.floor(share)))
    return reached
