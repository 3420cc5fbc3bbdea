"""The topics of a target cluster, by the names of the source's topics that are mirrored to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafkafmt.mirror.topic_names import TopicNames

if TYPE_CHECKING:
    from uuid import UUID

    from kafkafmt.log.topic_configs import TopicConfig
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.types import TopicPartition


class TargetTopics:
    """Takes and returns the source's names. The cluster has the target's."""

    def __init__(self, cluster: MirrorCluster, names: TopicNames) -> None:
        self._cluster, self._names = cluster, names

    def at_target(self, topic_partition: TopicPartition) -> TopicPartition:
        """Return the partition at the target, for messages."""
        return self._names.target_partition(topic_partition)

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID | None]:
        """See `MirrorCluster.topic_ids`."""
        sources = self._sources(names)
        return {sources[target]: topic_id for target, topic_id in self._cluster.topic_ids(sources).items()}

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        """See `MirrorCluster.partition_counts`."""
        sources = self._sources(names)
        return {sources[target]: count for target, count in self._cluster.partition_counts(sources).items()}

    def describe_topics(self, counts: Mapping[str, int], *, own: bool = True) -> dict[str, TopicConfig]:
        """See `MirrorCluster.describe_topics`."""
        sources = self._sources(counts)
        there = {target: counts[source] for target, source in sources.items()}
        return {
            sources[target]: config
            for target, config in self._cluster.describe_topics(there, own=own).items()
        }

    def create_topic(self, name: str, topic: TopicConfig) -> None:
        """See `MirrorCluster.create_topic`."""
        self._cluster.create_topic(self._names.target(name), topic)

    def add_partitions(self, name: str, partitions: int) -> None:
        """See `MirrorCluster.add_partitions`."""
        self._cluster.add_partitions(self._names.target(name), partitions)

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        """See `MirrorCluster.alter_topic`."""
        self._cluster.alter_topic(self._names.target(name), changes)

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """See `MirrorCluster.bounds`."""
        sources = {self.at_target(one): one for one in topic_partitions}
        return {sources[target]: found for target, found in self._cluster.bounds(sources).items()}

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """See `MirrorCluster.end_offset`."""
        return self._cluster.end_offset(self.at_target(topic_partition))

    def _sources(self, names: Iterable[str]) -> dict[str, str]:
        return {self._names.target(name): name for name in names}
