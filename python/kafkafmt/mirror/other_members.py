"""The partitions of other members of the group: a mirror that does not follow waits until they are at their ends.

It gives them up once they have made no progress for some time.
"""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.mirror.protocols import Source
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()


class OtherMembers:
    """How far other members of the group are. mine, in all methods: the partitions of this mirror."""

    def __init__(self, options: MirrorOptions, source: Source) -> None:
        self._options, self._source = options, source
        self._left: dict[TopicPartition, int] | None = None
        self._left_since = 0.0

    def left(self, mine: AbstractSet[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets reached in partitions that are not at their end yet."""
        goals = self._source.goals()
        others = goals.keys() - mine
        if not others:
            return {}
        reached = self._source.reached_by_others(others)
        return {one: reached[one] for one in others if reached[one] < goals[one]}

    def lag(self, mine: AbstractSet[TopicPartition]) -> dict[TopicPartition, int]:
        """Return how many offsets each partition is before its end."""
        goals, left = self._source.goals(), self.left(mine)
        return {one: goals[one] - left.get(one, goals[one]) for one in goals.keys() - mine}

    def stand_still(self, mine: AbstractSet[TopicPartition]) -> bool:
        """Return whether they have made no progress for some time. False if the mirror follows."""
        if self._options.is_following:
            return False
        left, now = self.left(mine), time.monotonic()
        if left != self._left:
            if left and self._source.partitions() is not None:
                _log.info("waiting for other members of the group", partitions=len(left))
            self._left, self._left_since = left, now
        return now - self._left_since > self._source.patience
