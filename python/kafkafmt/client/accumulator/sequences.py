"""What the accumulator needs of a producer's state: its id and epoch, its sequence numbers, and its transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition


class ProducerState(NamedTuple):
    """The fields of a batch header that identify its producer (KIP-98, "Message Format")."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False


class Sequences(Protocol):
    """Assigns sequence numbers to an idempotent producer's records, by partition. Called from the sender's thread."""

    def may_send(self, topic_partition: TopicPartition) -> bool:
        """Return whether batches of a partition may be sent now; False while there is no producer id, for example."""

    def is_current(self, state: ProducerState) -> bool:
        """Return whether the producer still has the producer id and epoch of `state`."""

    def assign(self, topic_partition: TopicPartition, count: int) -> ProducerState:
        """Assign sequence numbers to the next `count` records of a partition."""

    def take_back(self, topic_partition: TopicPartition, state: ProducerState) -> None:
        """Assign the numbers of `state` to the next records, because no broker has the records that had them."""

    def fail(self, error: Exception) -> None:
        """Make an open transaction abort, because records of it have failed and are not sent again."""


class Transaction(Protocol):
    """One transaction of a producer, to which records are appended. Any thread may call it."""

    @property
    def is_open(self) -> bool:
        """Whether it takes records. Once it does not, it never does again."""

    def ensure_open(self) -> None:
        """Raise an error if it takes no more records."""
