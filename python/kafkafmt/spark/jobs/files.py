"""The segments that a job reads, on any file system: what it pickles to open them on an executor."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kafkafmt.spark.files import SegmentFile, list_segments, open_records
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kafkafmt.records import Records

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# What names segments and no folder, at the end of a path or in front of a URI's query.
_SEGMENTS = re.compile(r"(?:^|/)[^/]*\.log(?=\?|$)")


@dataclass(frozen=True)
class ListedFile:
    """A segment as it was listed; a `kafkafmt.jobs.files.LogFile`."""

    segment: SegmentFile
    is_active: bool

    @property
    def name(self) -> str:
        return self.segment.uri

    @property
    def topic_partition(self) -> TopicPartition | None:
        return self.segment.topic_partition

    def open(self, start: int = 0, end: int | None = None) -> AbstractContextManager[Records]:
        return open_records(self.segment, start, end)


def list_files(
    paths: Paths, topics: str | None = None, options: Mapping[str, str] | None = None
) -> list[ListedFile]:
    """The segments that paths stand for, as `list_segments` finds them, of the topics that a pattern matches.

    Raises as `list_segments` does, and ValueError where no topic matches.
    """
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = list_segments(given, options)
    chosen = [segment for segment in found if topics is None or fnmatchcase(_topic(segment), topics)]
    if not chosen:
        raise ValueError(f"{', '.join(given)}: no topic matches {topics!r}")
    # Which segment is the last of its log, all that are in its folder tell.
    beside = [_SEGMENTS.sub("", path) or "." for path in given if _SEGMENTS.search(path)]
    last: dict[str, int] = {}
    for segment in [*found, *(list_segments(beside, options) if beside else ())]:
        folder = posixpath.dirname(segment.uri)
        last[folder] = max(segment.base_offset, last.get(folder, 0))
    return [
        ListedFile(segment, segment.base_offset == last[posixpath.dirname(segment.uri)]) for segment in chosen
    ]


def _topic(segment: SegmentFile) -> str:
    return segment.topic_partition.topic if segment.topic_partition is not None else ""
