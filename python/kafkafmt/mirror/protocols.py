"""The protocols of a source and a target, and the values that they exchange with the loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from uuid import UUID

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.gaps import OffsetsGone, SourceDamage
    from kafkafmt.log.topic_configs import TopicConfig
    from kafkafmt.mirror.statistics import Statistics, Stopped
    from kafkafmt.types import TopicPartition

# Returned by `Target.resume_offset`: begin at the source's first offset, whatever the options say.
FROM_START = -1

# The configuration of a topic if its own is not known: a target with it deletes no record.
NOTHING_DELETED = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}

# Logged by a source that follows, if a name or a pattern matches no topic.
TOPICS_AWAITED = "selected topics do not exist yet, and are waited for"


class SourceRun(NamedTuple):
    """Batches of a partition to be mirrored, in order. They are valid until the source yields the next value.

    position: the source's position before them.
    """

    topic_partition: TopicPartition
    run: BatchRun
    position: int


class Membership(NamedTuple):
    """A member of a consumer group at the source, and the generation of the group in which it has its partitions."""

    group: str
    generation: int
    member: str


class EpochAt(NamedTuple):
    """The leader epoch of the last record before an offset of the source."""

    offset: int
    leader_epoch: int


class Reached(NamedTuple):
    """The source's offset that a target has reached.

    last: of the last batch at the target; None if the target does not know it.
    """

    offset: int
    last: EpochAt | None


@dataclass(frozen=True)
class SourceTopic:
    """A topic of the source.

    is_known: whether `config` is its real configuration; else it is one with which nothing is deleted.
    """

    config: TopicConfig
    is_known: bool = True


class PartitionError(Exception):
    """A partition cannot be mirrored further. The other partitions continue.

    offset: the first that was not mirrored; None for the first of the run that was to be mirrored.
    """

    def __init__(self, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.offset = offset


class Source(Protocol):
    """Where batches come from.

    A position is the source's offset after all batches that were yielded or left out. A partition that is assigned to
    this mirror is paused until it is resumed. Methods with a body here are those of a source without groups.

    name: identifies the source: a cluster's id, or a folder's path.
    patience: how many seconds other members of the group may make no progress before they are given up.
    """

    name: str
    patience: float = 0.0

    def topics(self) -> Mapping[str, SourceTopic]:
        """Return the topics of the known partitions, for the target to create."""

    def selected_topics(self) -> Collection[str]:
        """Return the names of all topics that the mirror takes now, also those of other mirrors of the group."""

    def gone(self) -> Iterable[OffsetsGone]:
        """Yield each range of offsets that was deleted between a position and the batches after it, once.

        Gaps that compaction leaves are not among them.
        """

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the id of the partition's topic; None if the source keeps none."""

    def lost_topics(self) -> Mapping[TopicPartition, str]:
        """Return the partitions of topics that were deleted, or created again, since `topic_id` was called, and why.

        They are to be stopped. If the mirror follows, a deleted topic is waited for, and not returned.
        """
        return {}

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        """Yield what is available within `timeout` seconds, of partitions that are not paused."""

    @property
    def fetched_bytes(self) -> int:
        """The bytes that were read or fetched, and that the target has not taken yet."""

    def position(self, topic_partition: TopicPartition) -> int:
        """Return the position of a partition, after `seek`."""

    def refresh_positions(self) -> None:
        """Move positions past batches that were left out."""
        return

    def partitions(self) -> Sequence[TopicPartition] | None:
        """Return the partitions assigned to this mirror; None if that is not known yet."""

    def membership(self) -> Membership | None:
        """Return this mirror's membership of its group; None without a group."""
        return None

    def has_member(self, membership: Membership) -> bool:
        """Return whether the group still has this member. A group that cannot be asked may have it."""
        return False

    def goals(self) -> Mapping[TopicPartition, int]:
        """Return the end offsets of all partitions when the mirror started; empty for a mirror that follows."""

    def lower_goals(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Let partitions that do not reach their goal end where their log ends now, if it has lost its end.

        Called while nothing arrives. The source looks only after some time.
        """
        return

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets that other mirrors of the group have reached in these partitions."""

    def committed(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset that was committed last; None if there is none, or the source keeps none."""
        return None

    def kept_ends(
        self, reached: Mapping[TopicPartition, Reached]
    ) -> Mapping[TopicPartition, int | PartitionError]:
        """Return for each partition the offset, or the first one before it at which the source's log has changed.

        An unclean leader election may choose a leader that lacks records. The log then gets other records at their
        offsets. The value is a PartitionError if the log was truncated below the offset, and it is not known where.
        The next calls return the same until `seek`.
        """
        return {one: offset for one, (offset, _) in reached.items()}

    def take_rewound(self) -> set[TopicPartition]:
        """Return the partitions whose log was truncated below their position since the last call.

        They are paused, and must begin again.
        """
        return set()

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return for each partition its first offset, and the offset after the last one that can be read now."""

    def find_timestamp(self, topic_partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with a timestamp or a later one; None without any."""

    def log_end(self, topic_partition: TopicPartition) -> int:
        """Return the offset after the last record, open transactions included."""

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue the partition at this offset."""

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Return no batches of these partitions until they are resumed."""

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Return batches of these partitions again."""

    def lag(self, topic_partition: TopicPartition, offset: int) -> int | None:
        """Return how many offsets the partition's end is after `offset`; None if that is not known."""

    def is_at_end(self, topic_partition: TopicPartition) -> bool:
        """Return whether all batches that the partition had when the mirror began were yielded."""

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Save these positions for the next run, unless the target has them."""
        return

    def close(self) -> None:
        """Close files and connections."""


class Target(Protocol):
    """Where batches go. The batches of a partition arrive in the order in which they were taken.

    Methods with a body here are those of a target that writes batches at once, and needs no saved positions.
    """

    statistics: Statistics

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        """Create the topics that are missing, and add partitions that are missing.

        If topics are kept in sync, set their configuration, too. again: also of topics that are as in the last call.
        """

    def acquire(self, topic_partitions: Sequence[TopicPartition]) -> Sequence[TopicPartition]:
        """Exclude other mirrors from partitions that are about to begin. Return those that are this mirror's.

        The others are tried again after some time, while they are assigned to this mirror.
        """
        return topic_partitions

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Return those of the begun partitions that must begin again, where the target has them.

        Batches that were not durable were dropped, or the target has lost batches. The caller forgets the partitions.
        """
        return ()

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """Compare the id of the source's topic with the one that was mirrored here before, and keep it.

        Raises PartitionError if the ids differ, unless such topics are to be mirrored from their start.
        """

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the source's offset to continue at, or `FROM_START`; None if the partition was never mirrored."""

    def last_epoch(self, topic_partition: TopicPartition) -> EpochAt | None:
        """Return the leader epoch of the last batch, and the offset after it; None if that is not known."""
        return None

    def rewind(self, topic_partition: TopicPartition, position: int) -> bool:
        """Let the source's records from this offset on follow other ones. Return False if they cannot."""
        return False

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """Prepare the target for batches from this position of the source on. Raises PartitionError."""

    def take_unknown_records(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Return first and end offset of records at the target that the offset map does not know, by partition.

        Contains the partitions that were begun, or refused, since the last call.
        """
        return {}

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        """Write or send batches. Raises PartitionError, KafkaFormatError or OSError if that fails."""

    def advance(self) -> Iterator[Stopped]:
        """Process acknowledgements. Yield each partition that has failed, once."""
        return iter(())

    def held_bytes(self, topic_partition: TopicPartition | None = None) -> int:
        """Return the bytes under way, of one partition or of all."""
        return 0

    def pending(self, topic_partition: TopicPartition) -> int | None:
        """Return the first offset of the source that is under way; None if nothing is."""
        return None

    def not_durable(self, topic_partition: TopicPartition) -> int | None:
        """Return the first offset of the source that only `finish` makes durable; None if there is none."""
        return None

    def drain(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until nothing is under way, except for partitions that have failed."""
        return

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Note that no more batches of these partitions follow. Called before their last `make_durable`."""
        return

    def make_durable(self) -> None:
        """Make all batches that have arrived durable. Called before their offsets are committed."""

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Save the source's positions, after `make_durable`, if the target's batches do not imply them."""
        return

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        """Complete a commit. Called after `keep_positions`, also if no position has changed.

        is_last: the mirror ends after it. has_failed: it ends because of an error.
        """
        return

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another mirror takes over."""

    def close(self) -> None:
        """Close files and connections."""


def contiguous_ranges(run: BatchRun) -> Iterator[tuple[int, int]]:
    """Yield first and stop of each range of adjacent batches in a run."""
    rows = run.index
    ends = rows["position"] + rows["size"]
    edges = [0, *((rows["position"][1:] != ends[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
    yield from pairwise(edges)


def adjacent_batches(run: BatchRun) -> Iterator[memoryview]:
    """Yield the bytes of each range of adjacent batches of a run."""
    starts = run.index["position"] - run.origin
    ends, view = starts + run.index["size"], memoryview(run.buffer)
    for first, stop in contiguous_ranges(run):
        yield view[starts[first] : ends[stop - 1]]


def record_count(run: BatchRun) -> int:
    """Return the number of records by the headers, without markers. A v0 or v1 wrapper counts as one record."""
    return int(np.abs(run.index["count"][~run.index["is_control"]]).sum())
