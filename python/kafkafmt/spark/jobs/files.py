"""The segments that a job reads, on any file system: what it pickles to open them on an executor."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafkafmt.log.index_checks import IndexCheck
from kafkafmt.log.segment import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafkafmt.log.topics import topic_filter
from kafkafmt.spark.files import (
    SegmentFile,
    list_segments,
    open_records,
    read_log_start_offsets,
    read_sidecar,
)
from kafkafmt.spark.source.logs import Log
from kafkafmt.spark.source.options import ReadOptions
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kafkafmt.records import Records

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class ListedFile:
    """A segment as it was listed; a `kafkafmt.jobs.files.LogFile`.

    from_offset: the lowest offset that it hands out, if someone has looked for that. is_overlapped: segments before it
    have offsets that it has, too.
    """

    segment: SegmentFile
    from_offset: int = 0
    is_overlapped: bool = False

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

    def index_check(self) -> IndexCheck:
        """What holds its indexes against it; they are read now. Raises OSError."""
        index, time_index = (
            read_sidecar(self.segment, suffix) if suffix in self.segment.sidecar_sizes else None
            for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
        return IndexCheck(self.segment.base_offset, index, time_index, is_active=self.is_active)


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


def with_first_offsets(files: Sequence[ListedFile], *, from_segment_start: bool) -> list[ListedFile]:
    """The files with the offsets from which on they count: none below the log start offset, and none twice.

    Overlaps are looked for in local folders alone. Raises CheckpointError for a malformed
    `log-start-offset-checkpoint`.
    """
    options = ReadOptions(paths=(), on_corrupt="skip")
    folders: dict[str, list[SegmentFile]] = {}
    for file in files:
        folders.setdefault(posixpath.dirname(file.name), []).append(file.segment)
    logs = {
        folder: Log(folder, tuple(sorted(segments, key=lambda one: one.base_offset)), options)
        for folder, segments in folders.items()
    }
    starts = [0] * len(logs)
    if not from_segment_start:
        starts = read_log_start_offsets([log.segments[0] for log in logs.values()])
    start_of = dict(zip(logs, starts, strict=True))

    def placed(file: ListedFile) -> ListedFile:
        folder = posixpath.dirname(file.name)
        first = logs[folder].first_offset_of(file.segment)
        is_overlapped = (
            first > file.segment.base_offset
            and logs[folder].find_next_offset(file.segment) > file.segment.base_offset
        )
        return replace(file, from_offset=max(first, start_of[folder]), is_overlapped=is_overlapped)

    return [placed(file) for file in files]


def _topic(segment: SegmentFile) -> str:
    return segment.topic_partition.topic if segment.topic_partition is not None else ""
