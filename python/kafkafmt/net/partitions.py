"""The partitions of topics, looked up once a metadata update and not once a record, and the choice among them."""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING

from _kafkafmt.murmur2 import murmur2
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

    from kafkafmt.net.limits import TopicLimits


class TopicPartitions:
    """The partitions of one topic, as the last metadata had them."""

    __slots__ = ("_all", "_available", "_by_number")

    def __init__(self, topic: str, cluster: ClusterMetadata) -> None:
        self._all = sorted(cluster.partitions_for_topic(topic) or ())
        self._available = sorted(cluster.available_partitions_for_topic(topic) or ()) or self._all
        self._by_number = {number: TopicPartition(topic, number) for number in self._all}

    def get(self, number: int) -> TopicPartition | None:
        return self._by_number.get(number)

    def of_key(self, key: bytes | None) -> TopicPartition:
        """The choice of kafka-python's DefaultPartitioner: by the key's hash, or any that has a leader."""
        if key is None:
            return self._by_number[self._available[int(random() * len(self._available))]]
        return self._by_number[self._all[(murmur2(key) & 0x7FFFFFFF) % len(self._all)]]


class PartitionsByTopic:
    """What the cluster's metadata says, topic by topic. A listener of it, which `add_listener` takes.

    Has the limit of each topic asked for that is looked up.
    """

    def __init__(self, cluster: ClusterMetadata, limits: TopicLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._topics: dict[str, TopicPartitions] = {}

    def get(self, topic: str) -> TopicPartitions | None:
        """The partitions of a topic; None where the metadata does not have it."""
        # An update replaces it: what was looked up before it is not kept in the new one.
        topics = self._topics
        found = topics.get(topic)
        if found is None and topic in self._cluster.topics():
            self._limits.want(topic)
            found = topics[topic] = TopicPartitions(topic, self._cluster)
        return found

    def __call__(self, _: ClusterMetadata) -> None:
        """The metadata was updated."""
        self._topics = {}
