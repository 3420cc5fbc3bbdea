"""Find out whether a source cluster still has the records that were mirrored, by leader epochs (KIP-320).

After an unclean leader election a log lacks records that consumers have read, and gets other ones at their offsets. The
mirror knows the leader epoch of the last record that it has mirrored: of the last batch in a folder, or of the offset
that it has committed. The leader says where the records of that epoch end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
import structlog
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.log.checkpoints import LeaderEpoch
from kafkafmt.mirror.leader_epochs import begun_epochs
from kafkafmt.mirror.protocols import EpochAt, PartitionError
from kafkafmt.records.runs import first_offset

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.client.raw_consumer import RawConsumer
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_UNKNOWN = -1
_COMMITTED_MS = 30_000


class LogEpochs:
    """The leader epochs of the batches that a consumer has returned, and the comparison with the source's logs.

    has_group: whether the consumer's group has the epochs of earlier runs.
    """

    def __init__(self, consumer: RawConsumer, *, has_group: bool) -> None:
        self._consumer, self._has_group = consumer, has_group
        self._seen: dict[TopicPartition, _SeenEpochs] = {}
        self._continues_at: dict[TopicPartition, int] = {}  # of logs that were truncated below the position
        self._rewound: set[TopicPartition] = set()

    def begin(self, topic_partition: TopicPartition, offset: int) -> None:
        """Note where a partition is read from. The epoch before it is known if `kept_end` has returned this offset."""
        seen = self._seen.get(topic_partition)
        if seen is None or seen.end.offset != offset:
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
        self._continues_at[topic_partition] = begin
        self._rewound.add(topic_partition)
        return True

    def take_rewound(self) -> set[TopicPartition]:
        """Return the partitions that are rewound since the last call."""
        taken, self._rewound = self._rewound, set()
        return taken

    def kept_end(self, topic_partition: TopicPartition, offset: int, last: EpochAt | None) -> int:
        """See `Source.kept_end`."""
        continues_at = self._continues_at.pop(topic_partition, None)
        known = last or self._known_epoch(topic_partition)
        end = None if known is None else self._epoch_end(topic_partition, known.leader_epoch)
        kept, epoch = offset, _UNKNOWN
        if known is not None and end is not None:
            if end[1] < min(known.offset, offset):
                epoch, kept = end
            elif known.offset == offset:
                epoch = known.leader_epoch
        elif continues_at is not None:
            raise PartitionError(
                f"the log was truncated before offset {offset}, and continues with offset {continues_at}"
            )
        self._seen[topic_partition] = _SeenEpochs(EpochAt(kept, epoch))
        return kept

    def _known_epoch(self, topic_partition: TopicPartition) -> EpochAt | None:
        """Return the epoch of the last offset that this run has reached or the group has committed; None without any.

        The broker that coordinates the group may be gone when the leader is, so the commit may be older.
        """
        seen = self._seen.get(topic_partition)
        known = [] if seen is None else [seen.end]
        if self._has_group:
            committed = self._consumer.committed(
                KafkaTopicPartition(*topic_partition), metadata=True, timeout_ms=_COMMITTED_MS
            )
            if committed is not None and committed.leader_epoch is not None:
                known.append(EpochAt(committed.offset, committed.leader_epoch))
        return max((one for one in known if one.leader_epoch >= 0), default=None)

    def _epoch_end(self, topic_partition: TopicPartition, leader_epoch: int) -> tuple[int, int] | None:
        """Return as `RawConsumer.epoch_end`; None also from a broker that refuses this request to consumers."""
        try:
            return self._consumer.epoch_end(KafkaTopicPartition(*topic_partition), leader_epoch)
        except kafka_errors.RetriableError:
            raise
        except kafka_errors.KafkaError as error:
            _log.debug("the end of a leader epoch could not be read", error=str(error))
            return None

    def revoke(self, topic_partition: TopicPartition) -> None:
        """Note that another mirror may take the partition over. What was read stays known, if it comes back."""
        self._continues_at.pop(topic_partition, None)
        self._rewound.discard(topic_partition)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition whose topic is another one."""
        self.revoke(topic_partition)
        self._seen.pop(topic_partition, None)


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
