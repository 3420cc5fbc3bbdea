"""What a source and a target are to the loop between them, and what they tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from uuid import UUID

    from _kafkafmt.scan import BatchRun
    from kafkafmt.log.reading import SourceDamage
    from kafkafmt.log.topic_configs import TopicConfig
    from kafkafmt.mirror.statistics import Statistics
    from kafkafmt.types import TopicPartition


class SourceRun(NamedTuple):
    """Batches of a partition that are wanted, in order; valid until the source is asked for more."""

    topic_partition: TopicPartition
    run: BatchRun


@dataclass(frozen=True)
class SourceTopic:
    """A topic of the source. is_known: whether `config` is its configuration, or one that loses nothing."""

    config: TopicConfig
    is_known: bool = True


@dataclass(frozen=True)
class Stopped:
    """A partition that is mirrored no further, from which offset on, and why."""

    topic_partition: TopicPartition
    offset: int
    message: str


@dataclass(frozen=True)
class Unreached:
    """A partition that a mirror which does not follow has not brought to the end that it had at the start."""

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int


@dataclass(frozen=True)
class OffsetsGone:
    """Offsets that the source deleted before they were read, `to_offset` not included."""

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int


class PartitionError(Exception):
    """Why a partition can be mirrored no further; the others can.

    offset: the first that was not moved; None for the first of what was to be moved.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class Source(Protocol):
    """Where batches come from. A position is the source's offset behind all that was handed out or left out.

    A partition that becomes this mirror's is held until it is let go on.
    """

    @property
    def name(self) -> str:
        """What tells the source from others: a cluster's id, a folder's path."""

    def topics(self) -> Mapping[str, SourceTopic]:
        """The topics that are mirrored, for the target to have them: asked for as they become known."""

    def gone(self) -> Iterable[OffsetsGone]:
        """Yield each range of offsets that was deleted between a position and the batches after it, once.

        Gaps that compaction leaves are not among them.
        """

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the id of the topic that the partition is of; None where the source keeps none."""

    def recreated(self) -> Iterable[TopicPartition]:
        """Look for partitions whose topic was deleted and created again since `topic_id` was asked."""

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        """What is there within so many seconds; partitions that are not held alone."""

    @property
    def fetched_bytes(self) -> int:
        """What it holds: read or fetched, and not handed out for good."""

    def position(self, topic_partition: TopicPartition) -> int:
        """Of a partition that was sought in."""

    def learn_positions(self) -> None:
        """Have `position` tell of what was left out, too."""

    def partitions(self) -> Sequence[TopicPartition] | None:
        """Those that are this mirror's now; None where that is not known yet."""

    def goals(self) -> Mapping[TopicPartition, int]:
        """Return where each partition of the topics ended at the start; empty for a mirror that follows."""

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return how far other mirrors of the group have come in partitions that are not this mirror's."""

    @property
    def patience(self) -> float:
        """How many seconds other mirrors may take to come further, or to leave the group."""

    def committed(self, topic_partition: TopicPartition) -> int | None:
        """The position that was committed last; None where none was, or where sources keep none."""

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """The first offset of each, and the one behind the last that is handed out now."""

    def log_end(self, topic_partition: TopicPartition) -> int:
        """The offset behind the last one, transactions that are open included."""

    def seek(self, topic_partition: TopicPartition, offset: int) -> None: ...

    def hold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until they are let go on."""

    def go_on(self, topic_partitions: Iterable[TopicPartition]) -> None: ...

    def lag(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """How many offsets the partition's end is ahead of this one, as far as is known."""

    def is_at_end(self, topic_partition: TopicPartition) -> bool:
        """Whether all of a partition is handed out that was there when the mirror began."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Keep these positions for the next time."""

    def close(self) -> None: ...


class Target(Protocol):
    """Where batches go. What was taken of a partition is on hand in the order in which it came."""

    def prepare(self, topics: Mapping[str, SourceTopic]) -> None:
        """Create the topics that are missing, with so many partitions and that configuration."""

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """Compare the id of the source's topic with the one that was mirrored here before.

        Raises PartitionError if it is another topic's, unless such topics are to be restarted.
        """

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Where the source is to go on, if the target knows it."""

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """The partition goes on at a position of the source."""

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        """Take batches over. Raises PartitionError, KafkaFormatError or OSError where that cannot be."""

    def advance(self) -> Iterator[Stopped]:
        """Look for what has arrived; what has failed is told once."""

    def held_bytes(self, topic_partition: TopicPartition | None = None) -> int:
        """What is under way, of one partition or of all."""

    def pending(self, topic_partition: TopicPartition) -> int | None:
        """The first offset of the source that is under way; None where nothing is."""

    def settle(self, timeout: float) -> None:
        """Wait until nothing is under way, but of partitions that have failed."""

    def make_durable(self) -> None:
        """See to it that what has arrived is there for good, before its offsets are committed."""

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """These are another mirror's from now on."""

    @property
    def statistics(self) -> Statistics: ...

    def close(self) -> None: ...


def stretches(run: BatchRun) -> Iterator[tuple[int, int]]:
    """First and stop of the batches of a run that stand end to end, without gaps between them."""
    rows = run.index
    ends = rows["position"] + rows["size"]
    edges = [0, *((rows["position"][1:] != ends[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
    yield from pairwise(edges)


def record_count(run: BatchRun) -> int:
    """Records, as headers tell them, without markers: a v0/v1 wrapper counts as one."""
    return int(np.abs(run.index["count"][~run.index["is_control"]]).sum())
