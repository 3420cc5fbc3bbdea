"""The records of a cluster, for a scan: `kafka://HOST:PORT[,HOST:PORT][/TOPIC,...]`.

Brokers do not know where in a log an offset is stored. So partitions are cut into tasks by offsets, in proportion to
the sizes of their logs, also within batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kafkafmt._util.names import found_in_words, some_names
from kafkafmt.columns.read import arrow_schema
from kafkafmt.scanning.brokers.cluster import SourceBrokers
from kafkafmt.scanning.brokers.listing import Attempts, list_logs
from kafkafmt.scanning.brokers.options import BrokerOptions
from kafkafmt.scanning.brokers.records import FETCH_BYTES, read_ranges
from kafkafmt.scanning.brokers.runs import PartitionRange
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.options import ReadColumns
from kafkafmt.scanning.selection import TopicSelection
from kafkafmt.scanning.tasks import OffsetRange
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

# The assumed size of a record if brokers do not tell the sizes of logs.
_RECORD_BYTES = 1024
_LEAST_FETCH_BYTES = 64 * 1024
# A scan fails after this time if its cluster does not answer at the start.
_BOOTSTRAP_MS = 5000


@dataclass(frozen=True)
class BrokerTask:
    """Ranges of partitions that one process reads. It can be pickled, and has the passwords of the clients.

    size_in_bytes: about the stored bytes of the ranges. most_bytes: of the largest one.
    """

    ranges: Mapping[TopicPartition, OffsetRange]
    columns: tuple[str, ...]
    options: BrokerOptions
    batch_bytes: int
    size_in_bytes: int
    most_bytes: int

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises the errors of `read_ranges`."""
        names = self.columns if columns is None else tuple(columns)
        output = ReadColumns(names, arrow_schema(names))
        ranges = [PartitionRange(one, *offsets) for one, offsets in self.ranges.items()]
        # What a fetch has beyond the end of a range is dropped.
        fetch_bytes = min(FETCH_BYTES, _LEAST_FETCH_BYTES + self.most_bytes)
        return read_ranges(ranges, self.options, output, self.batch_bytes, fetch_bytes)


@dataclass(frozen=True)
class BrokerSource:
    """The records of a cluster. A `RecordSource`.

    partitions: those that are read; None for all of the topics. start, end: timestamps in milliseconds; None for those
    of the partitions. batch_bytes: about the size of an Arrow batch. has_answered: whether the brokers have answered
    before. If they are unavailable later, the source waits longer for them, and topics and partitions may be missing.
    followed: those of the partitions that a tail reads; None for all. known: the next offsets of a tail. Logs that a
    listing lacks, or that end before, are listed again before they count as deleted or truncated.
    """

    options: BrokerOptions
    topics: TopicSelection
    partitions: frozenset[TopicPartition] | None
    start: int | None
    end: int | None
    batch_bytes: int
    has_answered: bool = False
    followed: frozenset[TopicPartition] | None = None
    known: Mapping[TopicPartition, int] = field(default_factory=dict)

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the offsets of the partitions. The first call fixes them.

        Raises ScanError, in one line, for topics and partitions that do not exist; BrokerError.
        """
        return self._found.ranges

    @property
    def folders(self) -> Sequence[Path]:
        """None: a cluster has no folders here."""
        return ()

    def ensure_readable(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Do nothing: brokers say where a partition ends, and a task reports damage before that."""

    def find_timestamp(
        self, timestamp: int, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after a time in milliseconds; None without any.

        Raises BrokerError.
        """
        with closing(SourceBrokers(self.options)) as cluster:
            return cluster.at_timestamp(partitions, timestamp)

    def refreshed(self, read: Mapping[TopicPartition, int], *, has_new: bool) -> BrokerSource:
        """Return the source as it is now, without bounds of time. has_new: it has partitions that `read` lacks."""
        followed = None if has_new else frozenset(read)
        return replace(self, start=None, end=None, has_answered=True, followed=followed, known=dict(read))

    def tasks(
        self, ranges: Mapping[TopicPartition, OffsetRange], columns: Sequence[str], split_bytes: int
    ) -> Sequence[BrokerTask]:
        """Return tasks that read these ranges, in order. Small ranges share a task, large ones have several."""
        tasks: list[BrokerTask] = []
        together: dict[TopicPartition, tuple[OffsetRange, int]] = {}

        def end_task() -> None:
            sizes = [size for _, size in together.values()]
            parts = {one: part for one, (part, _) in together.items()}
            tasks.append(
                BrokerTask(parts, tuple(columns), self.options, self.batch_bytes, sum(sizes), max(sizes))
            )
            together.clear()

        for one, wanted in sorted(ranges.items()):
            for part in _cut(wanted, -(-self._size(one, wanted) // split_bytes)):
                size = self._size(one, part)
                if together and (
                    one in together or size + sum(size for _, size in together.values()) > split_bytes
                ):
                    end_task()
                together[one] = part, size
        if together:
            end_task()
        return tasks

    def _size(self, one: TopicPartition, wanted: OffsetRange) -> int:
        """Return about the stored bytes of a range of a partition."""
        return int((wanted.end - wanted.start) * self._found.record_bytes.get(one, _RECORD_BYTES))

    @cached_property
    def _found(self) -> _Found:
        bootstrap_ms = None if self.has_answered else _BOOTSTRAP_MS
        with closing(SourceBrokers(self.options, bootstrap_ms)) as cluster:
            first, last = list_logs(cluster, self._followed_partitions, self.known, Attempts())
            partitions = sorted(last)
            starts = {} if self.start is None else cluster.at_timestamp(partitions, self.start)
            ends = {} if self.end is None else cluster.at_timestamp(partitions, self.end)
            sizes = cluster.stored_bytes(partitions)
        ranges = {}
        for one in partitions:
            start, end = starts.get(one, first[one]), ends.get(one, last[one])
            stop = last[one] if end is None else min(end, last[one])
            ranges[one] = OffsetRange(stop if start is None else min(start, stop), stop)
        return _Found(ranges, {one: size / max(1, last[one] - first[one]) for one, size in sizes.items()})

    def _followed_partitions(self, cluster: SourceBrokers) -> list[TopicPartition]:
        return [one for one in self._partitions(cluster) if self.followed is None or one in self.followed]

    def _partitions(self, cluster: SourceBrokers) -> list[TopicPartition]:
        found = set(cluster.partitions(self.topics.names)) if self.topics.names else set()
        if self.topics.globs or self.topics.is_everything:
            found.update(one for one in cluster.partitions(None) if one.topic in self.topics)
        if self.has_answered:
            return sorted(found if self.partitions is None else self.partitions & found)
        self._ensure_all(found, cluster)
        return sorted(found if self.partitions is None else self.partitions)

    def _ensure_all(self, found: AbstractSet[TopicPartition], cluster: SourceBrokers) -> None:
        """Raise ScanError if a topic or partition that is asked for is not among those found."""
        servers = self.options.clients.bootstrap_servers
        topics = {one.topic for one in found}
        missing = self.topics.unmatched(topics)
        if missing is not None:
            known = {one.topic for one in cluster.partitions(None)}
            raise ScanError(f"no topic {missing!r} in {servers}: {found_in_words(missing, known)}")
        if not found:
            raise ScanError(f"no topic but Kafka's own in {servers}")
        unknown = sorted((self.partitions or frozenset()) - found)
        if unknown:
            raise ScanError(
                f"no partition {unknown[0]} in {servers}: found {some_names(map(str, sorted(found)))}"
            )


@dataclass(frozen=True)
class _Found:
    """What the brokers have: the ranges, and about the stored bytes of a record of each partition, if known."""

    ranges: Mapping[TopicPartition, OffsetRange]
    record_bytes: Mapping[TopicPartition, float]


def _cut(wanted: OffsetRange, count: int) -> Iterator[OffsetRange]:
    """Yield `count` parts of about equal size, without empty ones."""
    start = wanted.start
    for part in range(max(count, 1)):
        end = start + (wanted.end - start) // (max(count, 1) - part)
        if end > start:
            yield OffsetRange(start, end)
        start = end
