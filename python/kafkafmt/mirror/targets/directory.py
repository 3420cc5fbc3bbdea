"""A log directory as a target: the source's batches with the source's offsets, each exactly once.

The end of a log is where its partition goes on, so that whatever was written before is there once, and what was not is
asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.appender import LogAppender
from kafkafmt.log.topic_configs import TopicConfig, update_topic_configs
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.mirror.moving import PartitionError, SourceTopic, Stopped, record_count, stretches
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.unknown_topics import warn_of_unknown
from kafkafmt.mirror.topic_settings import TopicSettings

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.types import TopicPartition

_SEGMENT_BYTES = "segment.bytes"


class DirectoryTarget:
    """Appends to the logs in a folder, which is made where it is missing. settings: of topics, for `topics.ini`.

    Raises DirectoryLockedError if a broker runs on the folder. None starts there until the target is closed.
    """

    def __init__(self, path: Path, statistics: Statistics, settings: TopicSettings) -> None:
        self._lock = lock_log_directory(path)
        self._path = path
        self.statistics = statistics
        self._settings = settings
        self._prepared: dict[str, SourceTopic] = {}
        self._topics: dict[str, TopicConfig] = {}  # as `topics.ini` has them
        self._appenders: dict[TopicPartition, LogAppender] = {}
        self._unflushed: set[TopicPartition] = set()

    def prepare(self, topics: Mapping[str, SourceTopic]) -> None:
        """Have `topics.ini` say what the source says of its topics; what it says of one that the source does not
        know stays."""
        if all(self._prepared.get(name) == topic for name, topic in topics.items()):
            return
        unknown: list[str] = []

        def changed(known: dict[str, TopicConfig]) -> Mapping[str, TopicConfig]:
            for name, topic in topics.items():
                configs = topic.config.configs
                if not topic.is_known and name in known:
                    configs = known[name].configs
                elif not topic.is_known:
                    unknown.append(name)
                self._topics[name] = TopicConfig(
                    topic.config.partitions, self._settings.applied(name, configs)
                )
            return {**known, **{name: self._topics[name] for name in topics}}

        update_topic_configs(self._path, changed)
        self._prepared.update(topics)
        warn_of_unknown(unknown)

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """The end of the log; None where nothing is in it. Raises PartitionError where another writer has it."""
        appender = self._appender(topic_partition)
        return appender.next_offset or None

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """A log without batches begins there, so that it goes on there if the mirror ends before one comes."""
        appender = self._appender(topic_partition)
        if not appender.next_offset:
            appender.begin_at(position)

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        appender = self._appender(topic_partition)
        try:
            for first, stop in stretches(run):
                appender.append_run(run, first, stop)
        except KafkaFormatError as error:
            raise PartitionError(str(error)) from None
        self._unflushed.add(topic_partition)
        self.statistics.moved[topic_partition].add(len(run), record_count(run), int(run.index["size"].sum()))

    def advance(self) -> Iterator[Stopped]:
        return iter(())

    def held_bytes(self, topic_partition: TopicPartition | None = None) -> int:
        return 0

    def pending(self, topic_partition: TopicPartition) -> int | None:
        return None

    def settle(self, timeout: float) -> None:
        """Nothing is ever under way."""

    def make_durable(self) -> None:
        while self._unflushed:
            self._appenders[self._unflushed.pop()].flush()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            appender = self._appenders.pop(topic_partition, None)
            self._unflushed.discard(topic_partition)
            if appender is not None:
                appender.close()

    def close(self) -> None:
        try:
            self.forget(list(self._appenders))
        finally:
            self._lock.close()

    def _appender(self, topic_partition: TopicPartition) -> LogAppender:
        found = self._appenders.get(topic_partition)
        if found is None:
            configs = self._topics.get(topic_partition.topic, TopicConfig()).configs
            try:
                found = LogAppender(
                    self._path / str(topic_partition),
                    segment_bytes=int(configs.get(_SEGMENT_BYTES, DEFAULT_SEGMENT_BYTES)),
                )
            except BlockingIOError as error:
                raise PartitionError(f"{error.filename}: {error.strerror}") from None
            self._appenders[topic_partition] = found
        return found
