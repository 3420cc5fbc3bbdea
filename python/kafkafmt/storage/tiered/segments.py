"""A segment in tiered storage, whatever plugin stored it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafkafmt.storage.views import ViewFile


@dataclass(frozen=True, eq=False)
class RemoteSegment:
    """A segment that a leader copied to tiered storage. Several leaders may have copied the same offsets.

    topic_id, segment_id: Kafka's text of the UUIDs; topic_id is "" if the store does not tell.
    base_offset, end_offset: the first offset, and the last one, as the leader knew them. end_offset is -1 if the store
    does not tell.
    leader_epochs: each leader epoch of the segment and its first offset, ascending. Empty if the store does not tell.
    event_timestamp_ms: when the leader has copied it; -1 if the store does not tell.
    files: by suffix: `.log`, and those of `.index`, `.timeindex`, `.txnindex`, `.snapshot` and
    `.leader-epoch-checkpoint` that are stored. The snapshot is the state of producers after the segment.
    """

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    base_offset: int
    end_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    files: Mapping[str, ViewFile]
    event_timestamp_ms: int = -1

    @property
    def log(self) -> ViewFile:
        return self.files[".log"]

    @property
    def size(self) -> int:
        """The original size of the log in bytes."""
        return self.log.size


@dataclass(frozen=True)
class SegmentCut:
    """The part of a segment that belongs to the log: its batches from `first_offset` to before `next_offset`.

    next_offset: None for the end of the segment.
    """

    segment: RemoteSegment
    first_offset: int
    next_offset: int | None = None

    @property
    def is_whole(self) -> bool:
        return self.first_offset <= self.segment.base_offset and self.next_offset is None
