"""The objects of tiered segments, found by their names in a listing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from kafkafmt.storage.base import FileStatus
from kafkafmt.storage.paths import StoragePath


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
