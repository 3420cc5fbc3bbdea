"""The records of logs, for a scan: folders and URIs, in tasks of some splits of segments."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkafmt._util.names import some_names
from kafkafmt.columns.read import arrow_schema
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.end_tracker import EndTracker
from kafkafmt.log.overlaps import SegmentEnds, find_readable_end
from kafkafmt.scanning.errors import ScanError
from kafkafmt.scanning.logs import find_logs, located, shown_paths
from kafkafmt.scanning.options import LogReadOptions, ReadColumns
from kafkafmt.scanning.planning import PLANNED_AT_ONCE, PlannedLog, planned_log, tasks
from kafkafmt.scanning.selection import Bound
from kafkafmt.scanning.splits import read_split
from kafkafmt.scanning.tasks import OffsetRange
from kafkafmt.storage import is_uri
from kafkafmt.storage.locations import absolute_paths

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.log.log_snapshot import LogSnapshot
    from kafkafmt.log.splitting import Place, Split
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class LogTask:
    """Splits of segments that one process reads. It can be pickled.

    ranges: the offsets of each partition among which the task reads; those of tasks that share a segment overlap.
    """

    splits: tuple[Split, ...]
    options: LogReadOptions
    columns: tuple[str, ...]
    ranges: Mapping[TopicPartition, OffsetRange]

    @property
    def size_in_bytes(self) -> int:
        return sum(split.end - split.start for split in self.splits)

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises the errors of `read_split`."""
        names = self.columns if columns is None else tuple(columns)
        output = ReadColumns(names, arrow_schema(names))
        for split in self.splits:
            yield from read_split(split, self.options, output)


@dataclass(frozen=True)
class _BoundedLog:
    """A planned log, and its offsets.

    reaches_end: the end is that of the listed log. damage: why the log cannot be read, as its transactions or bounds
    are not known. end_damage: what hides the end of the log.
    """

    planned: PlannedLog
    range: OffsetRange
    reaches_end: bool
    damage: KafkaFormatError | None = None
    end_damage: KafkaFormatError | None = None


class LogFollower:
    """What is known of logs that are read again and again as they grow: of each, only what is new is read."""

    def __init__(self) -> None:
        self.ends = SegmentEnds(warns=True)
        self._trackers: dict[TopicPartition, EndTracker] = {}
        self._end_places: dict[TopicPartition, Place] = {}  # when the logs were last looked at

    def follow(self, log: LogSnapshot, *, is_committed: bool) -> _BoundedLog:
        """Return the log as it is now. Raises KafkaFormatError for damage in headers, unless it is skipped."""
        assert log.topic_partition is not None
        tracker = self._trackers.setdefault(log.topic_partition, EndTracker())
        tracker.follow_listed(log, follows_transactions=is_committed)
        before, place = self._end_places.get(log.topic_partition), tracker.end_place
        self._end_places[log.topic_partition] = place
        places = {one.offset: one for one in (before, place) if one is not None}
        planned = PlannedLog(log, None, None, tracker.aborted_transactions, places)
        return _BoundedLog(planned, OffsetRange(log.start_offset, tracker.stable_offset), False)

    def forget_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Forget the transactions that ended before these offsets, and the logs that these lack."""
        for one in self._trackers.keys() - offsets.keys():
            del self._trackers[one], self._end_places[one]
        for one, tracker in self._trackers.items():
            tracker.forget_before(offsets[one])


@dataclass(frozen=True)
class LogSource:
    """The records of logs. A `RecordSource`.

    options: its bounds have timestamps only. partitions: those that are read; None for all of the topics. follower: of
    logs that grow; they need not exist yet.
    """

    options: LogReadOptions
    partitions: frozenset[TopicPartition] | None = None
    follower: LogFollower | None = None

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the offsets of the partitions. Raises as `plan_logs`, but no damage: later calls do."""
        return {one: found.range for one, found in self._logs.items()}

    @property
    def folders(self) -> list[Path]:
        """The local folders that are read. Those below a view of tiered storage or of a backup are not among them."""
        given = [
            path
            for path in self.options.paths
            if isinstance(path, str) and (not is_uri(path) or path.lower().startswith("file:"))
        ]
        return [path for path in absolute_paths(given) if isinstance(path, Path)]

    def ensure_readable(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Raise KafkaFormatError if one of these ranges ends where damage hides the rest of its log."""
        for one, wanted in sorted(ranges.items()):
            found = self._logs.get(one)
            damage = None if found is None else found.damage or found.end_damage
            if found is not None and damage is not None and wanted.end >= found.range.end:
                raise damage

    def find_timestamp(
        self, timestamp: int, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after a time in milliseconds; None without any."""
        with ThreadPoolExecutor(PLANNED_AT_ONCE) as threads:
            found = threads.map(lambda one: self._logs[one].planned.log.find_timestamp(timestamp), partitions)
            return {
                one: None if place is None else place.offset
                for one, place in zip(partitions, found, strict=True)
            }

    def refreshed(self, read: Mapping[TopicPartition, int], *, has_new: bool) -> LogSource:
        """Return the source as it is now, without bounds.

        read: the next offset of each partition. has_new: whether partitions that it lacks are read.
        """
        follower, options = self.follower, self.options
        if follower is None:
            follower, options = LogFollower(), located(replace(options, starting=Bound(), ending=Bound()))
        follower.forget_before(read)
        return LogSource(options, self.partitions if has_new else frozenset(read), follower)

    def tasks(
        self, ranges: Mapping[TopicPartition, OffsetRange], columns: Sequence[str], split_bytes: int
    ) -> Sequence[LogTask]:
        """Return the tasks of the ranges, by topic, partition and offset. Splits of small logs share a task.

        Raises KafkaFormatError if damage hides what planning must read of one of the logs.
        """
        logs = [(one, self._part(one, wanted)) for one, wanted in sorted(ranges.items()) if one in self._logs]
        with ThreadPoolExecutor(PLANNED_AT_ONCE) as threads:
            found = list(threads.map(lambda one: list(one[1].splits(split_bytes)), logs))
        of_folders = {
            split.segment.path.parent: one
            for (one, _), some in zip(logs, found, strict=True)
            for split in some
        }
        # The tasks do not find the logs again, so the paths, which may have credentials, stay here.
        options = replace(self.options, paths=(), file_system={})
        made = []
        for splits in tasks(chain.from_iterable(found), split_bytes):
            covered: dict[TopicPartition, OffsetRange] = {}
            for split in splits:
                one = of_folders[split.segment.path.parent]
                covered[one] = _with_split(covered.get(one), split, ranges[one])
            made.append(LogTask(splits, options, tuple(columns), covered))
        return made

    def _part(self, one: TopicPartition, wanted: OffsetRange) -> PlannedLog:
        found = self._logs[one]
        if found.damage is not None:
            raise found.damage
        end = None if found.reaches_end and wanted.end >= found.range.end else wanted.end
        return replace(found.planned, start=wanted.start, end=end)

    @cached_property
    def _logs(self) -> dict[TopicPartition, _BoundedLog]:
        follower = self.follower
        logs = self._found()
        if follower is not None:
            is_committed = self.options.isolation == "read_committed"
            follower.ends.keep({log.folder for log in logs.values()})
            return {one: follower.follow(log, is_committed=is_committed) for one, log in logs.items()}
        with ThreadPoolExecutor(PLANNED_AT_ONCE) as threads:
            bounded = threads.map(lambda log: _bounded(log, self.options), logs.values())
            return dict(zip(logs, bounded, strict=True))

    def _found(self) -> dict[TopicPartition, LogSnapshot]:
        may_grow = self.follower is not None
        try:
            found = find_logs(
                self.options, may_grow=may_grow, ends=None if self.follower is None else self.follower.ends
            )
        except ValueError as error:
            raise ScanError(str(error)) from None
        logs = {}
        for log in found:
            if log.topic_partition is None:
                raise ScanError(
                    f"{log.folder}: expected a folder named TOPIC-PARTITION: rename it, or in Python give its one "
                    "partition as partitions="
                )
            logs[log.topic_partition] = log
        missing = sorted((self.partitions or frozenset()) - logs.keys())
        if missing and not may_grow:
            found_here = some_names(map(str, sorted(logs)))
            raise ScanError(
                f"no partition {missing[0]} in {shown_paths(self.options.paths)}: found {found_here}"
            )
        return {one: log for one, log in logs.items() if self.partitions is None or one in self.partitions}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_logs"}


def _bounded(log: LogSnapshot, options: LogReadOptions) -> _BoundedLog:
    damage = end_damage = None
    try:
        planned = planned_log(log, options)
    except KafkaFormatError as error:  # of this log: others can be read
        planned, damage = PlannedLog(log, None, None), error
    end = planned.end
    if end is None:
        end, end_damage = _end_offset(log)
    start = min(max(planned.start or 0, log.start_offset), end)
    return _BoundedLog(planned, OffsetRange(start, end), planned.end is None, damage, end_damage)


def _end_offset(log: LogSnapshot) -> tuple[int, KafkaFormatError | None]:
    """Return the end of a log. If damage hides it, return that of the last readable batch, and the damage."""
    damage = None
    try:
        end = log.end_offset
    except KafkaFormatError as error:
        end, damage = None, error
    if end is not None:
        return end, None
    ends = (find_readable_end(segment) for segment in reversed(log.read_segments.segments))
    return max(next(ends), log.start_offset), damage


def _with_split(covered: OffsetRange | None, split: Split, wanted: OffsetRange) -> OffsetRange:
    """Return the offsets that earlier splits and this one may have, by the bounds of its segment."""
    first = split.segment.base_offset if split.start_offset is None else split.start_offset
    last = split.segment.next_base_offset if split.end_offset is None else split.end_offset
    start = max(first, wanted.start) if covered is None else covered.start
    return OffsetRange(start, wanted.end if last is None else max(start, min(last, wanted.end)))
