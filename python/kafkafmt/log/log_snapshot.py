"""The listed segments of a partition: find offsets and timestamps, and split the log between two offsets.

Only a search for a timestamp decompresses, one batch. The indexes of a segment are read if an offset bound is in it, or
if it must be split; without indexes its headers are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.checkpoints import LogStartOffsets
from kafkafmt.log.indexes import AbortedTransaction, TimestampOffset
from kafkafmt.log.overlaps import ReadSegments, SegmentEnds
from kafkafmt.log.segment import Segment
from kafkafmt.log.segment_search import NO_TURN, Turn
from kafkafmt.log.splitting import Place, SegmentCutter, Split
from kafkafmt.storage import RemotePath, StoragePath
from kafkafmt.types import TopicPartition


class LogPosition(NamedTuple):
    """The position of a batch: a segment, and the byte position in its file."""

    segment: Segment
    position: int


@dataclass(frozen=True)
class LogSnapshot:
    """The segments of one partition, by base offset, and how to read them.

    A `PartitionLog` takes one for each search, perhaps without a segment. Spark keeps one, with a segment at least.

    ends: the known end offsets of segments, which logs may share.
    log_start_offset: records below it are deleted, though segments may still have them (KIP-107).
    skips_damage: searches skip damage instead of raising it.
    checks_overlaps: find the end of each segment, to read overlapping offsets once; None: only of local segments.
    given_topic_partition: the partition, if the folder is not named as one.
    """

    segments: tuple[Segment, ...]
    ends: SegmentEnds = field(repr=False, compare=False)
    log_start_offset: int = 0
    skips_damage: bool = False
    checks_overlaps: bool | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    given_topic_partition: TopicPartition | None = None

    @property
    def folder(self) -> StoragePath:
        """The path or URI of the folder."""
        return self.segments[0].path.parent

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
        return max(self.segments[0].base_offset if self.segments else 0, self.log_start_offset)

    @cached_property
    def end_offset(self) -> int | None:
        """The offset after the last whole batch, or the log start offset if that is higher.

        None if damage hides it and is skipped. Raises KafkaFormatError if it is not skipped.
        """
        if not self.segments:
            return self.log_start_offset
        read = self.read_segments
        try:
            return max(read.segments[-1].find_next_offset(), read.first_offsets[-1], self.log_start_offset)
        except KafkaFormatError:
            if not self.skips_damage:
                raise
            return None

    @property
    def _checks_overlaps(self) -> bool:
        return (
            isinstance(self.segments[0].path, Path) if self.checks_overlaps is None else self.checks_overlaps
        )

    @cached_property
    def read_segments(self) -> ReadSegments:
        """The segments to read, with the lowest offset that is read from each, without regard to the log start offset.

        They are all segments if overlaps are not checked.
        """
        if self._checks_overlaps:
            return self.ends.read_segments(self.segments)
        return ReadSegments(list(self.segments), [segment.base_offset for segment in self.segments], [])

    def find_offset(self, offset: int) -> LogPosition | None:
        """Find the batch that contains `offset`, or the first one after it; None at or after the end of the log.

        Raises KafkaFormatError if damage prevents the search.
        """
        wanted = max(offset, self.log_start_offset)
        for segment in self.read_segments.from_offset(wanted):
            position = segment.find_offset(wanted)
            if position is not None:
                return LogPosition(segment, position)
        return None

    def find_place(self, offset: int) -> Place | None:
        """Find the place of the batch that contains `offset`, or of the first one after it, in the offset's segment.

        Returns None if damage hides it and is skipped; if it is not skipped, raises KafkaFormatError. Returns None also
        after the last batch of the log.
        """
        segment, *later = self.read_segments.from_offset(offset)
        try:
            position = segment.find_offset(offset)
        except KafkaFormatError:
            if not self.skips_damage:
                raise
            return None
        if position is None and not later:
            return None
        return Place(offset, segment.base_offset, segment.size_in_bytes if position is None else position)

    def find_timestamp(self, timestamp: int, turn: Turn = NO_TURN) -> TimestampOffset | None:
        """Find the first record with `timestamp` (milliseconds) or a later one, in offset order; None if there is none.

        turn: entered while a batch is decompressed. Raises KafkaFormatError for damage, unless it is skipped.
        """
        for segment, first, _ in self.read_segments.spans(self.log_start_offset):
            found = self._find_timestamp_in(segment, timestamp, first, turn)
            if found is not None:
                return found
        return None

    def _find_timestamp_in(
        self, segment: Segment, timestamp: int, start_offset: int, turn: Turn
    ) -> TimestampOffset | None:
        """Do `find_timestamp` in one segment, for the records from `start_offset` on."""
        indexes, position = segment.read_indexes(by_time=True), 0
        while True:
            with segment.open(position, max_decompressed_bytes=self.max_decompressed_bytes) as records:
                try:
                    return indexes.find_timestamp(records, timestamp, start_offset, turn)
                except KafkaFormatError as error:
                    if not self.skips_damage or error.position is None:
                        raise records.with_source(error) from None
                    position = records.position_after(error)

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
        for segment, first, stop in self.read_segments.spans(start):
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


def with_log_starts(logs: Sequence[LogSnapshot]) -> list[LogSnapshot]:
    """Return the logs with their log start offsets, which are read now.

    Each `log-start-offset-checkpoint` is read once; remote ones are read in parallel. Raises CheckpointError for a
    malformed file, and OSError.
    """
    starts = LogStartOffsets()
    starts.load({log.folder.parent for log in logs if isinstance(log.folder, RemotePath)})
    return [replace(log, log_start_offset=starts.of(log.folder)) for log in logs]


def _between(
    aborted: Sequence[AbortedTransaction], start_offset: int, end_offset: int | None
) -> tuple[AbortedTransaction, ...]:
    return tuple(
        one
        for one in aborted
        if one.last_offset >= start_offset and (end_offset is None or one.first_offset < end_offset)
    )
