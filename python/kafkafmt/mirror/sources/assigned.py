"""A cluster as a source for one mirror alone, which takes all partitions: no consumer group is needed at the source.

The topics are listed again at an interval. A topic that was deleted and created again is a new topic: its partitions
are given up, and then begin anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import structlog
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.mirror.sources.cluster import ClusterSource
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from uuid import UUID

    from kafkafmt.mirror.protocols import Membership

_log = structlog.get_logger()


class AssignedClusterSource(ClusterSource):
    """Batches of a cluster, without a group. The target knows the positions."""

    def _begin_reading(self) -> None:
        self._listed_at = time.monotonic()
        self._list_seconds = self._consumer.config["metadata_max_age_ms"] / 1000
        found = self._goals.ends or self._cluster.partitions(
            filter(self._address.matches, self._cluster.topic_names())
        )
        self._missing_once: set[TopicPartition] = set()
        self._assign(set(found))

    def partitions(self) -> Sequence[TopicPartition]:
        if self._options.is_following and time.monotonic() - self._listed_at > self._list_seconds:
            try:
                self._list_again()
            except kafka_errors.KafkaError as error:
                _log.warning("the topics could not be listed, and are listed again", error=str(error))
        return sorted(self._assigned)

    def lost_topics(self) -> dict[TopicPartition, str]:
        if not self._options.is_following:
            return super().lost_topics()
        if self._consumer.take_unknown_topics() | self._unknown_ids:
            self._unknown_ids = set()
            self._listed_at = float("-inf")
        return {}

    def membership(self) -> Membership | None:
        return None

    def committed(self, topic_partition: TopicPartition) -> int | None:
        return None

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self._reached.get(one, 0) for one in topic_partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing: the target knows the positions."""

    def _list_again(self) -> None:
        """Give up partitions that were deleted or created again, and take new ones."""
        self._listed_at = time.monotonic()
        topics = list(filter(self._address.matches, self._cluster.topic_names()))
        found, ids = set(self._cluster.partitions(topics)), self._cluster.topic_ids(topics)
        # A broker that has just started may not know all topics.
        missing = self._assigned - found
        deleted, self._missing_once = missing & self._missing_once, missing
        recreated = {one for one in self._assigned & found if self._has_other_id(one, ids)}
        if recreated:  # the mirror must see that they are gone, before they are assigned again
            self._listed_at = float("-inf")
        kept = (self._assigned - deleted - recreated) | (found - recreated)
        for one in deleted | recreated:
            self._positions.pop(one, None)
            self._ends.pop(one, None)
            self._begun_ids.pop(one, None)
            self._epochs.forget(one)
        self._assign(kept)

    def _has_other_id(self, topic_partition: TopicPartition, ids: Mapping[str, UUID | None]) -> bool:
        known, now = self._begun_ids.get(topic_partition), ids.get(topic_partition.topic)
        return known is not None and now is not None and known != now

    def _assign(self, topic_partitions: set[TopicPartition]) -> None:
        new = topic_partitions - self._assigned
        if topic_partitions == self._assigned:
            return
        self._consumer.assign([KafkaTopicPartition(*one) for one in sorted(topic_partitions)])
        self._assigned &= topic_partitions
        self.assigned(new)
