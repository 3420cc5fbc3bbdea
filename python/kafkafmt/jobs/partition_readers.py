"""The partitions of a log directory, read on from any offset by a job, run by run.

All readers share what they read into, so that a run is to be used before the next is read. A log is read as far as it
went when the job began to read it. What is damaged ends the job, or is told and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kafkafmt.errors import CorruptRecordError, KafkaFormatError
from kafkafmt.jobs.convert import partition_logs
from kafkafmt.log.following import SegmentCache, UnreadTail
from kafkafmt.log.open_segment import READ_BYTES
from kafkafmt.log.reader import LogReader, read_memory
from kafkafmt.log.reading import SourceDamage
from kafkafmt.log.topics import topic_filter
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.scan import BatchRun
    from kafkafmt.memory import PartitionGroup

_Handed = TypeVar("_Handed")

# What reading takes, whatever the number of partitions: the readers' memory, that of those who follow logs, and one
# batch that is larger than it.
READER_BYTES = 2 * READ_BYTES + 1024 * 1024


class NoLogsError(Exception):
    """Why there is nothing to read, in one line."""


def select_logs(source: Path, topics: str | None = None) -> dict[TopicPartition, Path]:
    """The folder of each partition under a log directory, or of the partition whose folder that is.

    topics: a shell pattern that names of topics must match; without one Kafka's own are left out of a log directory:
    see `kafkafmt.log.topics`. Raises NoLogsError where none is left.
    """
    if not source.is_dir():
        raise NoLogsError(f"{source}: {'not a folder' if source.exists() else 'no such folder'}")
    found = {
        log.topic_partition: log.path for log in partition_logs(source) if log.topic_partition is not None
    }
    if not found:
        raise NoLogsError(f"{source}: expected folders of partitions, as <topic>-<partition>, found none")

    is_meant = topic_filter(topics)
    chosen = {
        one: found[one]
        for one in sorted(found)
        if is_meant(one.topic) or (topics is None and found[one] == source)
    }
    if not chosen:
        what = "no topic but Kafka's own" if topics is None else f"no topic matches {topics!r}"
        raise NoLogsError(f"{source}: {what}")
    return chosen


class PartitionReaders:
    """Reads the logs in `folders`. Not safe for threads.

    is_committed: records of transactions that are open or were aborted are left out. skips_damage: it is left out, and
    `on_damage` is called with it; else CorruptRecordError is raised, which names partition and offset.
    from_segment_start: records below the log start offset are read, too.

    unread_tails: what stood behind the last whole batch of each log that was begun. overlapping_segments: of each log
    that was begun, how many have offsets that segments before them have, too, and that are read once.
    """

    def __init__(
        self,
        folders: Mapping[TopicPartition, Path],
        *,
        is_committed: bool = True,
        skips_damage: bool = False,
        on_damage: Callable[[SourceDamage], None] = lambda damage: None,
        from_segment_start: bool = False,
    ) -> None:
        self.unread_tails: dict[TopicPartition, UnreadTail] = {}
        self.overlapping_segments: dict[TopicPartition, int] = {}
        self._from_segment_start = from_segment_start
        self._folders = folders
        self._is_committed = is_committed
        self._skips_damage = skips_damage
        self._on_damage = on_damage
        self._cache = SegmentCache()
        self._memory = read_memory()
        self._readers: dict[TopicPartition, LogReader] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._folders)

    def seek(self, topic_partition: TopicPartition, offset: int | None) -> int:
        """Go on at an offset, None for the log's start; returns it, or the log's start where that is behind it.

        What is read next begins with the batch that holds it.
        """
        reader = self._reader(topic_partition)
        start = reader.start_offset
        reader.seek(start if offset is None else max(offset, start))
        return reader.offset

    def offset(self, topic_partition: TopicPartition) -> int:
        """Where it is read on."""
        return self._reader(topic_partition).offset

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """How far it is read."""
        return self._reader(topic_partition).end_offset

    def rest(self, topic_partition: TopicPartition) -> None:
        """Hold no file of it open for reading until it is read again."""
        self._reader(topic_partition).rest()

    def read(self, topic_partition: TopicPartition, most_bytes: int = READ_BYTES) -> BatchRun | None:
        """The next batches, of `most_bytes` or one that is larger; None at the end.

        Raises CorruptRecordError and OSError.
        """
        reader = self._reader(topic_partition)
        while True:
            found = reader.read(reader.end_offset, most_bytes)
            if not isinstance(found, SourceDamage):
                return found
            self.meet(found)

    def meet(self, damage: SourceDamage) -> None:
        """Tell of damage that is left out. Raises CorruptRecordError where it is not to be."""
        if not self._skips_damage:
            raise CorruptRecordError(f"{damage.topic_partition} at offset {damage.offset}: {damage.message}")
        self._on_damage(damage)

    def _reader(self, topic_partition: TopicPartition) -> LogReader:
        reader = self._readers.get(topic_partition)
        if reader is None:
            folder = self._folders[topic_partition]
            reader = self._readers[topic_partition] = LogReader(
                topic_partition,
                folder,
                self._cache,
                self._memory,
                is_committed=self._is_committed,
                keeps_control_batches=False,
                trims_first_batch=False,
                from_segment_start=self._from_segment_start,
            )
            if (tail := reader.unread_tail) is not None:
                self.unread_tails[topic_partition] = tail
            if reader.overlaps:
                self.overlapping_segments[topic_partition] = len(reader.overlaps)
        return reader


def take_sound(group: PartitionGroup, readers: PartitionReaders, take: Callable[[], _Handed]) -> _Handed:
    """What a group fed by these readers has next, past damage that is left out. Raises CorruptRecordError.

    take: how the group is asked for it.
    """
    while True:
        try:
            return take()
        except KafkaFormatError as error:
            damaged = group.failed
            assert damaged is not None
            offset = group.offset(damaged)
            readers.meet(SourceDamage(damaged, offset, group.skip(damaged), str(error)))
