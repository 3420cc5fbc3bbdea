"""What an idempotent producer knows and the accumulator asks for: who it is, and which sequence number is next."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition


class ProducerState(NamedTuple):
    """What a batch header says of its producer (KIP-98, "Message Format")."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False


class Sequences(Protocol):
    """The numbering of an idempotent producer's records, partition by partition. Called from the sender's thread."""

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Whether batches of a partition may be numbered now: not without a producer id, for one."""

    def is_current(self, state: ProducerState) -> bool:
        """Whether records are still numbered under the producer id and epoch of `state`."""

    def assign(self, topic_partition: TopicPartition, count: int) -> ProducerState:
        """Number the next `count` records of a partition."""

    def take_back(self, topic_partition: TopicPartition, state: ProducerState) -> None:
        """No broker has the records that `state` was assigned to: give their numbers to the next ones."""

    def fail(self, error: Exception) -> None:
        """Records failed that are not sent (again): a transaction must not be committed without them."""
