"""The bound of a batch, or of one record of a compressed batch, in memory. A job sets it by its memory plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition


class BatchBound(Protocol):
    """Admits what is larger than `usual_bytes`, or refuses it.

    most_bytes: what is larger is refused.
    """

    usual_bytes: int
    most_bytes: int

    def admit(self, topic_partition: TopicPartition, run: BatchRun, number: int, size: int) -> None:
        """Count `size` bytes of batch `number` of a run before they are held. Raises MemoryPlanError to refuse them."""
