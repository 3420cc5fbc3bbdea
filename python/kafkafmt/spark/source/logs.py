"""The logs of partitions as they are listed, and the stretches of their segments that lie between two offsets.

Nothing is decompressed, but for the one batch that a timestamp is looked for in. Of a segment the driver reads its
indexes where a bound lies in it or it is to be cut, and its headers where there are none.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

from kafkafmt._util.names import found_in_words
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import OFFSET_INDEX_DTYPE, AbortedTransaction, OffsetIndex, TimeIndex
from kafkafmt.log.overlaps import Overlap, SegmentOffsets, find_overlaps, first_offsets
from kafkafmt.log.segment import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    SegmentIndexes,
    SegmentRange,
    begins_batch,
    find_row,
)
from kafkafmt.log.splitting import split_points
from kafkafmt.log.topics import is_internal_topic
from kafkafmt.spark.files import (
    SegmentFile,
    list_segments,
    open_records,
    read_index,
    read_last_entry,
    read_log_start_offsets,
)
from kafkafmt.spark.locations import without_secrets
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import numpy as np

    from kafkafmt.records import Records
    from kafkafmt.spark.source.options import ReadOptions

_Found = TypeVar("_Found")

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """A stretch of a segment, from the beginning of a batch to that of another or to the end.

    start_offset, end_offset: records in front of the one, and from the other on, are left out; None: none are.
    is_log_end: it ends where its log does, so that a batch may be cut off there.
    next_base_offset: where the next segment begins, if nobody has looked for overlaps: a batch that reaches there ends
    the read. aborted: the transactions whose records are left out.
    """

    segment: SegmentFile
    start: int
    end: int
    start_offset: int | None = None
    end_offset: int | None = None
    is_log_end: bool = False
    next_base_offset: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True)
class Place:
    """Between two batches: at `position` of the segment that is named for `base_offset`.

    Every record in front of it has a lower offset than `offset`, and every batch behind it ends there or later.
    """

    offset: int
    base_offset: int
    position: int


class SegmentEnds:
    """Where closed segments end, looked for once in each; so that overlaps of segments are found, and told of once."""

    def __init__(self) -> None:
        self._known: dict[SegmentFile, int] = {}
        self._told: set[tuple[str, Overlap]] = set()

    def first_offsets(self, log: Log) -> list[int]:
        """The lowest offset that each segment of a log hands out; a warning for those that are in several."""
        ends = [self._end(log, segment) for segment in log.segments[:-1]]
        offsets = [SegmentOffsets(one.base_offset, end) for one, end in zip(log.segments, ends, strict=False)]
        offsets.append(SegmentOffsets(log.segments[-1].base_offset, log.segments[-1].base_offset))
        firsts = first_offsets(offsets)
        if any(first > segment.base_offset for first, segment in zip(firsts, log.segments, strict=True)):
            self._tell(log, offsets)
        return firsts

    def keep(self, logs: Iterable[Log]) -> None:
        """Forget the segments that none of the logs has any more."""
        there = {segment for log in logs for segment in log.segments}
        self._known = {segment: end for segment, end in self._known.items() if segment in there}

    def _end(self, log: Log, segment: SegmentFile) -> int:
        if segment not in self._known:
            self._known[segment] = log.find_next_offset(segment)
        return self._known[segment]

    def _tell(self, log: Log, offsets: Sequence[SegmentOffsets]) -> None:
        last = log.segments[-1]
        offsets = [*offsets[:-1], SegmentOffsets(last.base_offset, log.find_next_offset(last))]
        for overlap in find_overlaps(offsets):
            segment = log.segment_at(overlap.base_offset)
            if segment is not None and (segment.uri, overlap) not in self._told:
                self._told.add((segment.uri, overlap))
                _LOG.warning("%s: %s: left out", segment.uri, overlap)


def find_logs(options: ReadOptions, *, may_grow: bool = False, ends: SegmentEnds | None = None) -> list[Log]:
    """The logs of the partitions that are asked for, in their order.

    may_grow: folders that hold no log yet, and globs and patterns that no topic matches yet, are waited for. ends: what
    is known of segments from an earlier call.

    Raises FileNotFoundError and ValueError, in one line, for paths that hold no log and topics that are not there, and
    CheckpointError for a malformed `log-start-offset-checkpoint`.
    """
    ends = SegmentEnds() if ends is None else ends
    folders: dict[str, list[SegmentFile]] = {}
    for segment in list_segments(options.paths, options.file_system, may_be_empty=may_grow):
        folders.setdefault(posixpath.dirname(segment.uri), []).append(_named(segment, options))
    logs = [
        Log(folder, tuple(sorted(segments, key=lambda segment: segment.base_offset)), options, ends)
        for folder, segments in folders.items()
    ]
    if not may_grow:
        _ensure_topics(logs, options)
    chosen = [log for log in logs if _is_chosen(log, options)]
    if logs and not chosen and not may_grow:
        paths = ", ".join(map(without_secrets, options.paths))
        raise FileNotFoundError(errno.ENOENT, "no topic but Kafka's own", paths)
    _ensure_distinct(chosen)
    if not options.from_segment_start:
        starts = read_log_start_offsets([log.segments[0] for log in chosen])
        chosen = [replace(log, log_start_offset=start) for log, start in zip(chosen, starts, strict=True)]
    return sorted(chosen, key=lambda log: (log.topic_partition or ("", 0), log.folder))


def _ensure_topics(logs: Sequence[Log], options: ReadOptions) -> None:
    topics = {log.topic for log in logs if log.topic is not None}
    missing = options.topics.unmatched(topics)
    if missing is not None:
        paths = ", ".join(map(without_secrets, options.paths))
        raise ValueError(f"no topic {missing!r} in {paths}: {found_in_words(missing, topics)}")


def _named(segment: SegmentFile, options: ReadOptions) -> SegmentFile:
    if options.topic_partition is None or segment.topic_partition is not None:
        return segment
    return replace(segment, topic_partition=options.topic_partition)


def _is_chosen(log: Log, options: ReadOptions) -> bool:
    if options.topics.is_everything:
        return log.segments[0].is_named or log.topic is None or not is_internal_topic(log.topic)
    return log.topic is not None and log.topic in options.topics


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
    """The segments of one partition, one at the least, by base offset, and how they are to be read.

    log_start_offset: records below it are deleted, though segments may have them (KIP-107).
    """

    folder: str
    segments: tuple[SegmentFile, ...]
    options: ReadOptions
    ends: SegmentEnds = field(default_factory=SegmentEnds, repr=False, compare=False)
    log_start_offset: int = 0

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
        """The log start offset, or the base offset of the first segment if that is higher.

        Records may begin behind it.
        """
        return max(self.segments[0].base_offset, self.log_start_offset)

    @cached_property
    def end_offset(self) -> int | None:
        """The offset behind the last whole batch; None where damage hides it, that is not to stop the read."""
        segment = self.segments[-1]
        try:
            with self.open(segment) as records:
                return max(read_indexes(segment).find_next_offset(records), self.least_end_offset)
        except KafkaFormatError:
            if self.options.on_corrupt == "fail":
                raise
            return None

    @property
    def least_end_offset(self) -> int:
        """What the end is not below, wherever the last segment ends: the log's start, and where other segments end."""
        return max(self.log_start_offset, self._first_offsets[-1])

    @property
    def _checks_overlaps(self) -> bool:
        asked = self.options.checks_overlaps
        return self.segments[0].filesystem is None if asked is None else asked

    @cached_property
    def _first_offsets(self) -> list[int]:
        """The lowest offset that each segment hands out, whatever the log start offset is."""
        if self._checks_overlaps and len(self.segments) > 1:
            return self.ends.first_offsets(self)
        return [segment.base_offset for segment in self.segments]

    def first_offset_of(self, segment: SegmentFile) -> int:
        """The lowest offset that one of its segments hands out: those below are in the segments before it."""
        number = bisect_right(self.segments, segment.base_offset, key=lambda one: one.base_offset) - 1
        return self._first_offsets[number]

    def find_next_offset(self, segment: SegmentFile) -> int:
        """The offset behind the last batch of one of its segments; behind damage, the last that is to be read."""
        with contextlib.suppress(KafkaFormatError), self.open(segment) as records:
            return _last_index_entry(segment).find_next_offset(records)
        found, position = segment.base_offset, 0
        while position < segment.size_in_bytes:  # what cannot be read is told where records are read
            with self.open(segment, position) as records:
                try:
                    for run in records.runs(reuse_memory=True):
                        found = max(found, int(run.index["last_offset"].max()) + 1)
                    break
                except KafkaFormatError as error:
                    position = (
                        segment.size_in_bytes if error.position is None else records.position_after(error)
                    )
        return found

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
        segment = self.segments[max(bisect_right(self._first_offsets, offset) - 1, 0)]
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
        """The offset of the first record with `timestamp` (milliseconds) or a later one, from the log's start on."""
        for segment, first, stop in self.spans():
            if stop is not None and stop <= max(first, self.log_start_offset):
                continue
            indexes = read_indexes(segment, by_time=True)
            start = max(first, self.log_start_offset)
            found = self.read_through(
                segment, partial(indexes.find_timestamp, timestamp=timestamp, start_offset=start)
            )
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

        Nothing below the log start offset, and of offsets that several segments have, those of one.

        places: where offsets are, by offset, as far as is known: that saves reading an index. They are held against
        the log. Damage is left to the tasks, which tell of it, or pass over it.
        """
        start = max(start if start is not None else 0, self.start_offset)
        if end is not None and start >= end:
            return
        for segment, first, stop in self.spans():
            first = max(first, start)
            if (end is not None and first >= end) or (stop is not None and stop <= first):
                continue
            whole = Split(
                segment,
                0,
                segment.size_in_bytes,
                start_offset=first if first > segment.base_offset else None,
                end_offset=end if end is not None and (stop is None or end < stop) else None,
                is_log_end=segment.is_last,
                next_base_offset=None if self._checks_overlaps else stop,
                aborted=_between(aborted, first, stop),
            )
            yield from _Cutting(self, whole, places or {}).splits()

    def spans(self) -> Iterator[tuple[SegmentFile, int, int | None]]:
        """Each segment, the lowest offset that it hands out, and where the next one goes on; None for the last one."""
        firsts = self._first_offsets
        return zip(self.segments, firsts, [*firsts[1:], None], strict=True)


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


def _last_index_entry(segment: SegmentFile) -> SegmentIndexes:
    """Of the indexes beside a segment what leads to its end; all of a broker's that ends in zeros."""
    entry = read_last_entry(segment, OFFSET_INDEX_SUFFIX, OFFSET_INDEX_DTYPE.itemsize)
    if entry and not any(entry):
        return read_indexes(segment)
    base_offset = segment.base_offset
    index = OffsetIndex.from_bytes(entry, base_offset)
    return SegmentIndexes(base_offset, index, TimeIndex.from_bytes(b"", base_offset))


def read_indexes(segment: SegmentFile, *, by_time: bool = False) -> SegmentIndexes:
    """What is usable of the indexes beside a segment; of the time index only for a search `by_time`."""
    base_offset = segment.base_offset
    return SegmentIndexes(
        base_offset,
        OffsetIndex.from_bytes(read_index(segment, OFFSET_INDEX_SUFFIX), base_offset),
        TimeIndex.from_bytes(read_index(segment, TIME_INDEX_SUFFIX) if by_time else b"", base_offset),
    )
