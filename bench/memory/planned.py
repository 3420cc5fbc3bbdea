"""The same from the top down: a plan of one number, made anew whenever partitions come or go, and a budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kafkafmt import TopicPartition
from kafkafmt.cli.within_memory import plan_of
from kafkafmt.jobs.partition_readers import PartitionReaders
from kafkafmt.jobs.replay import Merge

if TYPE_CHECKING:
    from bench.memory.topic import Topic
    from kafkafmt import Record


def _readers(topic: Topic) -> PartitionReaders:
    folders = {TopicPartition(topic.name, number): topic.folder(number) for number in range(topic.partitions)}
    return PartitionReaders(folders)


class PlannedReplay:
    """`Merge`, as `kafkafmt replay --by-time --memory` has it."""

    def __init__(self, topic: Topic, memory_bytes: int) -> None:
        self._name = topic.name
        self._merge = Merge(_readers(topic), plan_of(memory_bytes, producer_bytes=0))

    def assign(self, numbers: Sequence[int]) -> None:
        self._merge.assign([TopicPartition(self._name, number) for number in numbers])

    def revoke(self, numbers: Sequence[int]) -> None:
        self._merge.revoke([TopicPartition(self._name, number) for number in numbers])

    def take(self) -> tuple[int, Iterator[Record]] | None:
        taken = self._merge.take()
        return None if taken is None else (taken.topic_partition.partition, taken.records())

    def close(self) -> None:
        self._merge.close()
