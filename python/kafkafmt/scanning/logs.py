"""Find the logs that a read selects by paths and topics."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from kafkafmt._util.names import found_in_words
from kafkafmt.log.listing import by_folder, ensure_regular, list_segments
from kafkafmt.log.log_snapshot import LogSnapshot, with_log_starts
from kafkafmt.log.overlaps import SegmentEnds
from kafkafmt.log.topics import is_chosen, topics_left_out_in_words
from kafkafmt.storage import RemotePath
from kafkafmt.storage.locations import absolute_paths, without_secrets

if TYPE_CHECKING:
    from kafkafmt.scanning.options import LogReadOptions
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

_LOG = logging.getLogger(__name__)
_Options = TypeVar("_Options", bound="LogReadOptions")


def find_logs(
    options: LogReadOptions, *, may_grow: bool = False, ends: SegmentEnds | None = None
) -> list[LogSnapshot]:
    """Return the logs of the selected partitions, ordered by partition.

    may_grow: accept folders without a log, and globs and patterns without a matching topic, because they may appear
    later. ends: the known ends of segments, from an earlier call.

    Raises FileNotFoundError and ValueError, in one line, for paths without a log and unknown topics; CheckpointError
    for a malformed `log-start-offset-checkpoint`. Raises NotRegularFileError as `ensure_regular`.
    """
    ends = SegmentEnds(warns=True) if ends is None else ends
    paths = absolute_paths(options.paths, options.file_system)
    listed = list_segments(paths, may_be_empty=may_grow)
    logs = [
        LogSnapshot(
            segments,
            ends,
            skips_damage=options.on_corrupt != "fail",
            checks_overlaps=options.checks_overlaps,
            max_decompressed_bytes=options.max_decompressed_bytes,
            given_topic_partition=options.topic_partition,
        )
        for segments in by_folder(listed)
    ]
    if not may_grow:
        _ensure_topics(logs, options)
    chosen = [log for log in logs if _is_chosen(log, options)]
    if logs and not chosen and not may_grow:
        raise FileNotFoundError(errno.ENOENT, "no topic but Kafka's own", shown_paths(options.paths))
    if options.topics.is_everything and not may_grow:
        told = topics_left_out_in_words(logs, chosen, f"{options.names.all_topics} reads them, too")
        if told is not None:
            _LOG.warning(told)
    _ensure_distinct(chosen)
    for log in chosen:
        ensure_regular(log.segments)
    if not options.from_segment_start:
        chosen = with_log_starts(chosen)
    return sorted(chosen, key=lambda log: (log.topic_partition or ("", 0), str(log.folder)))


def located(options: _Options) -> _Options:
    """Return the options with their paths on their storages, for reads that list them again and again.

    So a storage is opened once, and a view of tiered storage or of a backup keeps the manifests that it has read.
    Raises as `absolute_paths`.
    """
    found = absolute_paths(options.paths, options.file_system)
    paths = tuple(one if isinstance(one, RemotePath) else str(one) for one in found)
    return replace(options, paths=paths, file_system={})


def ensure_not_renamed(logs: Iterable[LogSnapshot], given: TopicPartition | None) -> None:
    """Raise ValueError for a folder that is named as another partition than the given one, which would be ignored."""
    for log in logs:
        if given is not None and log.topic_partition != given:
            raise ValueError(
                f"{log.folder}: expected a folder without the name of a partition, as options topic and partition name "
                f"its records {given}; found that of {log.topic_partition}: subscribe and topics select topics"
            )


def shown_paths(paths: Iterable[str | RemotePath]) -> str:
    """Return paths for messages, without credentials."""
    return ", ".join(str(path) if isinstance(path, RemotePath) else without_secrets(path) for path in paths)


def _ensure_topics(logs: Sequence[LogSnapshot], options: LogReadOptions) -> None:
    topics = {log.topic for log in logs if log.topic is not None}
    missing = options.topics.unmatched(topics)
    if missing is not None:
        paths = shown_paths(options.paths)
        raise ValueError(f"no topic {missing!r} in {paths}: {found_in_words(missing, topics)}")


def _is_chosen(log: LogSnapshot, options: LogReadOptions) -> bool:
    if options.topics.is_everything:
        return is_chosen(log.topic_partition, None, is_named=log.segments[0].is_named)
    return log.topic is not None and log.topic in options.topics


def _ensure_distinct(logs: Sequence[LogSnapshot]) -> None:
    folders: dict[TopicPartition, StoragePath] = {}
    for log in logs:
        if log.topic_partition is not None:
            other = folders.setdefault(log.topic_partition, log.folder)
            if other != log.folder:
                both = f"{other} and {log.folder}"
                raise ValueError(
                    f"partition {log.topic_partition} is in {both}: its records would be read twice"
                )
