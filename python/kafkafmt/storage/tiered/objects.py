"""The objects of tiered segments, found by their names in a listing, and the segments that were opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kafkafmt.records.lost import StoredObjectError
from kafkafmt.storage.base import FileStatus
from kafkafmt.storage.paths import StoragePath
from kafkafmt.storage.tiered.segments import RemoteSegment


@dataclass
class StoredObjects:
    """The objects of a segment: their paths and status, by suffix."""

    base_offset: int
    segment_id: str
    paths: dict[str, tuple[StoragePath, FileStatus]] = field(default_factory=dict)


@dataclass
class StoredPartition:
    """A partition of a topic, and the objects of its segments by name."""

    topic: str
    topic_id: str
    partition: int
    objects: dict[str, StoredObjects] = field(default_factory=dict)


class OpenedSegments:
    """The segments that were opened, each once. Several threads may call `get` at the same time, and one `keep`.

    suffix: that of the object whose path, size and time a segment is known by.
    """

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._segments: dict[tuple[str, int, int], RemoteSegment] = {}

    def get(self, objects: StoredObjects, open_segment: Callable[[], RemoteSegment]) -> RemoteSegment:
        """Return the segment of these objects, which `open_segment` opens the first time."""
        key = self._key(objects)
        found = self._segments.get(key)
        if found is None:
            found = self._segments[key] = open_segment()
        return found

    def keep(self, partitions: Iterable[StoredPartition]) -> None:
        """Forget all segments but those of these partitions."""
        kept = {
            self._key(objects)
            for stored in partitions
            for objects in stored.objects.values()
            if self._suffix in objects.paths
        }
        for key in list(self._segments):  # a copy: other threads may add segments
            if key not in kept:
                self._segments.pop(key, None)

    def _key(self, objects: StoredObjects) -> tuple[str, int, int]:
        path, status = objects.paths[self._suffix]
        return str(path), status.st_size, status.st_mtime_ns


def ensure_none_missing(
    incomplete: Mapping[str, StoredObjects], complete: Sequence[RemoteSegment], needed: str, message: str
) -> None:
    """Raise StoredObjectError if offsets are missing because a segment is not complete.

    An incomplete segment is left out without an error in these cases:

    - A complete one has all offsets from its base offset to that of the next complete one: a leader copied them again.
    - All complete ones begin later: retention deletes it.
    - All complete ones begin earlier: it is still copied.

    incomplete: by name. needed: the suffix of the object that is missing. message: of the error.
    """
    offsets = [one.base_offset for one in complete]
    for name, one in incomplete.items():
        begin = one.base_offset
        if not offsets or not min(offsets) < begin < max(offsets):
            continue
        following = min(offset for offset in offsets if offset > begin)
        if not any(_has_all(other, begin, following) for other in complete):
            path = next(iter(one.paths.values()))[0]
            raise StoredObjectError(path.parent / f"{name}.{needed}", message)


def _has_all(segment: RemoteSegment, begin: int, end: int) -> bool:
    """Whether a segment has the offsets from `begin` to before `end`. A store may not tell where it ends."""
    if segment.end_offset < 0:
        return segment.base_offset == begin
    return segment.base_offset <= begin and segment.end_offset >= end - 1


_Partition = TypeVar("_Partition", bound=StoredPartition)


def grouped(
    root: StoragePath,
    found: Mapping[str, FileStatus],
    key: re.Pattern[str],
    above: str,
    kind: type[_Partition],
) -> list[_Partition]:
    """Return the partitions of the objects whose path, with the folders `above` the root, is a key."""
    partitions: dict[tuple[str, str, int], _Partition] = {}
    for name, status in found.items():
        match = key.fullmatch(f"{above}/{name}")
        if match is None:
            continue
        place = match["topic"], match["topic_id"], int(match["partition"])
        one = partitions.setdefault(place, kind(*place))
        objects = one.objects.setdefault(
            match["name"], StoredObjects(int(match["offset"]), match["segment_id"])
        )
        objects.paths[match["suffix"]] = root / name, status
    return list(partitions.values())
