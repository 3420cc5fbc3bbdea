"""The driver's side of a stream: which offsets there are, how far a micro-batch goes, and the tasks that read it.

Folders are listed once a trigger, and of each log nothing is read but what is new and, where a micro-batch is limited,
the headers of what it takes. All that is remembered saves work and no more: a stream that begins again from a
checkpoint, knowing nothing, comes to the same rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafmt.spark.selection import LATEST, ensure_all_named
from kafkafmt.spark.source.following import LogFollower
from kafkafmt.spark.source.limits import Lag, share
from kafkafmt.spark.source.logs import Log, Place, SegmentEnds, Split, find_logs
from kafkafmt.spark.source.options import UNLIMITED, Amount
from kafkafmt.spark.source.planning import ReadTask, find_bound, tasks
from kafkafmt.spark.stream_offsets import Losses, Offsets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.spark.source.options import StreamOptions


class LogStream:
    """Follows the logs that the options name. To be asked by one thread; it opens nothing before."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._logs: dict[TopicPartition, Log] = {}
        self._followers: dict[TopicPartition, LogFollower] = {}
        self._ends = SegmentEnds()
        self._places: dict[TopicPartition, dict[int, Place]] = {}
        self._last: Offsets | None = None  # what the logs that are listed go with
        self._target: Offsets | None = None
        self._losses = Losses(is_error=options.fails_on_data_loss)
        self._turns = itertools.count()

    def initial_offsets(self) -> dict[TopicPartition, int]:
        """Where a new stream begins, by the options.

        Raises FileNotFoundError, ValueError and KafkaFormatError as `plan` does.
        """
        self._list()
        starting, logs = self._options.read.starting, self._logs
        ensure_all_named("startingOffsets", starting, {str(log): one for one, log in logs.items()})
        return {topic_partition: self._initial_offset(log) for topic_partition, log in logs.items()}

    def latest_offsets(
        self, start: Offsets | None = None, limit: Amount = UNLIMITED
    ) -> dict[TopicPartition, int]:
        """How far a micro-batch goes that begins at `start`: to where the logs end, or to what the limit leaves.

        The limit does not hold for a log in which damage hides where to begin, and that is to be passed over.
        A partition that `start` lacks is new, and read from its beginning. Raises DataLossError where records
        at `start` are gone, unless the options have the stream go on, and as `initial_offsets`.
        """
        self._list()
        known = start if start is not None else {}
        self._losses.look_for_partitions(known, self._logs.keys())
        ends = dict(known)
        lags = []
        for topic_partition, log in self._logs.items():
            first = self._first_offset(log, known.get(topic_partition))
            end = self._end_offset(topic_partition, first)
            if end is None:
                continue
            ends[topic_partition] = end
            self._remember(topic_partition, self._followers[topic_partition].end, keep=first)
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
        """Let the stream end where the logs do now."""
        self._list()
        self._target = self.end_offsets()

    def end_offsets(self) -> dict[TopicPartition, int]:
        """Where the logs ended, for the isolation that is asked for, when they were listed last."""
        return {one: self._followers[one].stable_offset for one in self._logs}

    def tasks(self, start: Offsets, end: Offsets) -> list[ReadTask]:
        """What reads the records from `start` to in front of `end`. Raises as `latest_offsets` does."""
        if end != self._last:
            self._list()
            self._last = end
        self._losses.look_for_partitions(start, self._logs.keys())
        splits = (split for one in sorted(end) for split in self._splits(one, start.get(one), end[one]))
        return list(tasks(splits, self._options.read.split_bytes))

    def forget(self, offsets: Offsets) -> None:
        """Forget what concerns records in front of `offsets` alone, which have been read."""
        for topic_partition, follower in self._followers.items():
            follower.forget(offsets.get(topic_partition, 0))

    def _list(self) -> None:
        logs: dict[TopicPartition, Log] = {}
        for log in find_logs(self._options.read, may_grow=True, ends=self._ends):
            if log.topic_partition is None:
                raise ValueError(f"{log.folder}: its name tells no partition: options topic and partition do")
            logs[log.topic_partition] = log
        is_committed = self._options.read.isolation == "read_committed"
        self._followers = {
            one: self._followers.get(one) or LogFollower(is_committed=is_committed) for one in logs
        }
        for topic_partition, log in logs.items():
            self._followers[topic_partition].follow(log)
        self._ends.keep(logs.values())
        self._logs, self._last = logs, None

    def _initial_offset(self, log: Log) -> int:
        assert log.topic_partition is not None
        starting, stable = self._options.read.starting, self._followers[log.topic_partition].stable_offset
        given = starting.offsets[log.topic_partition] if starting.offsets is not None else None
        if starting.is_latest or given == LATEST:
            return stable
        found = find_bound(log, "startingOffsets", starting)
        if found is None:
            return log.start_offset if starting.timestamp is None else stable
        return found

    def _first_offset(self, log: Log, wanted: int | None) -> int:
        assert log.topic_partition is not None
        end = self._followers[log.topic_partition].end.offset
        return self._losses.first_offset(
            log.topic_partition, wanted, log.start_offset, end, where=f" ({log.folder})"
        )

    def _end_offset(self, topic_partition: TopicPartition, first: int) -> int | None:
        """How far a partition can be read; None where the stream is not to know it any more."""
        stable = self._followers[topic_partition].stable_offset
        if self._target is not None:
            if topic_partition not in self._target:
                return None
            stable = min(stable, self._target[topic_partition])
        return max(first, stable)

    def _place(self, log: Log, offset: int) -> Place | None:
        """Where an offset is; None where damage hides it that is passed over."""
        assert log.topic_partition is not None
        end = self._followers[log.topic_partition].end
        if end.offset == offset:
            return end
        known = self._places.get(log.topic_partition, {}).get(offset)
        return known if known is not None and log.holds(known) else log.find_place(offset)

    def _remember(self, topic_partition: TopicPartition, place: Place, *, keep: int) -> None:
        """Note a place that the next micro-batch may begin at; of others none but that of offset `keep`."""
        places = self._places.get(topic_partition, {})
        kept = {keep: places[keep]} if keep in places else {}
        self._places[topic_partition] = {**kept, place.offset: place}

    def _splits(self, topic_partition: TopicPartition, start: int | None, end: int) -> Iterator[Split]:
        log = self._logs.get(topic_partition)
        if log is None:
            return
        first, follower = self._first_offset(log, start), self._followers[topic_partition]
        if end > follower.end.offset:
            self._first_offset(log, end)
        is_all = end >= follower.end.offset
        places = self._places.get(topic_partition, {})
        if first < end:
            yield from log.splits(first, None if is_all else end, follower.aborted, places)
