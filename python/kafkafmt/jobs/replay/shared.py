"""A replay whose partitions a consumer group assigns.

Positions are committed after the target has all records before them, so each record is replayed at least once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.replay.merging import Merge
    from kafkafmt.jobs.replay.running import FlushingTarget


class SharedReplay:
    """The owner of a group's partitions (`GroupMember.owner`). committed: requests the group's committed offsets."""

    def __init__(
        self, merge: Merge, target: FlushingTarget, committed: Callable[[], Mapping[TopicPartition, int]]
    ) -> None:
        self._merge, self._target, self._committed = merge, target, committed

    def assign(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Merge these partitions, too, from their committed offsets, or from their start."""
        committed = self._committed()
        offsets = {one: committed[one] for one in topic_partitions if one in committed}
        self._merge.assign(topic_partitions, offsets)

    def revoke(self, topic_partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Flush the target, and remove these partitions from the merge."""
        offsets = self.commit()
        self._merge.revoke(topic_partitions)
        return {one: offsets[one] for one in topic_partitions if one in offsets}

    def commit(self) -> Mapping[TopicPartition, int]:
        """Flush the target. Returns the positions after the records that it has."""
        self._target.flush()
        found = {one: self._merge.position(one) for one in self._merge.assigned}
        return {one: offset for one, offset in found.items() if offset is not None}
