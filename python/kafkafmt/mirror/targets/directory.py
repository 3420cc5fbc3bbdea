"""A log directory as a target: the source's batches with the source's offsets, each exactly once.

A partition continues at the end of its log. So a batch that was written is not requested again, and one that was not
written is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from kafkafmt._util.descriptors import max_open_logs
from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import sync_path
from kafkafmt._util.ini import IniError
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.appender import LogAppender
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.log.topic_configs import TopicConfig, is_topic_name, update_topic_configs
from kafkafmt.log.topic_properties import SEGMENT_BYTES
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import (
    FROM_START,
    EpochAt,
    PartitionError,
    SourceTopic,
    Target,
    contiguous_ranges,
    record_count,
)
from kafkafmt.mirror.statistics import Moved, Statistics, Way
from kafkafmt.mirror.targets.missing_markers import ensure_markers
from kafkafmt.mirror.targets.positions import keep_beginning, keep_position, read_position
from kafkafmt.mirror.targets.topic_messages import recreated_message, warn_of_unknown

if TYPE_CHECKING:
    from uuid import UUID

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_MAX_NAME_BYTES = 255


class DirectoryTarget(Target):
    """Appends to the logs in a folder, which is created if it is missing.

    Raises DirectoryLockedError if a broker runs on the folder. No broker can start there until the target is closed.
    """

    def __init__(self, path: Path, statistics: Statistics, options: MirrorOptions) -> None:
        self._lock = lock_log_directory(path)
        self._path = path
        self.statistics = statistics
        self._way: Way = "deep" if options.is_deep else "raw"
        self._settings, self._names = options.topic_settings, options.names
        self._restarts_recreated = options.restarts_recreated
        self._max_decompressed_bytes = options.memory.max_decompressed_bytes
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._prepared: dict[str, SourceTopic] = {}
        self._topics: dict[str, TopicConfig] = {}  # as `topics.ini` has them
        self._appenders: OrderedDict[TopicPartition, LogAppender] = OrderedDict()  # last used last
        self._max_appenders = max(max_open_logs(), 1)
        self._closed_ends: dict[TopicPartition, int] = {}  # of logs that were closed to limit open files
        self._unflushed: set[TopicPartition] = set()
        self._is_committed = options.is_committed
        self._begins_at_start = options.begins_at_start

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        """Write the source's topics to `topics.ini`. One of unknown configuration keeps the configuration there."""
        if not again and all(self._prepared.get(name) == topic for name, topic in topics.items()):
            return
        unknown: list[str] = []

        legal = {self._names.target(name): topic for name, topic in topics.items()}
        legal = {name: topic for name, topic in legal.items() if is_topic_name(name)}

        def changed(known: dict[str, TopicConfig]) -> Mapping[str, TopicConfig]:
            for name, topic in legal.items():
                if not topic.is_known and name not in known:
                    unknown.append(name)
                self._topics[name] = self._settings.topic_config(name, topic, known)
            return {**known, **{name: self._topics[name] for name in legal}}

        try:
            update_topic_configs(self._path, changed)
        except IniError:
            raise
        except ValueError as error:
            raise MirrorError(f"{self._path}: {error}") from None
        self._prepared.update(topics)
        warn_of_unknown(unknown)

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """Compare with the id in `partition.metadata`, as brokers write it. The log of an earlier topic is renamed."""
        if topic_id is None:
            return
        folder = self._folder(topic_partition)
        known = read_topic_id(folder)
        self._topic_ids[topic_partition] = topic_id
        if known is None or known == topic_id or not self._appender(topic_partition).next_offset:
            return
        if not self._restarts_recreated:
            raise PartitionError(recreated_message(known, topic_id))
        self.forget([topic_partition])
        aside = _stray_folder(folder, known)
        folder.rename(aside)
        folder.mkdir()
        write_topic_id(folder, topic_id)  # `resume_offset` finds it, also after the mirror was killed
        sync_path(self._path)
        self._topic_ids[topic_partition] = topic_id
        _log.warning(
            "a topic was created again at the source, and is mirrored from its start",
            partition=str(topic_partition),
            topic_id=str(topic_id),
            earlier_topic_id=str(known),
            earlier_log=str(aside),
        )

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the position that was saved, or the end of the log. If it is empty, return `FROM_START` or None.

        An empty log with a topic id or a position was begun by an earlier run, or in place of the log of an earlier
        topic.

        Raises PartitionError if another writer has the log open.
        """
        appender = self._appender(topic_partition)
        end = appender.next_offset
        position = read_position(appender.folder, end)
        is_begun = position is not None or read_topic_id(appender.folder) is not None
        return position or end or (FROM_START if is_begun else None)

    def last_epoch(self, topic_partition: TopicPartition) -> EpochAt | None:
        appender = self._appender(topic_partition)
        epoch = appender.last_leader_epoch
        return None if epoch < 0 else EpochAt(appender.next_offset, epoch)

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """Let an empty log begin at `position`, so that a restart continues there even if no batch arrives."""
        appender = self._appender(topic_partition)
        if not appender.next_offset:
            appender.begin_at(position)
        if self._is_committed:
            ensure_markers(appender.folder, appender.producers, appender.next_offset, position)
        topic_id = self._topic_ids.get(topic_partition)
        if topic_id is None:
            if not (appender.next_offset or self._begins_at_start):
                keep_beginning(appender.folder)
        elif read_topic_id(appender.folder) != topic_id:
            write_topic_id(appender.folder, topic_id)

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        appender = self._appender(topic_partition)
        try:
            for first, stop in contiguous_ranges(run):
                appender.append_run(run, first, stop)
        except KafkaFormatError as error:
            raise PartitionError(str(error)) from None
        self._unflushed.add(topic_partition)
        moved = Moved(len(run), record_count(run), int(run.index["size"].sum()))
        self.statistics.count(topic_partition, moved, self._way, int(run.index["max_timestamp"][-1]))

    def make_durable(self) -> None:
        for topic_partition in list(self._unflushed):
            self._flush(topic_partition)

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        for topic_partition, position in positions.items():
            # A closed log stays closed: another writer may have it open.
            appender = self._appenders.get(topic_partition)
            end = self._closed_ends[topic_partition] if appender is None else appender.next_offset
            # A range that was lost at the end is reported by the next run, too.
            lost = [
                one.from_offset
                for one in self.statistics.gone
                if one.topic_partition == topic_partition and one.to_offset > end
            ]
            keep_position(self._folder(topic_partition), end, min([position, *lost]))

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        with ExitStack() as closing:  # each is closed, also if another cannot be flushed
            for topic_partition in topic_partitions:
                appender = self._appenders.pop(topic_partition, None)
                self._unflushed.discard(topic_partition)
                self._topic_ids.pop(topic_partition, None)
                self._closed_ends.pop(topic_partition, None)
                if appender is not None:
                    closing.callback(appender.close)

    def close(self) -> None:
        try:
            self.forget(list(self._appenders))
        finally:
            self._lock.close()

    def _appender(self, topic_partition: TopicPartition) -> LogAppender:
        found = self._appenders.get(topic_partition)
        if found is None:
            topic = self._names.target(topic_partition.topic)
            if not is_topic_name(topic):
                raise PartitionError(f"expected the name of a topic, found {topic!r}")
            configs = self._topics.get(topic, TopicConfig()).configs
            try:
                found = LogAppender(
                    self._folder(topic_partition),
                    segment_bytes=int(configs.get(SEGMENT_BYTES, DEFAULT_SEGMENT_BYTES)),
                    max_decompressed_bytes=self._max_decompressed_bytes,
                )
            except BlockingIOError as error:
                raise PartitionError(f"{error.filename}: {error.strerror}") from None
            self._appenders[topic_partition] = found
            if len(self._appenders) > self._max_appenders:
                self._close_oldest()
        self._appenders.move_to_end(topic_partition)
        return found

    def _flush(self, topic_partition: TopicPartition) -> None:
        appender = self._appenders[topic_partition]
        appender.flush()
        if not appender.is_in_place:
            raise MirrorError(
                f"{appender.folder}: the folder was deleted or replaced while the mirror wrote to it"
            )
        self._unflushed.discard(topic_partition)

    def _folder(self, topic_partition: TopicPartition) -> Path:
        return self._path / str(self._names.target_partition(topic_partition))

    def _close_oldest(self) -> None:
        """Make the least recently used log durable, and close it, to limit open files."""
        oldest, appender = next(iter(self._appenders.items()))
        if oldest in self._unflushed:
            self._flush(oldest)
        del self._appenders[oldest]
        self._closed_ends[oldest] = appender.next_offset
        appender.close()


def _stray_folder(folder: Path, topic_id: UUID) -> Path:
    """Return a free name for the log of a deleted topic, as brokers choose it: `orders-0.<id>-stray`."""
    for number in count():
        again = f".{number}" if number else ""
        suffix = f".{topic_id.hex}{again}-stray"
        aside = folder.with_name(folder.name[: _MAX_NAME_BYTES - len(suffix)] + suffix)
        if not aside.exists():
            return aside
    raise AssertionError("unreachable")
