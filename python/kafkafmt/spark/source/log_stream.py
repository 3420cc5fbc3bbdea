"""For streams only, on the driver: find the offsets of the logs, the end of a micro-batch, and its tasks.

Folders are listed once for each trigger. Of each log, only new headers are read, and those of the micro-batch if it is
limited. The state that is kept only saves work: a stream that restarts from a checkpoint without it reads the same
rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from kafkafmt.log.end_tracker import EndTracker
from kafkafmt.log.log_snapshot import LogSnapshot
from kafkafmt.log.overlaps import SegmentEnds
from kafkafmt.scanning.logs import ensure_not_renamed, find_logs, located
from kafkafmt.scanning.planning import find_bound, tasks
from kafkafmt.scanning.selection import LATEST, ensure_all_named
from kafkafmt.spark.source.limits import Lag, share
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.source.reading import ReadTask
from kafkafmt.spark.stream_offsets import Losses, Offsets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.log.splitting import Place, Split
    from kafkafmt.spark.source.options import ReadOptions, StreamOptions


class LogStream:
    """An OffsetStream of the logs that the options name. Opens nothing before the first call."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._logs: dict[TopicPartition, LogSnapshot] = {}
        self._trackers: dict[TopicPartition, EndTracker] = {}
        self._ends = SegmentEnds(warns=True)
        self._places: dict[TopicPartition, dict[int, Place]] = {}
        self._last: Offsets | None = None  # the offsets for which the logs were listed
        self._target: Offsets | None = None
        self._losses = Losses(is_error=options.fails_on_data_loss)
        self._turns = itertools.count()

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets at which a new stream begins, by the options.

        Raises FileNotFoundError, ValueError and KafkaFormatError as `plan` does.
        """
        self._list()
        starting, logs = self._options.read.starting, self._logs
        ensure_all_named("startingOffsets", starting, {str(log): one for one, log in logs.items()})
        return {topic_partition: self._initial_offset(log) for topic_partition, log in logs.items()}

    def latest_offsets(
        self, start: Offsets | None = None, limit: Amount = UNLIMITED
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of a micro-batch from `start`: the ends of the logs, or earlier ones within `limit`.

        A partition that `start` lacks is new, and is read from its beginning. The limit does not apply to a log in
        which damage that is skipped hides the start. Raises DataLossError if records at `start` were deleted, unless
        failOnDataLoss is false, and the errors of `initial_offsets`.
        """
        self._list()
        known = start if start is not None else {}
        self._losses.report_missing(known, self._logs.keys())
        ends = dict(known)
        lags = []
        for topic_partition, log in self._logs.items():
            first = self._first_offset(log, known.get(topic_partition))
            end = self._end_offset(topic_partition, first)
            if end is None:
                continue
            ends[topic_partition] = end
            self._remember(topic_partition, self._trackers[topic_partition].end_place, keep=first)
            if limit != UNLIMITED and end > first:
                begin, stop = self._place(log, first), self._place(log, end)
                if begin is not None and stop is not None:
                    lags.append(Lag(log, begin, stop))
        for lag, place in zip(lags, share(lags, limit, next(self._turns)), strict=True):
            assert lag.log.topic_partition is not None
            ends[lag.log.topic_partition] = place.offset
            self._remember(lag.log.topic_partition, place, keep=lag.start.offset)
        self._last = ends
        return ends

    def fix_end(self) -> None:
        """Make the stream end at the current ends of the logs."""
        self._list()
        self._target = self.end_offsets()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Return the end offsets of the logs, by the isolation level, when they were last listed."""
        return {one: self._trackers[one].stable_offset for one in self._logs}

    def tasks(self, start: Offsets, end: Offsets) -> list[ReadTask]:
        """Return tasks that read the records from `start` to before `end`. Raises the errors of `latest_offsets`."""
        if end != self._last:
            self._list()
            self._last = end
        self._losses.report_missing({**end, **start}, self._logs.keys())
        splits = (split for one in sorted(end) for split in self._splits(one, start.get(one), end[one]))
        return [ReadTask(one) for one in tasks(splits, self._options.read.split_bytes)]

    def forget(self, offsets: Offsets) -> None:
        """Release the state of records before `offsets`, which have been read."""
        for topic_partition, tracker in self._trackers.items():
            tracker.forget_before(offsets.get(topic_partition, 0))

    @cached_property
    def _located(self) -> ReadOptions:
        return located(self._options.read)

    def _list(self) -> None:
        logs: dict[TopicPartition, LogSnapshot] = {}
        for log in find_logs(self._located, may_grow=True, ends=self._ends):
            if log.topic_partition is None:
                raise ValueError(
                    f"{log.folder}: expected a folder named <topic>-<partition>, or the options topic and partition"
                )
            logs[log.topic_partition] = log
        ensure_not_renamed(logs.values(), self._options.read.topic_partition)
        is_committed = self._options.read.isolation == "read_committed"
        self._trackers = {one: self._trackers.get(one) or EndTracker() for one in logs}
        for topic_partition, log in logs.items():
            self._trackers[topic_partition].follow_listed(log, follows_transactions=is_committed)
        self._ends.keep({log.folder for log in logs.values()})
        self._logs, self._last = logs, None

    def _initial_offset(self, log: LogSnapshot) -> int:
        assert log.topic_partition is not None
        starting, stable = self._options.read.starting, self._trackers[log.topic_partition].stable_offset
        given = starting.offsets[log.topic_partition] if starting.offsets is not None else None
        if starting.is_latest or given == LATEST:
            return stable
        found = find_bound(log, "startingOffsets", starting)
        if found is None:
            return log.start_offset if starting.timestamp is None else stable
        return found

    def _first_offset(self, log: LogSnapshot, wanted: int | None) -> int:
        assert log.topic_partition is not None
        end = self._trackers[log.topic_partition].end_offset
        return self._losses.first_offset(
            log.topic_partition, wanted, log.start_offset, end, where=f" ({log.folder})"
        )

    def _end_offset(self, topic_partition: TopicPartition, first: int) -> int | None:
        """Return the offset to read a partition to; None for a partition that appeared after `fix_end`."""
        stable = self._trackers[topic_partition].stable_offset
        if self._target is not None:
            if topic_partition not in self._target:
                return None
            stable = min(stable, self._target[topic_partition])
        return max(first, stable)

    def _place(self, log: LogSnapshot, offset: int) -> Place | None:
        """Return the place of an offset in its log, or None if damage that is skipped hides it."""
        assert log.topic_partition is not None
        end = self._trackers[log.topic_partition].end_place
        if end.offset == offset:
            return end
        known = self._places.get(log.topic_partition, {}).get(offset)
        if known is not None:
            segments = (one for one in log.segments if one.base_offset == known.base_offset)
            if any(map(known.is_in, segments)):
                return known
        return log.find_place(offset)

    def _remember(self, topic_partition: TopicPartition, place: Place, *, keep: int) -> None:
        """Keep a place at which the next micro-batch may start. Drop other places, except that of offset `keep`."""
        places = self._places.get(topic_partition, {})
        kept = {keep: places[keep]} if keep in places else {}
        self._places[topic_partition] = {**kept, place.offset: place}

    def _splits(self, topic_partition: TopicPartition, start: int | None, end: int) -> Iterator[Split]:
        log = self._logs.get(topic_partition)
        if log is None:
            return
        first, tracker = self._first_offset(log, start), self._trackers[topic_partition]
        if end > tracker.end_offset:
            self._first_offset(log, end)
        is_all = end >= tracker.end_offset
        places = self._places.get(topic_partition, {})
        if first < end:
            stop, most_bytes = None if is_all else end, self._options.read.split_bytes
            yield from log.splits(most_bytes, first, stop, tracker.aborted_transactions, places)
