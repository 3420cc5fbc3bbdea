"""What replay and table read from: `PartitionReaders` for logs, `LiveReaders` for the partitions of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.gaps import SourceDamage

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.streams import PartitionGroup
    from kafkafmt.types import TopicPartition

_Handed = TypeVar("_Handed")


class Readers(Protocol):
    """Read several partitions, each from an offset of its own, run by run. Not safe to use from several threads.

    A run is valid until the next call of `ready` or `read`.
    """

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions that can be read, sorted."""

    @property
    def owned(self) -> list[TopicPartition]:
        """The partitions that belong to this reader now: all, unless it shares them with a consumer group."""

    @property
    def is_over(self) -> bool:
        """Whether nothing follows once `ready` has returned no partition."""

    def ready(self, wanted: Sequence[TopicPartition], *, waits: bool = True) -> Sequence[TopicPartition]:
        """Return the partitions whose `read` returns at once. Partitions that are not wanted are paused.

        wanted: the partitions with room for a run. waits: wait for some time until one of them is ready.
        """

    def is_ready(self, topic_partition: TopicPartition) -> bool:
        """Return whether `read` of the partition returns at once, after it was read already for example."""

    def read(self, topic_partition: TopicPartition) -> BatchRun | None:
        """Return the next batches of a partition that is ready; None if there are none, at its end for example.

        Raises CorruptRecordError for damage, unless it is skipped, and OSError.
        """

    def seek(self, topic_partition: TopicPartition, offset: int | None) -> int:
        """Continue at an offset; None is the start of the log. Returns the offset, which is not below the start.

        The next read begins with the batch that contains it.
        """

    def offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset at which the next read begins."""

    def end_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the current end of the log, or the end up to which it is read; None if it was deleted."""

    def rest(self, topic_partition: TopicPartition) -> None:
        """Release what reading holds of the partition; `seek` or the next read takes it again."""

    def meet(self, damage: SourceDamage) -> None:
        """Report damage. Raises CorruptRecordError if damage is not skipped."""

    def stop(self) -> None:
        """Let `ready` return no partition from now on, if it may wait. A signal handler or any thread may call this."""

    def leave(self) -> None:
        """End the reading after the last record: commit the positions of a group, and leave it."""


def take_sound(group: PartitionGroup, readers: Readers, take: Callable[[], _Handed]) -> _Handed:
    """Return the result of `take`, which takes the next records of `group`; skip damage that `readers` skip.

    Raises CorruptRecordError if damage is not skipped.
    """
    while True:
        try:
            return take()
        except KafkaFormatError as error:
            damaged = group.failed
            assert damaged is not None
            offset = group.offset(damaged)
            readers.meet(SourceDamage(damaged, offset, group.skip(damaged), str(error)))
