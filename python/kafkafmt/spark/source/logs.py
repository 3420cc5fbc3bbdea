"""The logs of partitions as they are listed, and the stretches of their segments that lie between two offsets.

Nothing is decompressed, but for the one batch that a timestamp is looked for in. Of a segment the driver reads its
indexes where a bound lies in it or it is to be cut, and its headers where there are none.
"""

from __future__ import annotations

import contextlib
import difflib
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex
from kafkafmt.log.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    SegmentIndexes,
    SegmentRange,
    begins_batch,
    find_row,
)
from kafkafmt.log.splitting import split_points
from kafkafmt.spark.files import SegmentFile, list_segments, open_records, read_index
from kafkafmt.spark.locations import without_secrets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import numpy as np

    from kafkafmt.records import Records
    from kafkafmt.spark.source.options import ReadOptions

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Split:
    """A stretch of a segment, from the beginning of a batch to that of another or to the end.

    start_offset, end_offset: records in front of the one, and from the other on, are left out; None: none are.
    is_log_end: it ends where its log does, so that a batch may be cut off there.
    aborted: the transactions whose records are left out.
    """

    segment: SegmentFile
    start: int
    end: int
    start_offset: int | None = None
    end_offset: int | None = None
    is_log_end: bool = False
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True)
class Place:
    """Between two batches: at `position` of the segment that is named for `base_offset`.

    Every record in front of it has a lower offset than `offset`, and every batch behind it ends there or later.
    """

    offset: int
    base_offset: int
    position: int


def find_logs(options: ReadOptions, *, may_grow: bool = False) -> list[Log]:
    """The logs of the partitions that are asked for, in their order.

    may_grow: folders that hold no log yet, and globs and patterns that no topic matches yet, are waited for.
    Raises FileNotFoundError and ValueError, in one line, for paths that hold no log and topics that are not there.
    """
    folders: dict[str, list[SegmentFile]] = {}
    for segment in list_segments(options.paths, options.file_system, may_be_empty=may_grow):
        folders.setdefault(posixpath.dirname(segment.uri), []).append(_named(segment, options))
    logs = [
        Log(folder, tuple(sorted(segments, key=lambda segment: segment.base_offset)), options)
        for folder, segments in folders.items()
    ]
    if not may_grow:
        _ensure_topics(logs, options)
    chosen = [log for log in logs if _is_chosen(log, options)]
    _ensure_distinct(chosen)
    return sorted(chosen, key=lambda log: (log.topic_partition or ("", 0), log.folder))


def _ensure_topics(logs: Sequence[Log], options: ReadOptions) -> None:
    topics = {log.topic for log in logs if log.topic is not None}
    missing = options.topics.unmatched(topics)
    if missing is not None:
        near = difflib.get_close_matches(missing, topics, 3, cutoff=0)
        paths = ", ".join(map(without_secrets, options.paths))
        raise ValueError(f"no topic {missing!r} in {paths}: found {', '.join(near) or 'none'}")


def _named(segment: SegmentFile, options: ReadOptions) -> SegmentFile:
    if options.topic_partition is None or segment.topic_partition is not None:
        return segment
    return replace(segment, topic_partition=options.topic_partition)


def _is_chosen(log: Log, options: ReadOptions) -> bool:
    return options.topics.is_everything or (log.topic is not None and log.topic in options.topics)


def _ensure_distinct(logs: Sequence[Log]) -> None:
    folders: dict[TopicPartition, str] = {}
    for log in logs:
        if log.topic_partition is not None:
            other = folders.setdefault(log.topic_partition, log.folder)
            if other != log.folder:
                both = f"{other} and {log.folder}"
                raise ValueError(
                    f"partition {log.topic_partition} is in {both}: its records would come twice"
                )


@dataclass(frozen=True)
class Log:
    """The segments of one partition, one at the least, by base offset, and how they are to be read."""

    folder: str
    segments: tuple[SegmentFile, ...]
    options: ReadOptions

    def __str__(self) -> str:
        return str(self.topic_partition or self.folder)

    @property
    def topic_partition(self) -> TopicPartition | None:
        return self.segments[0].topic_partition

    @property
    def topic(self) -> str | None:
        return self.topic_partition.topic if self.topic_partition is not None else None

    @property
    def start_offset(self) -> int:
        """The base offset of the first segment. Records may begin behind it."""
        return self.segments[0].base_offset

    @cached_property
    def end_offset(self) -> int | None:
        """The offset behind the last whole batch; None where damage hides it, that is not to stop the read."""
        segment = self.segments[-1]
        try:
            with self.open(segment) as records:
                return read_indexes(segment).find_next_offset(records)
        except KafkaFormatError:
            if self.options.on_corrupt == "fail":
                raise
            return None

    def holds(self, place: Place) -> bool:
        """Whether a batch still begins at a place, and stands for what it did."""
        segment = self.segment_at(place.base_offset)
        if segment is None or segment.size_in_bytes <= place.position:
            return False
        with self.open(segment) as records:
            return begins_batch(records, place.position, place.base_offset, place.offset)

    def segment_at(self, base_offset: int) -> SegmentFile | None:
        """The segment that is named for just that offset."""
        return next((one for one in self.segments if one.base_offset == base_offset), None)

    def find_place(self, offset: int) -> Place | None:
        """Where the batch that holds `offset`, or the first behind it, begins in the segment that may hold it.

        None where damage hides it. Raises KafkaFormatError for that unless it is to be passed over.
        """
        number = max(bisect_right(self.segments, offset, key=lambda one: one.base_offset) - 1, 0)
        segment = self.segments[number]
        with self.open(segment) as records:
            try:
                row = read_indexes(segment).find_row(records, offset)
            except KafkaFormatError as error:
                if self.options.on_corrupt == "fail":
                    raise records.described(error) from None
                return None
        if row is not None:
            return Place(offset, segment.base_offset, int(row["position"]))
        is_last = segment is self.segments[-1]
        return None if is_last else Place(offset, segment.base_offset, segment.size_in_bytes)

    @contextlib.contextmanager
    def open(self, segment: SegmentFile, start: int = 0, end: int | None = None) -> Iterator[SegmentRange]:
        """The records of one of its segments, to no further than it reached when it was listed."""
        end = segment.size_in_bytes if end is None else end
        limit = self.options.max_decompressed_bytes
        with open_records(segment, start, end, max_decompressed_bytes=limit) as records:
            yield SegmentRange(records, is_active=segment.is_last)

    def read_through(
        self, segment: SegmentFile, read: Callable[[SegmentRange], _Found], position: int = 0
    ) -> _Found:
        """What `read` makes of a segment from `position` on.

        Behind damage that is not to stop the read it is called again, for the rest.
        """
        while True:
            with self.open(segment, position) as records:
                try:
                    return read(records)
                except KafkaFormatError as error:
                    if self.options.on_corrupt == "fail" or error.position is None:
                        raise records.described(error) from None
                    position = records.position_after(error)

    def find_timestamp(self, timestamp: int) -> int | None:
        """The offset of the first record with `timestamp` (milliseconds) or a later one."""
        for segment in self.segments:
            indexes = read_indexes(segment, by_time=True)
            found = self.read_through(segment, partial(indexes.find_timestamp, timestamp=timestamp))
            if found is not None:
                return found.offset
        return None

    def splits(
        self,
        start: int | None = None,
        end: int | None = None,
        aborted: Sequence[AbortedTransaction] = (),
        places: Mapping[int, Place] | None = None,
    ) -> Iterator[Split]:
        """What lies from offset `start` to in front of `end`, in order; None for the log's own ends.

        places: where offsets are, by offset, as far as is known: that saves reading an index. They are held against
        the log. Damage is left to the tasks, which tell of it, or pass over it.
        """
        if start is not None and end is not None and start >= end:
            return
        for segment, next_base in self.with_next_base_offset():
            if (end is not None and segment.base_offset >= end) or (
                start is not None and next_base is not None and next_base <= start
            ):
                continue
            whole = Split(
                segment,
                0,
                segment.size_in_bytes,
                start_offset=start if start is not None and start > segment.base_offset else None,
                end_offset=end if end is not None and (next_base is None or end < next_base) else None,
                is_log_end=segment.is_last,
                aborted=_between(aborted, segment.base_offset, next_base),
            )
            yield from _Cutting(self, whole, places or {}).splits()

    def with_next_base_offset(self) -> Iterator[tuple[SegmentFile, int | None]]:
        """Each segment, and the base offset of the one behind it; None for the last one."""
        behind = (segment.base_offset for segment in self.segments[1:])
        return zip_longest(self.segments, behind)


class _Cutting:
    """Cuts a segment: to the bytes in which the bounds of `whole` lie, and these into parts where they are large."""

    def __init__(self, log: Log, whole: Split, places: Mapping[int, Place]) -> None:
        self._log, self._whole, self._places = log, whole, places

    @cached_property
    def _indexes(self) -> SegmentIndexes:
        return read_indexes(self._whole.segment)

    def splits(self) -> Iterator[Split]:
        whole, most_bytes = self._whole, self._log.options.split_bytes
        start, end = whole.start, whole.end
        if whole.start_offset is not None or whole.end_offset is not None:
            with self._log.open(whole.segment) as records, contextlib.suppress(KafkaFormatError):
                start, end = self._narrowed(records)
        if end <= start:
            return
        ranges = [(start, end)]
        if end - start > most_bytes:
            with self._log.open(whole.segment, start, end) as records:
                ranges = split_points(records, most_bytes, self._indexes.offset_index)
        for first, stop in ranges:
            yield replace(whole, start=first, end=stop, is_log_end=whole.is_log_end and stop == whole.end)

    def _narrowed(self, records: Records) -> tuple[int, int]:
        start, end = self._whole.start, self._whole.end
        if self._whole.start_offset is not None:
            row = self._find_row(records, self._whole.start_offset)
            start = self._end_position(records) if row is None else int(row["position"])
        if self._whole.end_offset is not None:
            row = self._find_row(records, self._whole.end_offset)
            if row is not None:
                end = int(row["position"])
                if row["base_offset"] < self._whole.end_offset:  # of a wrapper it is not known
                    end += int(row["size"])
        return start, end

    def _end_position(self, records: Records) -> int:
        """Behind the last batch that headers lead to: what follows is read, as it may be damage with more behind it."""
        row = self._indexes.find_last_row(records)
        return 0 if row is None else int(row["position"]) + int(row["size"])

    def _find_row(self, records: Records, offset: int) -> np.void | None:
        place, base_offset = self._places.get(offset), self._whole.segment.base_offset
        if place is not None and place.base_offset == base_offset and self._log.holds(place):
            return find_row(records, offset, place.position)
        return self._indexes.find_row(records, offset)


def _between(
    aborted: Sequence[AbortedTransaction], start_offset: int, end_offset: int | None
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        one
        for one in aborted
        if one.last_offset >= start_offset and (end_offset is None or one.first_offset < end_offset)
    )


def read_indexes(segment: SegmentFile, *, by_time: bool = False) -> SegmentIndexes:
    """What is usable of the indexes beside a segment; of the time index only for a search `by_time`."""
    base_offset = segment.base_offset
    return SegmentIndexes(
        base_offset,
        OffsetIndex.from_bytes(read_index(segment, OFFSET_INDEX_SUFFIX), base_offset),
        TimeIndex.from_bytes(read_index(segment, TIME_INDEX_SUFFIX) if by_time else b"", base_offset),
    )
