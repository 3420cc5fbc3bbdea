"""Find the partitions of one of Kafka's own topics in logs and log directories."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.directory import LogDirectory
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.internal_topics.latest import DamageHandler, partition_of_log, raise_damage
from kafkafmt.log.partition_log import PartitionLog
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.storage import RemotePath, StoragePath
from kafkafmt.types import TopicPartition

Source: TypeAlias = "PartitionLog | LogDirectory | str | os.PathLike[str] | RemotePath"
Sources: TypeAlias = "Source | Sequence[Source]"

_UNKNOWN = -1


@dataclass(frozen=True)
class Replicas:
    """The logs of one partition in several log directories.

    chosen: the log that is read: the one with the highest end offset, the first of equals. others: the others.
    """

    chosen: PartitionLog
    others: tuple[PartitionLog, ...] = ()

    def in_words(self) -> str:
        """Return a line that says which of several logs is read."""
        paths = ", ".join(str(log.path) for log in self.others)
        return (
            f"{self.chosen.topic_partition}: read from {self.chosen.path}, the longest log; not read: {paths}"
        )


class LogSources:
    """The logs of partitions in one or several sources. Folders are listed once.

    sources: a partition's log, a log directory, or a path or URI of either; or a sequence of these. The log directories
    of one broker (`log.dirs`), or of several brokers, are given together. A directory that is given twice counts once.

    on_damage: called with the damage that hides the end of a log. By default CorruptRecordError is raised.

    Raises FileNotFoundError or NotADirectoryError if a path is not a folder.
    """

    def __init__(self, sources: Sources, *, on_damage: DamageHandler = raise_damage) -> None:
        self._on_damage = on_damage
        self._logs: dict[TopicPartition, list[PartitionLog]] = {}
        self._named: list[PartitionLog] = []
        self.paths: list[StoragePath] = []
        for source in _each(sources):
            if isinstance(source, PartitionLog):
                self.paths.append(source.path)
                self._named.append(source)
            else:
                directory = source if isinstance(source, LogDirectory) else LogDirectory(source)
                self.paths.append(directory.path)
                self._add(directory)

    def _add(self, directory: LogDirectory) -> None:
        for topic_partition, folder in directory.folders().items():
            logs = self._logs.setdefault(topic_partition, [])
            if all(_identity(log.path) != _identity(folder) for log in logs):
                logs.append(PartitionLog(folder))

    def partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic in the log directories, sorted."""
        return sorted(found for found in self._logs if found.topic == topic)

    def all_partitions(self) -> list[TopicPartition]:
        """Return all partitions in the log directories, sorted."""
        return sorted(self._logs)

    def has(self, topic: str) -> bool:
        """Whether there is a partition of a topic. A given log counts as one, though it may be of another topic."""
        return bool(self._named or self.partitions(topic))

    def replicas(self, topic_partition: TopicPartition) -> Replicas | None:
        """Return the logs of a partition; None if there is none."""
        logs = self._logs.get(topic_partition, [])
        if len(logs) < 2:
            return Replicas(logs[0]) if logs else None
        ends = [self._end_offset(log) for log in logs]
        best = ends.index(max(ends))
        return Replicas(logs[best], tuple(log for number, log in enumerate(logs) if number != best))

    def end_offsets(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offset of the longest log of each partition that has one, unless damage hides it."""
        found = {}
        for one in topic_partitions:
            end_offset = max(map(self._end_offset, self._logs.get(one, [])), default=_UNKNOWN)
            if end_offset != _UNKNOWN:
                found[one] = end_offset
        return found

    def _end_offset(self, log: PartitionLog) -> int:
        try:
            return log.end_offset
        except KafkaFormatError as error:
            where = partition_of_log(log)
            self._on_damage(SourceDamage(where, error.base_offset or 0, None, str(error)))
            return _UNKNOWN

    def internal_logs(self, topic: str) -> list[Replicas]:
        """Return the logs of all partitions of one of Kafka's own topics, by partition.

        Raises FileNotFoundError if there are none. Raises ValueError for a given log of another topic, and if a log and
        a log directory are given together.
        """
        if self._named and (self._logs or len(self._named) > 1):
            raise ValueError(f"sources: expected one log of {topic}, or log directories")
        for log in self._named:
            if log.topic_partition is not None and log.topic_partition.topic != topic:
                raise ValueError(f"{log.path}: expected a partition of {topic}, found {log.topic_partition}")
            return [Replicas(log)]
        found = [self.replicas(one) for one in self.partitions(topic)]
        if not found:
            raise FileNotFoundError(errno.ENOENT, f"no partition of {topic}", ", ".join(map(str, self.paths)))
        return [one for one in found if one is not None]

    def topic_names(self) -> Mapping[UUID, str]:
        """Return the names of topics by their ids, which `partition.metadata` files contain."""
        names: dict[UUID, str] = {}
        known: set[str] = set()
        for topic_partition, logs in self._logs.items():
            if topic_partition.topic in known:
                continue
            for log in logs:
                topic_id = read_topic_id(log.path)
                if topic_id is not None:
                    names[topic_id] = topic_partition.topic
                    known.add(topic_partition.topic)
        return names


def _each(sources: Sources) -> Iterator[Source]:
    if isinstance(sources, PartitionLog | LogDirectory | str | os.PathLike | RemotePath):
        yield sources
    else:
        yield from sources


def _identity(path: StoragePath) -> str:
    """Return a text that is equal for two paths of the same folder."""
    return str(path.resolve() if isinstance(path, Path) else path)
