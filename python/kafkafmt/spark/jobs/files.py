"""The segments that a job reads, on any file system."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kafkafmt.log.listing import by_folder, ensure_regular, list_segments
from kafkafmt.log.log_snapshot import LogSnapshot, with_log_starts
from kafkafmt.log.overlaps import SegmentEnds, find_readable_end
from kafkafmt.log.segment import MAX_OFFSET, Segment
from kafkafmt.log.topics import Topics, is_chosen, selection_error, topics_left_out_in_words
from kafkafmt.storage import RemotePath
from kafkafmt.storage.locations import absolute_paths

Paths = str | os.PathLike[str] | RemotePath | Iterable[str | os.PathLike[str] | RemotePath]

_LOG = logging.getLogger(__name__)


class BoundedSegment(NamedTuple):
    """A segment, the lowest offset to read of it, and whether earlier segments contain offsets of it."""

    segment: Segment
    from_offset: int
    is_overlapped: bool


def list_files(
    paths: Paths,
    topics: Topics = None,
    options: Mapping[str, str] | None = None,
    *,
    includes_internal: bool = False,
) -> list[Segment]:
    """Return the segments under `paths` whose topic matches one of the names and globs `topics`.

    Without these, Kafka's own topics are left out and a warning is logged, unless `includes_internal` is true: see
    `kafkafmt.log.topics`. options: of the file system. Raises the errors of `list_segments` and `ensure_regular`, and
    ValueError if no topic matches.
    """
    given = [paths] if isinstance(paths, str | os.PathLike | RemotePath) else list(paths)
    found = list_segments(absolute_paths(given, options))
    wanted = "*" if topics is None and includes_internal else topics
    chosen = [one for one in found if is_chosen(one.topic_partition, wanted, is_named=one.is_named)]
    error = selection_error((one.topic_partition for one in found), topics, is_empty=not chosen)
    if error is not None:
        raise ValueError(f"{', '.join(map(str, given))}: {error}")
    message = topics_left_out_in_words(found, chosen, "topics='*' or their folders name them")
    if topics is None and message is not None:
        _LOG.warning(message)
    ensure_regular(chosen)
    return chosen


def with_first_offsets(segments: Sequence[Segment], *, from_segment_start: bool) -> list[BoundedSegment]:
    """Return the segments with the lowest offset to read, so that no offset is read twice or below the log start.

    from_segment_start: ignore the log start offset. Overlaps are detected only in local folders. Raises CheckpointError
    for a malformed `log-start-offset-checkpoint`.
    """
    ends = SegmentEnds(warns=True)
    logs = [LogSnapshot(found, ends, skips_damage=True) for found in by_folder(segments)]
    placed = {}
    for log in logs if from_segment_start else with_log_starts(logs):
        read = {segment: first for segment, first, _ in log.read_segments.spans()}
        for segment in log.segments:
            first = read.get(segment, MAX_OFFSET)  # all offsets of the other segments are in earlier ones
            is_overlapped = first > segment.base_offset and find_readable_end(segment) > segment.base_offset
            placed[segment.path] = BoundedSegment(segment, max(first, log.log_start_offset), is_overlapped)
    return [placed[segment.path] for segment in segments]
