"""The topics or partitions of a cluster that a read selects, by `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafmt.scanning.selection import TopicSelection
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.scanning.brokers.cluster import SourceBrokers


@dataclass(frozen=True)
class Subscription:
    """The selected topics. assigned: the partitions to read, instead of all partitions of `topics`."""

    topics: TopicSelection
    assigned: frozenset[TopicPartition] | None = None

    def find(self, cluster: SourceBrokers) -> list[TopicPartition]:
        """Return the selected partitions that exist, in order. Raises BrokerError.

        Internal topics that only a pattern matches are left out.
        """
        if self.assigned is not None:
            found = cluster.partitions(sorted({one.topic for one in self.assigned}))
            return [one for one in found if one in self.assigned]
        found = cluster.partitions(None if self.topics.pattern is not None else self.topics.names)
        return [one for one in found if one.topic in self.topics]

    def ensure_found(self, partitions: Collection[TopicPartition], bootstrap_servers: str) -> None:
        """Raise ValueError if a topic or partition given by name is not among those that exist.

        A pattern may match none, as in Spark's Kafka source.
        """
        missing: object = None
        if self.assigned is not None:
            missing = min(self.assigned - set(partitions), default=None)
        elif self.topics.pattern is None:
            missing = self.topics.unmatched({one.topic for one in partitions})
        if missing is not None:
            what = "partition" if self.assigned is not None else "topic"
            raise ValueError(f"{bootstrap_servers}: no such {what}: {missing}")
