"""Segments of one log whose offsets overlap: which of them hands out an offset, so that no reader gets it twice.

A log that was converted before a compaction merged its segments, or a compaction that was killed, may leave

    00000000000000000000.log    offsets    0 to 2015
    00000000000000000697.log    offsets  697 to 1359
    00000000000000001360.log    offsets 1360 to 2015

The rule, for all readers: an offset belongs to the first segment, in the order of base offsets, that reaches past it.
So each segment hands out offsets from the highest end of the segments before it. Nothing that is in any segment
behind that end is lost, and a reader that goes from segment to segment need only remember how far it came.

A segment that reaches no further than those before it hands out nothing: readers leave it out. The ends of those that
are left ascend, so that the last of them has the end of the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from kafkafmt._util.steps import Steps
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.segment import Segment


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


class ReadSegments(NamedTuple):
    """The segments of a log that readers read, by base offset; the lowest offset of each; and what is left out."""

    segments: list[Segment]
    first_offsets: list[int]
    overlaps: list[Overlap]

    def number_of(self, offset: int) -> int:
        """Return the number of the segment that an offset belongs to; 0 for an offset below all segments."""
        return max(bisect_right(self.first_offsets, offset) - 1, 0)

    def from_offset(self, offset: int | None) -> list[Segment]:
        """Return the segments from the one that an offset belongs to on; all of them for None."""
        return self.segments if offset is None else self.segments[self.number_of(offset) :]


_Stamp = tuple[int, int, int]


class SegmentEnds:
    """The ends of closed segments of logs, by their folders.

    The end of a segment is read once, and again if the file is another one or has changed. The end of the last segment
    is read only if segments before it reach into it: its log may grow. Threads may share it.
    """

    def __init__(self) -> None:
        self._known: dict[Path, dict[Path, tuple[_Stamp, int | None]]] = {}

    def read_segments(self, folder: Path, segments: Sequence[Segment]) -> Steps[ReadSegments]:
        """Choose the segments that readers read of a log, in steps that may take place in another thread.

        segments: all of the log in the folder. A segment whose end cannot be found, as it is damaged or gone, stays
        among them and hides no other.
        """
        closed = segments[:-1]
        before, known = self._known.get(folder, {}), {}
        unread = []
        for segment in closed:
            stamp = _stamp(segment)
            found = before.get(segment.path)
            if found is not None and found[0] == stamp:
                known[segment.path] = found
            elif stamp is not None:
                unread.append((segment, stamp))
        if unread:
            known |= yield lambda: {one.path: (stamp, _end(one)) for one, stamp in unread}
        self._known[folder] = known
        ends = [known[one.path][1] if one.path in known else None for one in closed]
        if segments:
            last = segments[-1]
            reached = max((end for end in ends if end is not None), default=0)
            ends.append((yield lambda: _end(last)) if reached > last.base_offset else None)
        return _chosen(segments, ends)


def _chosen(segments: Sequence[Segment], ends: Sequence[int | None]) -> ReadSegments:
    """Leave out what hands out nothing. ends: None where the end is unknown."""
    offsets = [
        SegmentOffsets(one.base_offset, one.base_offset if end is None else end)
        for one, end in zip(segments, ends, strict=True)
    ]
    firsts = first_offsets(offsets)
    kept = [
        number
        for number, (segment, end) in enumerate(zip(segments, ends, strict=True))
        if end is None or firsts[number] == segment.base_offset or end > firsts[number]
    ]
    overlaps = find_overlaps(offsets)
    return ReadSegments([segments[number] for number in kept], [firsts[number] for number in kept], overlaps)


def _stamp(segment: Segment) -> _Stamp | None:
    try:
        found = segment.path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _end(segment: Segment) -> int | None:
    try:
        return segment.find_next_offset()
    except (KafkaFormatError, OSError):
        return None
