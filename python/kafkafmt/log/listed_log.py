"""The listed segments of a partition: find offsets and timestamps, and split the log between two offsets.

Only a search for a timestamp decompresses, one batch. The indexes of a segment are read if an offset bound is in it, or
if it must be split; without indexes its headers are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction
from kafkafmt.log.listing import read_log_starts
from kafkafmt.log.overlaps import ReadSegments, SegmentEnds
from kafkafmt.log.segment import Segment, SegmentRecords
from kafkafmt.log.splitting import Place, SegmentCutter, Split
from kafkafmt.types import TopicPartition

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ListedLog:
    """The segments of one partition, at least one, by base offset, and how to read them.

    ends: the known end offsets of segments, which logs may share.
    log_start_offset: records below it are deleted, though segments may still have them (KIP-107).
    skips_damage: reads skip damage instead of raising it.
    checks_overlaps: find the end of each segment, to read overlapping offsets once; None: only of local segments.
    given_topic_partition: the partition, if the folder is not named as one.
    """

    segments: tuple[Segment, ...]
    ends: SegmentEnds = field(default_factory=SegmentEnds, repr=False, compare=False)
    log_start_offset: int = 0
    skips_damage: bool = False
    checks_overlaps: bool | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    given_topic_partition: TopicPartition | None = None

    @property
    def folder(self) -> str:
        """The path or URI of the folder."""
        return str(self.segments[0].path.parent)

    def __str__(self) -> str:
        return str(self.topic_partition or self.folder)

    @property
    def topic_partition(self) -> TopicPartition | None:
        """The partition by the folder's name, or the given one; None without both."""
        return self.segments[0].topic_partition or self.given_topic_partition

    @property
    def topic(self) -> str | None:
        """The topic; None if the partition is not known."""
        return self.topic_partition.topic if self.topic_partition is not None else None

    @property
    def start_offset(self) -> int:
        """The log start offset, or the base offset of the first segment if that is higher.

        The first record may have a higher offset.
        """
        return max(self.segments[0].base_offset, self.log_start_offset)

    @cached_property
    def end_offset(self) -> int | None:
        """The offset after the last whole batch; None if damage hides it and is skipped.

        Raises KafkaFormatError if damage hides it and is not skipped.
        """
        segment = self.segments[-1]
        try:
            with self.open(segment) as records:
                return max(segment.read_indexes().find_next_offset(records), self.least_end_offset)
        except KafkaFormatError:
            if not self.skips_damage:
                raise
            return None

    @property
    def least_end_offset(self) -> int:
        """A lower bound of the end: the log start offset, or the highest end of the earlier segments."""
        return max(self.log_start_offset, self.read_segments.first_offsets[-1])

    @property
    def _checks_overlaps(self) -> bool:
        return (
            isinstance(self.segments[0].path, Path) if self.checks_overlaps is None else self.checks_overlaps
        )

    @cached_property
    def read_segments(self) -> ReadSegments:
        """All segments, with the lowest offset that is read from each, without regard to the log start offset."""
        firsts = [segment.base_offset for segment in self.segments]
        if self._checks_overlaps and len(firsts) > 1:
            firsts = self.ends.first_offsets(self.segments)
        return ReadSegments(list(self.segments), firsts, [])

    def find_place(self, offset: int) -> Place | None:
        """Find the place of the batch that contains `offset`, or of the first one after it, in the offset's segment.

        Returns None if damage hides it and is skipped; if it is not skipped, raises KafkaFormatError. Returns None also
        after the last batch of the log.
        """
        segment = self.segments[self.read_segments.number_of(offset)]
        with self.open(segment) as records:
            try:
                row = segment.read_indexes().find_row(records, offset)
            except KafkaFormatError as error:
                if not self.skips_damage:
                    raise records.with_source(error) from None
                return None
        if row is not None:
            return Place(offset, segment.base_offset, int(row["position"]))
        is_last = segment is self.segments[-1]
        return None if is_last else Place(offset, segment.base_offset, segment.size_in_bytes)

    def open(self, segment: Segment, start: int = 0, end: int | None = None) -> SegmentRecords:
        """Open the records of a segment from byte `start` to `end`, as `Segment.open`."""
        return segment.open(start, end, max_decompressed_bytes=self.max_decompressed_bytes)

    def read_through(
        self, segment: Segment, read: Callable[[SegmentRecords], _Found], position: int = 0
    ) -> _Found:
        """Return the result of `read` for the records of a segment from `position` on.

        If damage is skipped, `read` is called again for the records after it. Otherwise KafkaFormatError is raised.
        """
        while True:
            with self.open(segment, position) as records:
                try:
                    return read(records)
                except KafkaFormatError as error:
                    if not self.skips_damage or error.position is None:
                        raise records.with_source(error) from None
                    position = records.position_after(error)

    def find_timestamp(self, timestamp: int) -> int | None:
        """Find the offset of the first record with `timestamp` (milliseconds) or a later one; None if there is none."""
        for segment, first, stop in self.read_segments.spans():
            if stop is not None and stop <= max(first, self.log_start_offset):
                continue
            indexes = segment.read_indexes(by_time=True)
            start = max(first, self.log_start_offset)
            found = self.read_through(
                segment, partial(indexes.find_timestamp, timestamp=timestamp, start_offset=start)
            )
            if found is not None:
                return found.offset
        return None

    def splits(
        self,
        split_bytes: int,
        start: int | None = None,
        end: int | None = None,
        aborted: Sequence[AbortedTransaction] = (),
        places: Mapping[int, Place] | None = None,
    ) -> Iterator[Split]:
        """Yield the splits from offset `start` to before `end`, in order; None is the start or the end of the log.

        split_bytes: larger ranges are split at batches.
        aborted: aborted transactions, which each split gets if they have offsets in its segment.
        places: known boundaries, by offset, which save reading an index. They are checked against the log.

        Records below the log start offset are left out. Offsets that several segments have are read from one. Damage is
        not raised here: the tasks that read the splits report or skip it.
        """
        start = max(start if start is not None else 0, self.start_offset)
        if end is not None and start >= end:
            return
        for segment, first, stop in self.read_segments.spans():
            first = max(first, start)
            if (end is not None and first >= end) or (stop is not None and stop <= first):
                continue
            whole = Split(
                segment,
                0,
                segment.size_in_bytes,
                start_offset=first if first > segment.base_offset else None,
                end_offset=end if end is not None and (stop is None or end < stop) else None,
                is_log_end=segment.is_active,
                next_base_offset=None if self._checks_overlaps else stop,
                aborted=_between(aborted, first, stop),
            )
            yield from SegmentCutter(whole, places or {}).splits(split_bytes)


def with_log_starts(logs: Sequence[ListedLog]) -> list[ListedLog]:
    """Return the logs with their log start offsets, which are read now. Raises as `read_log_starts`."""
    starts = read_log_starts([log.segments[0] for log in logs])
    return [replace(log, log_start_offset=start) for log, start in zip(logs, starts, strict=True)]


def _between(
    aborted: Sequence[AbortedTransaction], start_offset: int, end_offset: int | None
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        one
        for one in aborted
        if one.last_offset >= start_offset and (end_offset is None or one.first_offset < end_offset)
    )
