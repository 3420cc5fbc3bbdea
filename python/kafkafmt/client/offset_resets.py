"""The positions of a consumer that its reset policy has replaced."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
    from kafka.structs import TopicPartition

# The oldest resets beyond this number are dropped, if a consumer never takes them.
_MAX_RESETS = 100_000


class OffsetReset(NamedTuple):
    """A change of a position by the consumer's reset policy (`auto_offset_reset`).

    from_offset: the position that a broker refused as out of range; None if none was refused.
    """

    topic_partition: TopicPartition
    from_offset: int | None
    to_offset: int


class OffsetResets:
    """Notes resets while kafka-python requests their offsets."""

    def __init__(self, subscriptions: SubscriptionState) -> None:
        self._subscriptions = subscriptions
        # Partitions whose position is being reset, with the position that a broker refused.
        self._begun: dict[TopicPartition, tuple[TopicPartitionState, int | None]] = {}
        self._done: deque[OffsetReset] = deque(maxlen=_MAX_RESETS)

    def begin(self, topic_partition: TopicPartition, refused: int | None = None) -> None:
        """Note that the position of a partition is about to be reset."""
        self._begun[topic_partition] = (self._subscriptions.assignment[topic_partition], refused)

    def begin_all(self) -> None:
        """Note the partitions whose positions wait for a reset."""
        for topic_partition, state in list(self._subscriptions.assignment.items()):
            if state.awaiting_reset and topic_partition not in self._begun:
                self.begin(topic_partition)

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Note that the caller has set the position of a partition."""
        self._begun.pop(topic_partition, None)

    def end_all(self) -> None:
        """Note the resets that are done."""
        for topic_partition, (state, refused) in list(self._begun.items()):
            if self._subscriptions.assignment.get(topic_partition) is not state:
                del self._begun[topic_partition]
            elif not state.awaiting_reset and state.position is not None:
                del self._begun[topic_partition]
                self._done.append(OffsetReset(topic_partition, refused, int(state.position.offset)))

    def take(self) -> Iterator[OffsetReset]:
        """Yield each reset that is done, once."""
        self.end_all()
        while self._done:
            yield self._done.popleft()
