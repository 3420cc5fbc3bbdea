"""Determine the place of each staged segment in its log, whatever storage the log is on.

Segments whose offsets are kept must not overlap with each other or with the log. Other segments follow the end of the
log, in the order of tasks. No segment begins below the log start offset: readers and brokers take its records for
deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, LogStartOffsets
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.segment import segment_file_name

if TYPE_CHECKING:
    from kafkafmt.spark.sink.staging import StagedSegment
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

_AT_ONCE = 8
_REMEDY = 'repartition("topic", "partition").sortWithinPartitions("offset") gives each partition to one task'

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class OffsetRange(Protocol):
    """The offsets of a segment."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...


def by_partition(segments: Iterable[StagedSegment]) -> dict[TopicPartition, list[StagedSegment]]:
    """Group segments by partition, in their order."""
    partitions: dict[TopicPartition, list[StagedSegment]] = {}
    for segment in segments:
        partitions.setdefault(segment.topic_partition, []).append(segment)
    return partitions


def place(
    folder: StoragePath,
    partitions: Mapping[TopicPartition, list[StagedSegment]],
    *,
    keeps_offsets: bool,
    overwrite: bool,
) -> list[tuple[StagedSegment, int]]:
    """Return all segments with their base offsets in the log directory, those of a partition in ascending order.

    Raises ValueError if offsets overlap or are below the log start offset, KafkaFormatError if damage hides the end of
    a log, CheckpointError for a malformed `log-start-offset-checkpoint`, and OSError.
    """
    log_starts = LogStartOffsets()

    def bases(item: tuple[TopicPartition, list[StagedSegment]]) -> list[int]:
        where, segments = item
        path = folder / str(where)
        log = PartitionLog(path) if not overwrite and path.exists() else None
        return _base_offsets(where, segments, log, log_starts.of(path), keeps_offsets=keeps_offsets)

    found = in_threads(bases, partitions.items())
    return [
        pair
        for segments, bases_of in zip(partitions.values(), found, strict=True)
        for pair in sorted(zip(segments, bases_of, strict=True), key=lambda pair: pair[1])
    ]


def _base_offsets(
    where: TopicPartition,
    segments: list[StagedSegment],
    log: PartitionLog | None,
    log_start: int,
    *,
    keeps_offsets: bool,
) -> list[int]:
    """Return the base offset of each segment in its log. Raises ValueError for offsets that cannot be kept."""
    if keeps_offsets:
        ordered = sorted(segments, key=lambda segment: segment.base_offset)
        for before, after in pairwise(ordered):
            if after.base_offset < before.next_offset:
                raise ValueError(
                    f"partition {where}: offsets {_range(before)} and {_range(after)} overlap: {_REMEDY}"
                )
        if ordered[0].base_offset < log_start:
            raise ValueError(
                f"partition {where}: {LOG_START_OFFSET_CHECKPOINT} says that offsets below {log_start} are deleted, "
                f"found {_range(ordered[0])}: remove the partition's line if its log is made again"
            )
        if log is not None:
            ensure_free(log, where, ordered)
        return [segment.base_offset for segment in segments]
    spans = (segment.next_offset - segment.base_offset for segment in segments)
    end = 0 if log is None else log.closed_end_offset()
    return list(accumulate(spans, initial=max(end, log_start)))[:-1]


def ensure_free(log: PartitionLog, where: TopicPartition | str, segments: Sequence[OffsetRange]) -> None:
    """Raise ValueError if the log contains offsets of the segments, or a segment that begins within them.

    segments: in ascending order of offsets.
    """
    there = log.segments()
    bases = [segment.base_offset for segment in there]
    if there and segments[-1].base_offset >= bases[-1]:
        log.closed_end_offset()
    ends: dict[int, int] = {}
    for segment in segments:
        after = bisect_right(bases, segment.base_offset)
        for number in range(max(after - 1, 0), min(after + 1, len(there))):
            if number not in ends:
                ends[number] = there[number].find_next_offset()
            if bases[number] < min(segment.next_offset, ends[number]) and segment.base_offset < ends[number]:
                raise ValueError(
                    f"partition {where}: offsets {_range(segment)} overlap with those that are there, "
                    f"{bases[number]} to {ends[number] - 1} ({there[number].path})"
                )
            if segment.base_offset < bases[number] < segment.next_offset:
                name = segment_file_name(bases[number])
                raise ValueError(f"partition {where}: {name} begins within offsets {_range(segment)}")


def _range(segment: OffsetRange) -> str:
    return f"{segment.base_offset} to {segment.next_offset - 1}"


def in_threads(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return the result of each item, several at a time, because each waits for a disk or a store."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return list(threads.map(function, items))
