"""The membership of a replay or table in a consumer group: partitions that come and go, and committed positions.

The consumer calls the rebalance listener in its own thread, while the thread of the reader waits in `poll`. So a
revocation is complete, with its positions committed, before another member gets the partitions. Assignments take
effect after the poll, in the reader's thread, because they seek.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import kafka.errors as kafka_errors
from kafka import TopicPartition as KafkaTopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from kafkafmt.client.raw_consumer import RawConsumer

_COMMIT_MS = 30_000
# How often the positions of the other members are looked up, once this one has nothing to read.
_LOOK_SECONDS = 1.0


class PartitionOwner(Protocol):
    """Reads the partitions that a group assigns: a merge with its target, or a table."""

    def assign(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Begin to read these partitions, and divide the memory again."""

    def revoke(self, topic_partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Stop to read these partitions, and divide the memory again. Returns the positions to commit."""

    def commit(self) -> Mapping[TopicPartition, int]:
        """Make all that was read durable. Returns the positions of all partitions, to commit."""


class GroupMember:
    """A member of the group that the consumer has as `group_id`.

    subscribe: subscribes the consumer with the listener that it is called with.
    goals: the offsets up to which the group reads all its partitions; empty for a group that follows.
    committed: requests the committed offsets of the group.
    commit_seconds: how often positions are committed.

    Attributes:
        owner: reads the partitions; to be set before the first poll.
        owned: the partitions that are assigned to this member, and that its owner has.
        rebalances: how often partitions were assigned.
        has_left: partitions that are revoked from now on stay `owned`.
    """

    owner: PartitionOwner

    def __init__(
        self,
        subscribe: Callable[[RawConsumer, AsyncConsumerRebalanceListener], None],
        goals: Mapping[TopicPartition, int],
        committed: Callable[[], Mapping[TopicPartition, int]],
        commit_seconds: float,
    ) -> None:
        self.owned: set[TopicPartition] = set()
        self.rebalances = 0
        self._subscribe, self._request_committed = subscribe, committed
        self._goals, self._commit_seconds = dict(goals), commit_seconds
        self._coming: set[TopicPartition] = set()
        self.has_left = self._is_done = False
        self._committed_at = self._looked_at = time.monotonic()

    def join(self, consumer: RawConsumer, forget: Callable[[Iterable[TopicPartition]], None]) -> None:
        """Join the group. forget: called with partitions that were revoked."""
        self._consumer, self._forget = consumer, forget
        self._subscribe(consumer, _Listener(self))

    @property
    def is_done(self) -> bool:
        """Whether the group has read all partitions up to its goals. Looks again after a second."""
        if not self._is_done and self._goals and time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self.commit()
            self._is_done = self._has_reached_goals()
            self._looked_at = time.monotonic()
        return self._is_done

    def update(self) -> None:
        """Take over the partitions that were assigned by the last poll, and commit if it is time."""
        coming, self._coming = self._coming, set()
        if coming:
            # The last members to end get the partitions of those that ended before. They do not read them again.
            self._is_done = self._is_done or (bool(self._goals) and self._has_reached_goals())
            if not self._is_done:
                self.owned |= coming
                self.owner.assign(sorted(coming))
        if time.monotonic() - self._committed_at >= self._commit_seconds:
            self.commit()

    def committed(self) -> Mapping[TopicPartition, int]:
        """Request the committed offsets of the group. Raises KafkaError."""
        return self._request_committed()

    def commit(self) -> None:
        """Commit the positions of all partitions, after the owner has made what it read durable."""
        offsets = self.owner.commit()
        self._committed_at = time.monotonic()
        if offsets:
            try:
                self._consumer.commit(_commits(offsets), timeout_ms=_COMMIT_MS)
            except kafka_errors.KafkaError:  # as during a rebalance: the next commit has these positions, too
                return

    def _has_reached_goals(self) -> bool:
        try:
            committed = self.committed()
        except kafka_errors.KafkaError:  # as while the coordinator moves
            return False
        return all(committed.get(one, 0) >= goal for one, goal in self._goals.items())

    # Called by the listener

    def on_assigned(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Note new partitions, which flow only when their owner wants them."""
        self.rebalances += 1
        self._coming |= {*topic_partitions}
        self._consumer.pause(*(KafkaTopicPartition(*one) for one in topic_partitions))

    async def on_revoked(self, topic_partitions: Collection[TopicPartition], *, is_lost: bool) -> None:
        """Let the owner stop, and commit its positions unless another member may have committed already."""
        self._coming -= {*topic_partitions}
        if self.has_left or self._is_done:
            return
        gone = self.owned.intersection(topic_partitions)
        offsets = self.owner.revoke(sorted(gone))
        self._forget(gone)
        self.owned -= gone
        if offsets and not is_lost:
            try:
                await self._consumer.commit_async(_commits(offsets))
            except kafka_errors.KafkaError:  # the next owner begins at an earlier position
                return


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: GroupMember) -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Iterable[KafkaTopicPartition]) -> None:
        self._member.on_assigned([TopicPartition(*one) for one in assigned])

    async def on_partitions_revoked(self, revoked: Iterable[KafkaTopicPartition]) -> None:
        await self._member.on_revoked([TopicPartition(*one) for one in revoked], is_lost=False)

    async def on_partitions_lost(self, lost: Iterable[KafkaTopicPartition]) -> None:
        await self._member.on_revoked([TopicPartition(*one) for one in lost], is_lost=True)


def _commits(offsets: Mapping[TopicPartition, int]) -> dict[KafkaTopicPartition, OffsetAndMetadata]:
    return {KafkaTopicPartition(*one): OffsetAndMetadata(at, "", -1) for one, at in offsets.items()}
