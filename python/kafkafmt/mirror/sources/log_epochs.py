"""Find out whether a source cluster still has the records that were mirrored, by leader epochs (KIP-320).

After an unclean leader election a log lacks records that consumers have read, and gets other ones at their offsets. The
mirror knows the leader epoch of the last record that it has mirrored: of the last batch in a folder, or of the offset
that it has committed. The leader says where the records of that epoch end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.log.checkpoints import LeaderEpoch
from kafkafmt.mirror.leader_epochs import begun_epochs
from kafkafmt.mirror.protocols import EpochAt, PartitionError, Reached
from kafkafmt.records.runs import first_offset
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.raw_consumer import RawConsumer

_UNKNOWN = -1
_COMMITTED_MS = 30_000


class LogEpochs:
    """The leader epochs of the batches that a consumer has returned, and the comparison with the source's logs.

    has_group: whether the consumer's group has the epochs of earlier runs.
    """

    def __init__(self, consumer: RawConsumer, *, has_group: bool) -> None:
        self._consumer, self._has_group = consumer, has_group
        self._seen: dict[TopicPartition, _SeenEpochs] = {}
        # What `kept_ends` has found. Until the partition begins, `_seen` shows the loss.
        self._kept: dict[TopicPartition, _Kept] = {}
        # Of logs that were truncated below the position, until the partition begins.
        self._continues_at: dict[TopicPartition, _Continued] = {}
        self._rewound: set[TopicPartition] = set()

    def begin(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note where a partition is read from. The epoch before it is known if `kept_ends` has returned this offset."""
        self._continues_at.pop(topic_partition, None)
        kept = self._kept.pop(topic_partition, None)
        seen = self._seen.get(topic_partition)
        if kept is not None and kept.end.offset == offset:
            self._seen[topic_partition] = _SeenEpochs(kept.end)
        elif seen is None or seen.end.offset != offset:
            self._seen[topic_partition] = _SeenEpochs(EpochAt(offset, _UNKNOWN))

    def add(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        """Note the batches of a run at the position or after it."""
        self._seen[topic_partition].add(run)

    def move(self, topic_partition: TopicPartition, position: int, leader_epoch: int) -> None:
        """Note a position after batches that were left out, and the epoch of the record before it."""
        self._seen[topic_partition].end = EpochAt(position, leader_epoch)

    def epoch_at(self, topic_partition: TopicPartition, offset: int) -> int:
        """Return the epoch of the batch at an offset, or of the one before the position; -1 if it is not known."""
        seen = self._seen.get(topic_partition)
        return _UNKNOWN if seen is None else seen.epoch_at(offset)

    def is_rewound(self, topic_partition: TopicPartition, run: BatchRun, position: int) -> bool:
        """Return whether a run begins before the position: its log was truncated, and the consumer has gone back.

        The consumer trims a batch that the position lies in, unless compaction has removed all of its records.
        """
        first, begin = run.index[0], first_offset(run)
        if first["last_offset"] >= position and (not first["count"] or begin >= position):
            return False
        self._continues_at[topic_partition] = _Continued(position, begin)
        self._rewound.add(topic_partition)
        return True

    def take_rewound(self) -> set[TopicPartition]:
        """Return the partitions that are rewound since the last call."""
        taken, self._rewound = self._rewound, set()
        return taken

    def must_begin(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is rewound and has not begun since then: what is read of it is not mirrored."""
        return topic_partition in self._continues_at

    def kept_ends(
        self, reached: Mapping[TopicPartition, Reached]
    ) -> dict[TopicPartition, int | PartitionError]:
        """See `Source.kept_ends`."""
        known = self._known_epochs(reached)
        asked = {KafkaTopicPartition(*one): at.leader_epoch for one, at in known.items()}
        ends = self._consumer.epoch_ends(asked) if asked else {}
        return {
            one: self._kept_end(one, offset, known.get(one), ends.get(KafkaTopicPartition(*one)))
            for one, (offset, _) in reached.items()
        }

    def _kept_end(
        self, topic_partition: TopicPartition, offset: int, known: EpochAt | None, end: tuple[int, int] | None
    ) -> int | PartitionError:
        """Compare a known epoch with its end at the leader."""
        kept = EpochAt(offset, _UNKNOWN)
        is_truncated = known is not None and end is not None and end[1] < known.offset
        if end is not None and (end[1] == offset or (is_truncated and end[1] < offset)):
            kept = EpochAt(end[1], end[0])
        elif known is not None and end is not None and known.offset == offset and not is_truncated:
            kept = known
        position, continues_at = self._continues_at.get(topic_partition, _Continued(offset, offset))
        # Another mirror has moved the partition on if the offset is after the position.
        if (
            continues_at < offset <= position
            and not is_truncated
            and not self._is_passed(topic_partition, known, end)
        ):
            return PartitionError(
                f"the log was truncated before offset {offset}, and continues with offset {continues_at}"
            )
        self._kept[topic_partition] = _Kept(kept, is_truncated)
        return kept.offset

    def _is_passed(
        self, topic_partition: TopicPartition, known: EpochAt | None, end: tuple[int, int] | None
    ) -> bool:
        """Return whether another mirror has begun a rewound partition: it has committed a later epoch of the log."""
        if known is None or end is None:
            return False
        return 0 <= self._seen[topic_partition].end.leader_epoch < known.leader_epoch

    def has_lost(self, topic_partition: TopicPartition) -> bool:
        """Return whether the log lacks records that were mirrored or read here, by the last call of `kept_ends`."""
        return self._kept[topic_partition].is_truncated if topic_partition in self._kept else False

    def _known_epochs(self, reached: Mapping[TopicPartition, Reached]) -> dict[TopicPartition, EpochAt]:
        """Return the epochs of the last batches at the target, or else before offsets that were reached here.

        These are the last offset that this run has reached, and the one that the group has committed. The broker that
        coordinates the group may be gone when the leader is, so the commit may be older. It is later, at a lower
        offset, if another mirror has rewound the partition meanwhile.
        """
        unknown = [one for one, (_, last) in reached.items() if last is None]
        committed = self._committed_epochs(unknown)
        known = {one: last for one, (_, last) in reached.items() if last is not None}
        for one in unknown:
            seen = self._seen.get(one)
            found = [committed.get(one), None if seen is None else seen.end]
            if ends := [end for end in found if end is not None and end.leader_epoch >= 0]:
                known[one] = max(ends, key=lambda end: (end.leader_epoch, end.offset))
        return known

    def _committed_epochs(
        self, topic_partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EpochAt]:
        if not self._has_group or not topic_partitions:
            return {}
        asked = [KafkaTopicPartition(*one) for one in topic_partitions]
        committed = self._consumer.committed_offsets(asked, timeout_ms=_COMMITTED_MS)
        return {
            TopicPartition(*one): EpochAt(found.offset, found.leader_epoch)
            for one, found in committed.items()
            if found.leader_epoch is not None
        }

    def revoke(self, topic_partition: TopicPartition) -> None:
        """Note that another mirror may take the partition over.

        If it comes back, it is still known what was read, and that the log was truncated.
        """
        self._kept.pop(topic_partition, None)
        self._rewound.discard(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition whose topic is another one."""
        self.revoke(topic_partition)
        self._continues_at.pop(topic_partition, None)
        self._seen.pop(topic_partition, None)


class _Continued(NamedTuple):
    """A position, and the offset before it with which the log continued there, because it was truncated."""

    position: int
    continues_at: int


class _Kept(NamedTuple):
    """Where a log is still what it was, and whether it lacks records after that."""

    end: EpochAt
    is_truncated: bool


class _SeenEpochs:
    """The leader epochs of a partition from the position on at which it was begun.

    end: the position, and the leader epoch of the record before it; -1 if that is not known.
    """

    def __init__(self, end: EpochAt) -> None:
        self.end = end
        self._epochs: list[LeaderEpoch] = []

    def add(self, run: BatchRun) -> None:
        """Note the batches of a run, which begin at the position or later."""
        known = self._epochs[-1].epoch if self._epochs else _UNKNOWN
        self._epochs += begun_epochs(run, 0, len(run), known)
        last = run.index[-1]
        self.end = EpochAt(int(last["last_offset"]) + 1, int(last["partition_leader_epoch"]))

    def epoch_at(self, offset: int) -> int:
        """Return the epoch of the batch at an offset, or of the one before the position; -1 if it is not known."""
        if offset >= self.end.offset:
            return self.end.leader_epoch if offset == self.end.offset else _UNKNOWN
        return next((one.epoch for one in reversed(self._epochs) if one.start_offset <= offset), _UNKNOWN)
