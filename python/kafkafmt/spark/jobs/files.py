"""The segments that a job reads, on any file system: what it pickles to open them on an executor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.log.topics import topic_filter
from kafkafmt.spark.files import SegmentFile, list_segments, open_records
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kafkafmt.records import Records

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class ListedFile:
    """A segment as it was listed; a `kafkafmt.jobs.files.LogFile`."""

    segment: SegmentFile

    @property
    def is_active(self) -> bool:
        return self.segment.is_last

    @property
    def name(self) -> str:
        return self.segment.uri

    @property
    def topic_partition(self) -> TopicPartition | None:
        return self.segment.topic_partition

    def open(self, start: int = 0, end: int | None = None) -> AbstractContextManager[Records]:
        return open_records(self.segment, start, end)


def list_files(
    paths: Paths,
    topics: str | None = None,
    options: Mapping[str, str] | None = None,
    *,
    includes_internal: bool = False,
) -> list[ListedFile]:
    """The segments that paths stand for, as `list_segments` finds them, of the topics that a pattern matches.

    Without a pattern Kafka's own topics are left out, unless `includes_internal`: see `kafkafmt.log.topics`. Raises as
    `list_segments` does, and ValueError where no topic matches.
    """
    given = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    found = list_segments(given, options)
    is_meant = topic_filter("*" if topics is None and includes_internal else topics)
    chosen = [
        segment for segment in found if is_meant(_topic(segment)) or (topics is None and segment.is_named)
    ]
    if not chosen:
        what = "no topic but Kafka's own" if topics is None else f"no topic matches {topics!r}"
        raise ValueError(f"{', '.join(given)}: {what}")
    return [ListedFile(segment) for segment in chosen]


def _topic(segment: SegmentFile) -> str:
    return segment.topic_partition.topic if segment.topic_partition is not None else ""
