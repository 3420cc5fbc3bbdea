"""What passes batches to the producer of a cluster as target, and what was passed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.accumulator import RecordsFuture
    from kafkafmt.log.topic_configs import TopicConfig
    from kafkafmt.mirror.statistics import Moved, Way
    from kafkafmt.types import TopicPartition


@dataclass(frozen=True)
class Sent:
    """Batches or records that were passed to a producer.

    first_offset: the first offset of the source's batch in which it begins.
    next_offset: the source's offset after it.
    futures: the producer's futures, which have the target's offsets.
    moved: the batches, records and bytes; see `Moved`.
    way: how the batches were moved.
    sources, counts: ranges of records, each within one batch, in the order of the futures' offsets. sources has the
        source's first offset of each; None if records go to other partitions.
    max_timestamp: of the last batch, or the timestamp of the last record, in ms; -1 if it has none.
    """

    first_offset: int
    next_offset: int
    futures: list[RecordsFuture]
    moved: Moved
    way: Way
    sources: NDArray[np.int64] | None
    counts: NDArray[np.int64]
    max_timestamp: int

    @property
    def is_done(self) -> bool:
        """Whether all batches were acknowledged or have failed."""
        return all(future.is_done for future in self.futures)

    @property
    def error(self) -> Exception | None:
        """The first error of batches that are done; None if all were acknowledged."""
        outcomes = (future.outcome(0) for future in self.futures)
        return next((error for outcome in outcomes for error in outcome.exceptions.values()), None)


class Sender(Protocol):
    """Passes batches, or their records, to its own producer."""

    @property
    def keeps_partitions(self) -> bool:
        """Whether records keep their partition. If not, the target's offsets cannot be mapped."""

    def configure_topic(self, topic: str, config: TopicConfig) -> None:
        """Set the configuration of a topic at the target, defaults included, and its number of partitions."""

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        """Send the batches of a run. Yields what was sent, in order."""

    def close(self, timeout: float) -> None:
        """Close the producer. timeout: seconds to wait for batches in flight."""
