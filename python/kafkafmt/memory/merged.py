"""What a group hands out of several partitions at once: in the order of their timestamps, no record an object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.memory.record_queue import Taken

if TYPE_CHECKING:
    from _kafkafmt.merge import MergedRecords
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class Merged:
    """The next records of some partitions, and which partition each part of them is of.

    They are there for as long as this is kept; what is held for them is counted until the group is asked again.
    """

    topic_partitions: Sequence[TopicPartition]
    records: MergedRecords

    def __len__(self) -> int:
        return len(self.records)

    def runs(self) -> Iterator[Taken]:
        """As runs of records of one partition, in their order."""
        number = 0
        while number < len(self.records):
            yield (taken := self.run(number))
            number += taken.stop - taken.first

    def run(self, number: int) -> Taken:
        """The record of that number, and those behind it that are of the same partition."""
        part, located, first, stop = self.records.run(number)
        return Taken(self.topic_partitions[part], located, first, stop)

    def by_topic(self) -> dict[str, Merged]:
        """The records of each topic, those of one in their order."""
        topics = dict.fromkeys(topic for topic, _ in self.topic_partitions)
        if len(topics) == 1:
            return dict.fromkeys(topics, self)
        numbers = {topic: number for number, topic in enumerate(topics)}
        groups = np.array([numbers[topic] for topic, _ in self.topic_partitions], np.int32)
        return {
            topic: Merged(self.topic_partitions, records)
            for topic, records in zip(topics, self.records.split(groups, len(topics)), strict=True)
        }
