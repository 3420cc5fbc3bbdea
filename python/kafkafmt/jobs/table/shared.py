"""A table whose partitions a consumer group assigns.

The state of each member has the rows of all partitions that it has ever read. A partition that comes back continues at
the position of this state, so no member needs the state of another one. Offsets that the group commits tell the other
members how far this one is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.jobs.table.table import Table


class SharedTable:
    """The owner of a group's partitions (`GroupMember.owner`)."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def assign(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Read these partitions, too, from the position of the state, or from their start."""
        self._table.assign(topic_partitions)

    def revoke(self, topic_partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Commit the state, and stop to read these partitions."""
        offsets = self.commit()
        self._table.revoke(topic_partitions)
        return {one: offsets[one] for one in topic_partitions if one in offsets}

    def commit(self) -> Mapping[TopicPartition, int]:
        """Commit the state. Returns its positions."""
        self._table.commit()
        return self._table.positions
