"""The segments of tiered storage that make up the log: copies of the same offsets by several leaders are cut."""

from __future__ import annotations

from collections.abc import Sequence

from kafkafmt.storage.tiered.segments import RemoteSegment, SegmentCut


def cuts(segments: Sequence[RemoteSegment]) -> list[SegmentCut]:
    """Return the parts of segments that make up the log, ascending. segments: by base offset."""
    return [SegmentCut(one, one.base_offset) for one in segments]
