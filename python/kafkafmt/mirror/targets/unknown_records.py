"""Find records at the target that the offset map does not know.

They may be records of the source, for example from a restored backup, and would then be at the target twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kafkafmt.mirror.protocols import PartitionError

if TYPE_CHECKING:
    from uuid import UUID

    from kafkafmt.mirror.offset_map import OffsetMap
    from kafkafmt.mirror.protocols import SourceTopic
    from kafkafmt.mirror.targets.target_topics import TargetTopics
    from kafkafmt.types import TopicPartition

# Returns how many records a partition of the target may have from an offset to before another one.
_RecordsAfter: TypeAlias = Callable[["TopicPartition", int, int], int]


class UnknownRecords:
    """Look for unknown records before a partition begins.

    topics: those that are mirrored, which may change. keeps_partitions: whether records keep their partitions; if not,
    they may be in any partition of their topic. appends: whether new records may be appended to unknown ones. If not,
    PartitionError is raised for these.
    """

    def __init__(
        self,
        cluster: TargetTopics,
        offsets: OffsetMap,
        topics: Mapping[str, SourceTopic],
        records_after: _RecordsAfter,
        *,
        keeps_partitions: bool,
        appends: bool,
    ) -> None:
        self._cluster, self._offsets, self._topics = cluster, offsets, topics
        self._records_after = records_after
        self._keeps_partitions, self._appends = keeps_partitions, appends
        self._found: dict[TopicPartition, tuple[int, int]] = {}
        # First and end offsets at the target: of topics that no map has, and of topics that were created again, since
        # `forget_recreated` was called. Empty if the records are this source's.
        self._new_topics: dict[str, Mapping[TopicPartition, tuple[int, int]]] = {}
        self._recreated: dict[TopicPartition, Mapping[TopicPartition, tuple[int, int]]] = {}

    def take(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return first and end offset of the unknown records that were found since the last call."""
        self._new_topics.clear()  # from now on they have records of this mirror
        taken, self._found = self._found, {}
        return taken

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget the unknown records that were found in a partition."""
        self._found.pop(topic_partition, None)

    def forget_recreated(self) -> None:
        """Forget the offsets of topics that were created again: the next look reads them."""
        self._recreated.clear()

    def look(self, topic_partition: TopicPartition) -> None:
        """Find records at the target that the offset map does not know. Raises PartitionError, unless with --append.

        Records that a killed mirror sent after the end of its map are its own. They are not found here.
        """
        known = self._offsets.partition(topic_partition)
        if not self._keeps_partitions:
            self._look_in_topic(topic_partition)
        elif not len(known):
            self._meet_all(topic_partition, self._cluster.bounds([topic_partition]))
        elif known.is_closed:
            first, end = known.target_end or 0, self._cluster.end_offset(topic_partition)
            if self._records_after(topic_partition, first, end):
                self._meet(
                    topic_partition,
                    (first, end),
                    f"{self._cluster.at_target(topic_partition)} has offsets {first} to {end - 1} at the target, and "
                    f"the offset map of this source ends at {first}: expected no record there, or --append",
                )

    def look_in_recreated(
        self, topic_partition: TopicPartition, known_id: str | None, target_id: UUID
    ) -> None:
        """Do `look` for a topic that was deleted at the target and created again. known_id: its id in the map."""
        for one, (start, end) in self._in_recreated(topic_partition, target_id).items():
            self._meet(
                topic_partition,
                (start, end),
                f"{self._cluster.at_target(one)} has offsets {start} to {end - 1} at the target, whose topic was "
                f"deleted and created again: expected topic id {known_id}, found {target_id}, or --append",
            )

    def _in_recreated(
        self, topic_partition: TopicPartition, target_id: UUID
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return first and end offset of partitions in the new topic, if it has records, and none of this source.

        With repartitioning this is asked once for all partitions of the topic.
        """
        others = self._target_partitions(topic_partition)
        unknown = self._recreated.get(others[0])
        if unknown is None:
            bounds = self._cluster.bounds(others)
            # After the bounds: a mirror that begins a partition saves its map before it sends.
            is_begun = any(self._offsets.peek(one).target_topic_id == str(target_id) for one in others)
            records_after = self._records_after
            unknown = {} if is_begun else {one: at for one, at in bounds.items() if records_after(one, *at)}
            self._recreated[others[0]] = unknown
        return unknown

    def _target_partitions(self, topic_partition: TopicPartition) -> list[TopicPartition]:
        """Return the target's partitions that may have the records: with repartitioning, all of the topic."""
        if self._keeps_partitions:
            return [topic_partition]
        count = self._topics[topic_partition.topic].config.partitions or 1
        return [topic_partition._replace(partition=number) for number in range(count)]

    def _look_in_topic(self, topic_partition: TopicPartition) -> None:
        """Check all partitions of the topic: with repartitioning, records may be in any of them."""
        topic, others = topic_partition.topic, self._target_partitions(topic_partition)
        if topic not in self._new_topics:
            bounds = self._cluster.bounds(others)
            # After the bounds: a mirror that begins a partition saves its map before it sends.
            is_known = any(len(self._offsets.peek(one)) for one in others)
            self._new_topics[topic] = {} if is_known else bounds
        self._meet_all(topic_partition, self._new_topics[topic])

    def _meet_all(
        self, topic_partition: TopicPartition, bounds: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        for one, (start, end) in bounds.items():
            if end > start:
                self._meet(
                    topic_partition,
                    (start, end),
                    f"{self._cluster.at_target(one)} has offsets {start} to {end - 1} at the target, and the offset "
                    "map has no entry of this source about them: expected an empty partition, or --append",
                )

    def _meet(self, topic_partition: TopicPartition, offsets: tuple[int, int], message: str) -> None:
        self._found[topic_partition] = offsets
        if not self._appends:
            raise PartitionError(message)
