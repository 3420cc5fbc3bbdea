"""Records of several partitions in the order of their timestamps, without an object for each record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kafkafmt.streams.record_queue import RecordSlice

if TYPE_CHECKING:
    from _kafkafmt.streams.merge import MergedRecords
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class Merged:
    """The next records of several partitions, with the partition of each.

    The records stay valid as long as this object exists. Their bytes count as used until the next call of the group.
    """

    topic_partitions: Sequence[TopicPartition]
    records: MergedRecords

    def __len__(self) -> int:
        return len(self.records)

    def runs(self) -> Iterator[RecordSlice]:
        """Iterate over runs of consecutive records of one partition, in the merged order."""
        number = 0
        while number < len(self.records):
            yield (taken := self.run(number))
            number += taken.stop - taken.first

    def run(self, number: int) -> RecordSlice:
        """Return the record with that number, with the records directly after it of the same partition."""
        part, located, first, stop = self.records.run(number)
        return RecordSlice(self.topic_partitions[part], located, first, stop)

    def by_topic(self) -> dict[str, Merged]:
        """Split the records by topic; those of one topic stay in their order."""
        topics = dict.fromkeys(topic for topic, _ in self.topic_partitions)
        if len(topics) == 1:
            return dict.fromkeys(topics, self)
        numbers = {topic: number for number, topic in enumerate(topics)}
        groups = np.array([numbers[topic] for topic, _ in self.topic_partitions], np.int32)
        return {
            topic: Merged(self.topic_partitions, records)
            for topic, records in zip(topics, self.records.split(groups, len(topics)), strict=True)
        }
