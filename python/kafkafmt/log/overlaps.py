"""Segments of one log whose offsets overlap: which of them hands out an offset, so that no reader gets it twice.

A log that was converted before a compaction merged its segments, or a compaction that was killed, may leave

    00000000000000000000.log    offsets    0 to 2015
    00000000000000000697.log    offsets  697 to 1359
    00000000000000001360.log    offsets 1360 to 2015

The rule, for all readers: an offset belongs to the first segment, in the order of base offsets, that reaches past it.
So each segment hands out offsets from the highest end of the segments before it. Nothing that is in any segment
behind that end is lost, and a reader that goes from segment to segment need only remember how far it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class SegmentOffsets(NamedTuple):
    """A segment's base offset and the offset behind its last batch, which is the base offset where it has none."""

    base_offset: int
    next_offset: int


class Overlap(NamedTuple):
    """Offsets of a segment that segments before it have, too.

    base_offset: the segment's. first_offset, last_offset: what readers leave out of it.
    """

    base_offset: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.last_offset} are in a segment before it, too"


def first_offsets(segments: Iterable[SegmentOffsets]) -> list[int]:
    """Return, for each segment of a log, the lowest offset that it hands out. segments: by base offset.

    >>> first_offsets([SegmentOffsets(0, 2016), SegmentOffsets(697, 1360), SegmentOffsets(2016, 2500)])
    [0, 2016, 2016]
    """
    found, reached = [], 0
    for segment in segments:
        found.append(max(segment.base_offset, reached))
        reached = max(reached, segment.next_offset)
    return found


def find_overlaps(segments: Iterable[SegmentOffsets]) -> list[Overlap]:
    """Return what overlaps in a log; nothing in a log as brokers leave it. segments: by base offset.

    >>> find_overlaps([SegmentOffsets(0, 2016), SegmentOffsets(697, 1360), SegmentOffsets(2016, 2500)])
    [Overlap(base_offset=697, first_offset=697, last_offset=1359)]
    """
    known = list(segments)
    return [
        Overlap(segment.base_offset, segment.base_offset, min(first, segment.next_offset) - 1)
        for segment, first in zip(known, first_offsets(known), strict=True)
        if segment.base_offset < min(first, segment.next_offset)
    ]
