"""Split a segment into ranges of bytes that can be read separately. Each begins and ends at a batch boundary.

A wrong boundary would lose records, or read records that do not exist. So the position from an index is checked against
the log. If it does not match, headers are followed from the last boundary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.indexes import AbortedTransaction, OffsetIndex
from kafkafmt.log.segment import Segment
from kafkafmt.log.segment_search import SegmentIndexes, begins_batch, find_row
from kafkafmt.records.base import Records
from kafkafmt.records.runs import first_misplaced
from kafkafmt.records.trimming import base_offset_of


@dataclass(frozen=True)
class Split:
    """A range of a segment, from the beginning of a batch to that of another one, or to the end.

    start, end: byte positions.
    start_offset, end_offset: records before the one, and from the other on, are left out; None: no bound.
    is_log_end: the range ends at the end of its log, so the last batch may be incomplete.
    next_base_offset: the base offset of the next segment, if overlaps were not checked: a batch that reaches it ends
        the read.
    aborted: the transactions whose records are left out.
    """

    segment: Segment
    start: int
    end: int
    start_offset: int | None = None
    end_offset: int | None = None
    is_log_end: bool = False
    next_base_offset: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True)
class Place:
    """A boundary of batches: `position` in the segment with that `base_offset`.

    All records before it have offsets below `offset`, and all batches after it end at `offset` or later.
    """

    offset: int
    base_offset: int
    position: int

    def is_in(self, segment: Segment) -> bool:
        """Whether a batch still begins there in the segment, with an offset that matches."""
        if segment.size_in_bytes <= self.position:
            return False
        with segment.open() as records:
            return begins_batch(records, self.position, self.base_offset, self.offset)


class SegmentCutter:
    """Split a segment: reduce `whole` to the bytes between its offset bounds, and split these if they are many.

    places: known boundaries, by offset. They are checked against the log.
    """

    def __init__(self, whole: Split, places: Mapping[int, Place]) -> None:
        self._whole, self._places = whole, places

    @cached_property
    def _indexes(self) -> SegmentIndexes:
        return self._whole.segment.read_indexes()

    def splits(self, most_bytes: int) -> Iterator[Split]:
        """Yield splits of about `most_bytes` each, cut between batches, within the wanted offsets."""
        whole = self._whole
        start, end = whole.start, whole.end
        if whole.start_offset is not None or whole.end_offset is not None:
            with whole.segment.open() as records, contextlib.suppress(KafkaFormatError):
                start, end = self._narrowed(records)
        if end <= start:
            return
        ranges = [(start, end)]
        if end - start > most_bytes:
            with whole.segment.open(start, end) as records:
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
            least = self._whole.segment.base_offset
            if row is not None and not hides_batch(records, row, least, self._whole.end_offset):
                end = int(row["position"])
                if row["base_offset"] < self._whole.end_offset:  # -1 for a wrapper, as it is not known
                    end += int(row["size"])
        return start, end

    def _end_position(self, records: Records) -> int:
        """Return the position after the last readable batch. The bytes after it are read, as they may be damage."""
        row = self._indexes.find_last_row(records)
        return 0 if row is None else int(row["position"]) + int(row["size"])

    def _find_row(self, records: Records, offset: int) -> np.void | None:
        place, base_offset = self._places.get(offset), self._whole.segment.base_offset
        if place is not None and place.base_offset == base_offset and place.is_in(self._whole.segment):
            return find_row(records, offset, place.position)
        return self._indexes.find_row(records, offset)


def split_points(
    records: Records, split_bytes: int, index: OffsetIndex | None = None
) -> list[tuple[int, int]]:
    """Return start and end of adjacent ranges of about `split_bytes` that cover `records`; empty if there are none.

    Each range begins at a batch. It may be 1.5 times as large, so that no small one is left at the end. It is larger if
    a batch is larger, or if damage interrupts the headers; the reader then reports the damage.

    Without an `index`, or after its end, all headers are followed. This reads at most about 64 KiB of each batch.
    Raises ValueError for a `split_bytes` below 1, and OSError.
    """
    if split_bytes < 1:
        raise ValueError(f"split_bytes: expected 1 or more, found {split_bytes}")
    start, end = records.start_position, records.end_position
    cuts = [start]
    while end - cuts[-1] > split_bytes * 3 // 2:
        cut = _next_cut(records, split_bytes, index, cuts[-1])
        if cut >= end:
            break
        cuts.append(cut)
    return list(pairwise([*cuts, end])) if start < end else []


def _next_cut(records: Records, split_bytes: int, index: OffsetIndex | None, last: int) -> int:
    """Return the boundary about `split_bytes` after the `last` one; the end if there is none, or there is damage."""
    target = last + split_bytes
    entry = index.entry_at_or_below(target) if index is not None else None
    if index is not None and entry is not None:
        offset, position = entry
        if position > last + split_bytes // 2 and begins_batch(records, position, index.base_offset, offset):
            return position
    try:
        return records.find_batch_start(target, last)
    except KafkaFormatError:
        return records.end_position


def hides_batch(records: Records, row: np.void, least_offset: int, end_offset: int) -> bool:
    """Whether the offsets of a batch, which reaches `end_offset`, are too high, and one after it begins before that.

    No CRC covers the base offset of a batch: a damaged one must not end a read. row: of the batch, in the shallow
    index. least_offset: the lowest offset that it can have.
    """
    position = int(row["position"]) + int(row["size"])
    first = records.first_offset_at(position)
    if first is None or first > row["last_offset"]:
        return False
    after = records.sound_run_at(position)
    if after is None:
        return False
    following = partial(records.sound_run_at, after.end_position)
    if first_misplaced(np.append(row, after.index), least_offset, following=following)[0]:
        return False  # a batch after it, whose offsets are too low
    return base_offset_of(after, 0, records.max_decompressed_bytes) < end_offset
