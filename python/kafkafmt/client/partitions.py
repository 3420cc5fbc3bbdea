"""The partitions of topics, looked up once per metadata update rather than per record, and the choice of one."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from kafka.partitioner import Partitioner

from _kafkafmt.client.partitions import KnownTopics, TopicPartitions
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

    from kafkafmt.client.limits import TopicLimits


class PartitionsByTopic(KnownTopics):
    """The partitions by topic, from the cluster's metadata. `ClusterMetadata.add_listener` takes it as a listener.

    The first look-up of a topic also asks for the topic's limits.

    partitioner: the option of KafkaProducer, which `choose` calls.
    """

    def __init__(self, cluster: ClusterMetadata, limits: TopicLimits, partitioner: Any) -> None:
        self._cluster = cluster
        self._limits = limits
        self._partitioner = partitioner

    def get(self, topic: str) -> TopicPartitions | None:
        """Return the partitions of a topic; None if the metadata does not have it."""
        # An update replaces the dictionary: a look-up that began before it must not write into the new one.
        topics = self.topics
        found = topics.get(topic)
        if found is None and topic in self._cluster.topics():
            self._limits.want(topic)
            found = topics[topic] = self._looked_up(topic)
        return found

    def _looked_up(self, topic: str) -> TopicPartitions:
        by_number = {
            number: TopicPartition(topic, number)
            for number in sorted(self._cluster.partitions_for_topic(topic) or ())
        }
        available = sorted(self._cluster.available_partitions_for_topic(topic) or ())
        return TopicPartitions(by_number, [by_number[number] for number in available if number in by_number])

    def choose(
        self, topic: str, partition: int | None, key: Any, value: Any, key_bytes: Any, value_bytes: Any
    ) -> TopicPartition:
        """Choose a record's partition as KafkaProducer does. Raises ValueError if the given one does not exist."""
        if partition is not None:
            if partition < 0:
                raise ValueError("partition must be >= 0")
            if partition not in (self._cluster.partitions_for_topic(topic) or ()):
                raise ValueError(f"Unrecognized partition {partition} for topic {topic}")
            return TopicPartition(topic, partition)
        partitioner = self._partitioner
        if isinstance(partitioner, Partitioner):
            number = partitioner.partition(topic, key, key_bytes, value, value_bytes, self._cluster)
        else:
            warnings.warn(
                "partitioner does not implement kafka.partitioner.Partitioner",
                DeprecationWarning,
                stacklevel=2,
            )
            number = partitioner.partition(topic, key_bytes, self._cluster)
        if number is None:
            raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
        return TopicPartition(topic, number)

    def __call__(self, _: ClusterMetadata) -> None:
        """Forget the partitions, because the metadata was updated."""
        self.topics = {}
