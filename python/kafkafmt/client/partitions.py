"""The partitions of topics, looked up once per metadata update rather than per record, and the choice among them."""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING

from _kafkafmt.client.murmur2 import murmur2
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

    from kafkafmt.client.limits import TopicLimits


class TopicPartitions:
    """The partitions of one topic in the last metadata."""

    __slots__ = ("_all", "_available", "_by_number")

    def __init__(self, topic: str, cluster: ClusterMetadata) -> None:
        self._all = sorted(cluster.partitions_for_topic(topic) or ())
        self._available = sorted(cluster.available_partitions_for_topic(topic) or ()) or self._all
        self._by_number = {number: TopicPartition(topic, number) for number in self._all}

    def get(self, number: int) -> TopicPartition | None:
        """Return the partition of this number; None if the topic has none."""
        return self._by_number.get(number)

    def of_key(self, key: bytes | None) -> TopicPartition:
        """Choose as kafka-python's DefaultPartitioner: by the key's hash; without a key any partition with a leader."""
        if key is None:
            return self._by_number[self._available[int(random() * len(self._available))]]
        return self._by_number[self._all[(murmur2(key) & 0x7FFFFFFF) % len(self._all)]]


class PartitionsByTopic:
    """The partitions by topic, from the cluster's metadata. `ClusterMetadata.add_listener` takes it as a listener.

    The first look-up of a topic also asks for the topic's limits.
    """

    def __init__(self, cluster: ClusterMetadata, limits: TopicLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._topics: dict[str, TopicPartitions] = {}

    def get(self, topic: str) -> TopicPartitions | None:
        """Return the partitions of a topic; None if the metadata does not have it."""
        # An update replaces the dictionary: a look-up that began before it must not write into the new one.
        topics = self._topics
        found = topics.get(topic)
        if found is None and topic in self._cluster.topics():
            self._limits.want(topic)
            found = topics[topic] = TopicPartitions(topic, self._cluster)
        return found

    def __call__(self, _: ClusterMetadata) -> None:
        """Forget the partitions, because the metadata was updated."""
        self._topics = {}
