"""A cluster as a target: batches are sent in order by partition, and added to the offset map once they have arrived.

Before the first record of a partition is sent, the map gets an anchor: the source's position, and the end of the
target. When a mirror is restarted, the target may have records after that, which the map does not know. These are sent
again, may then be at the target twice, and are counted.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import kafka.errors as kafka_errors
import numpy as np
import structlog

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.clusters import ConfigRefusedError
from kafkafmt.mirror.offset_map import OffsetMap, PartitionMap
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START, PartitionError, SourceTopic, Target
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.mirror.statistics import Statistics, Stopped
from kafkafmt.mirror.targets.sender import Sender, Sent
from kafkafmt.mirror.targets.target_topics import TargetTopics
from kafkafmt.mirror.targets.topic_messages import lagging_message, recreated_message, warn_of_unknown
from kafkafmt.mirror.targets.unknown_records import UnknownRecords

if TYPE_CHECKING:
    from uuid import UUID

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_CLOSE_SECONDS = 0.05
# Properties that are not copied to the target's topic, as in MirrorMaker 2: they belong to the cluster. LogAppendTime
# would also replace the records' timestamps.
_NOT_COPIED = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.timestamp.difference.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)


@dataclass
class _Partition:
    """What is under way of a partition, which may have failed.

    held_bytes: of the batches under way.
    state: `lost` once the target has lost records of it, and `left` once it is forgotten after that. It then begins
        again.
    """

    under_way: deque[Sent] = field(default_factory=deque)
    held_bytes: int = 0
    state: Literal["begun", "failed", "lost", "left"] = "begun"


class ClusterTarget(Target):
    """Sends batches with `sender`, and adds them to the offset map once they are acknowledged."""

    def __init__(
        self,
        cluster: TargetTopics,
        offsets: OffsetMap,
        sender: Sender,
        statistics: Statistics,
        options: MirrorOptions,
    ) -> None:
        self._cluster, self._offsets, self._sender = cluster, offsets, sender
        self._settings, self._names = options.topic_settings, options.names
        self._syncs_topics = options.syncs_topics
        self._configured: dict[str, TopicConfig] = {}
        self._refused_changes: dict[str, dict[str, str | None]] = {}  # of topics, as a warning has named them
        self._restarts_recreated = options.restarts_recreated
        self._restarted: set[TopicPartition] = set()
        self.statistics = statistics
        self._partitions: defaultdict[TopicPartition, _Partition] = defaultdict(_Partition)
        self._held_by_all = 0  # without partitions that have failed
        self._topics: dict[str, SourceTopic] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._unknown_records = UnknownRecords(
            cluster,
            offsets,
            self._topics,
            self._records_after,
            keeps_partitions=sender.keeps_partitions,
            appends=options.appends,
        )

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        self._unknown_records.forget_recreated()
        new = {name: topic for name, topic in topics.items() if again or self._topics.get(name) != topic}
        if not new:
            return
        there = self._cluster.partition_counts(new)
        synced = {name: count for name, count in there.items() if self._syncs_topics and new[name].is_known}
        found = self._cluster.describe_topics(synced)
        has_changed = False
        for name, topic in new.items():
            partitions = topic.config.partitions or 1
            configs = {key: value for key, value in topic.config.configs.items() if key not in _NOT_COPIED}
            wanted = TopicConfig(partitions, self._settings.applied(self._names.target(name), configs))
            if name not in there:
                self._cluster.create_topic(name, wanted)
                has_changed = True
                continue
            if there[name] < partitions:
                self._cluster.add_partitions(name, partitions)
                has_changed = True
            if name in found:
                self._sync_config(name, found[name].configs, wanted.configs)
        warn_of_unknown(name for name, topic in new.items() if name not in there and not topic.is_known)
        counts = self._cluster.partition_counts(new) if has_changed else there
        ids = self._cluster.topic_ids(new)
        for name, topic in new.items():  # each request may have another broker
            expected, count = topic.config.partitions or 1, counts.get(name, 0) if name in ids else 0
            if count < expected:
                raise UnansweredError(lagging_message(self._names.target(name), expected, count))
        described = self._cluster.describe_topics(counts, own=False)
        for name, count in counts.items():
            config = described.get(name, TopicConfig(count))
            if self._configured.get(name) != config:
                self._sender.configure_topic(name, config)
                self._configured[name] = config
        self._topic_ids.update({name: one for name, one in ids.items() if one is not None})
        self._topics.update(new)  # last: after an error all of this is repeated

    def _sync_config(self, name: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """Set the properties of a topic that differ, and reset those that the source's topic does not have."""
        changes: dict[str, str | None] = {
            key: value for key, value in wanted.items() if found.get(key) != value
        }
        changes |= dict.fromkeys(key for key in found if key not in wanted and key not in _NOT_COPIED)
        refused = self._refused_changes.pop(name, None)
        self.statistics.unsynced_topics.pop(name, None)
        if changes:
            try:
                self._cluster.alter_topic(name, changes)
            except (ConfigRefusedError, RefusedError) as error:
                log = _log.debug if refused == changes else _log.warning
                log("the configuration of a topic was not synced", error=str(error))
                self._refused_changes[name] = changes
                self.statistics.unsynced_topics[name] = str(error)

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        if topic_id is None:
            return
        known = self._offsets.partition(topic_partition)
        if known.topic_id not in (None, str(topic_id)):
            end = self._cluster.end_offset(topic_partition)
            if end and not self._restarts_recreated:
                raise PartitionError(recreated_message(known.topic_id, topic_id))
            _log.warning(
                "a topic was created again at the source, and is mirrored from its start",
                partition=str(topic_partition),
                topic_id=str(topic_id),
                earlier_topic_id=known.topic_id,
                next_offset=end,
            )
            known.clear()
            self._restarted.add(topic_partition)
        known.identify(str(topic_id))

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        self._unknown_records.forget(topic_partition)  # of an attempt that did not succeed
        known = self._offsets.partition(topic_partition)
        target_id = self._topic_ids.get(topic_partition.topic)
        if target_id is not None and known.target_topic_id not in (None, str(target_id)):
            self._leave_recreated(topic_partition, known, target_id)
        end = self._cluster.end_offset(topic_partition)
        if known.target_end is not None and end < known.target_end:
            _log.warning(
                "records are gone at the target, and are mirrored again",
                partition=str(topic_partition),
                from_offset=end,
                records=known.target_end - end,
            )
            known.truncate(end)
        if topic_partition in self._restarted and known.end is None:
            return FROM_START
        return known.end

    def _leave_recreated(self, topic_partition: TopicPartition, known: PartitionMap, target_id: UUID) -> None:
        """Mirror a partition again from its start, because its topic was deleted at the target and created again.

        Raises PartitionError if the new topic has records, unless records may be appended to them.
        """
        if self._partitions[topic_partition].state != "left":  # else this mirror may have sent the records
            self._unknown_records.look_in_recreated(topic_partition, known.target_topic_id, target_id)
        _warn_of_recreated(topic_partition, known, target_id)
        if self._sender.keeps_partitions:
            known.truncate(0)
        else:  # the map does not have the offset at which the mirror began
            known.clear()
            self._restarted.add(topic_partition)

    def rewind(self, topic_partition: TopicPartition, position: int) -> bool:
        known = self._offsets.partition(topic_partition)
        is_closed, end = known.is_closed, known.target_end or 0
        known.rewind(position)
        known.anchor(position, end)
        if is_closed:
            known.close()
        return True

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        known = self._offsets.partition(topic_partition)
        if topic_partition not in self._restarted:
            self._unknown_records.look(topic_partition)
        if (target_id := self._topic_ids.get(topic_partition.topic)) is not None:
            known.identify_target(str(target_id))
        if self._sender.keeps_partitions:
            self._begin_after_records(topic_partition, known, position)
        else:
            known.begin_at(position)
        self._restarted.discard(topic_partition)
        self._partitions[topic_partition].state = "begun"

    def _begin_after_records(
        self, topic_partition: TopicPartition, known: PartitionMap, position: int
    ) -> None:
        expected = known.look_up(position)
        end = self._cluster.end_offset(topic_partition)
        if expected is not None and (records := self._records_after(topic_partition, expected, end)):
            self._count_doubled(topic_partition, records, from_offset=expected)
        known.rewind(position)
        known.anchor(position, end)

    def _records_after(self, topic_partition: TopicPartition, first: int, end: int) -> int:
        """Return how many records a partition of the target may have at the offsets from `first` to `end`."""
        return max(end - first, 0)

    def take_unknown_records(self) -> Mapping[TopicPartition, tuple[int, int]]:
        return self._unknown_records.take()

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        partition = self._partitions[topic_partition]
        try:
            for sent in self._sender.send(topic_partition, run):
                partition.under_way.append(sent)
                self._count_held(partition, sent.moved.bytes)
        except kafka_errors.KafkaError as error:
            raise PartitionError(f"{type(error).__name__}: {error}") from None

    def advance(self) -> Iterator[Stopped]:
        for topic_partition, partition in self._partitions.items():
            under_way = partition.under_way
            while partition.state == "begun" and under_way and under_way[0].is_done:
                error = self._acknowledged(topic_partition, under_way[0])
                if error is not None:
                    yield from self._fail(topic_partition, under_way[0], error)
                    break
                if partition.state == "begun":
                    self._count_held(partition, -under_way.popleft().moved.bytes)

    def _fail(self, topic_partition: TopicPartition, sent: Sent, error: Exception) -> Iterator[Stopped]:
        """Handle batches that could not be sent. Yield the partition if it is stopped."""
        partition = self._partitions[topic_partition]
        self._held_by_all -= partition.held_bytes
        partition.state = "failed"
        yield Stopped(topic_partition, sent.first_offset, failure_message(error))

    def _meet_lost(self, topic_partition: TopicPartition, first: int) -> None:
        """Let a partition begin again, because the target has lost its records from this offset of the target on."""
        known = self._offsets.partition(topic_partition)
        if self._identify_recreated(topic_partition, known):
            first = 0
        _log.warning(
            "the target has lost records while they were mirrored, and they are mirrored again: its topic was created "
            "again, or its log was truncated",
            partition=str(topic_partition),
            from_offset=first,
            to_offset=known.target_end,
        )
        self._offsets.truncate(topic_partition, first)
        self._partitions[topic_partition].state = "lost"
        self._topics.pop(topic_partition.topic, None)  # `prepare` then reads the id of the topic again
        self._save_lost()

    def _save_lost(self) -> None:
        """Save the map without the lost records now: a mirror that is killed continues where the map says."""
        try:
            self.make_durable()
        except kafka_errors.RetriableError as error:
            _log.warning("the offset map could not be saved, and is saved later", error=str(error))

    def _identify_recreated(self, topic_partition: TopicPartition, known: PartitionMap) -> bool:
        """Keep the id of the target's topic in the map, if it was created again: it has records of this mirror.

        So the next start continues, if this mirror ends before the partition begins again.
        """
        try:
            found = self._cluster.topic_ids([topic_partition.topic]).get(topic_partition.topic)
        except kafka_errors.KafkaError as error:
            _log.debug("the id of a topic could not be read", topic=topic_partition.topic, error=str(error))
            return False
        if found is None or known.target_topic_id in (None, str(found)):
            return False
        _warn_of_recreated(topic_partition, known, found)
        known.identify_target(str(found))
        return True

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        return {one for one in topic_partitions if self._partitions[one].state == "lost"}

    def held_bytes(self, topic_partition: TopicPartition | None = None) -> int:
        if topic_partition is not None:
            return self._partitions[topic_partition].held_bytes
        return self._held_by_all

    def pending(self, topic_partition: TopicPartition) -> int | None:
        partition = self._partitions[topic_partition]
        if partition.state == "lost":
            return self._offsets.partition(topic_partition).end
        return partition.under_way[0].first_offset if partition.under_way else None

    def drain(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        waiting = [
            sent for one in self._partitions.values() if one.state != "failed" for sent in one.under_way
        ]
        for future in (future for sent in waiting for future in sent.futures):
            try:
                future.outcome(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                return

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            partition = self._partitions[topic_partition]
            if not partition.under_way and partition.state != "lost":
                self._offsets.partition(topic_partition).close()

    def make_durable(self) -> None:
        self._offsets.save()
        self._offsets.confirm()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._offsets.forget(topic_partitions)
        for topic_partition in topic_partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is None:
                continue
            # They may arrive after the partition was begun, here or by another mirror, which sends them again. What
            # has arrived in a partition that has lost records is counted when that is begun.
            is_lost = partition.state == "lost"
            late = sum(
                int(sent.counts.sum()) for sent in partition.under_way if not (is_lost and sent.is_done)
            )
            if partition.state != "failed":
                self._held_by_all -= partition.held_bytes
                if late:
                    self._count_doubled(topic_partition, late)
            if partition.state in ("lost", "left"):
                self._partitions[topic_partition].state = "left"

    def close(self) -> None:
        self._sender.close(0 if self._has_under_way() else _CLOSE_SECONDS)

    def _has_under_way(self) -> bool:
        return any(one.under_way for one in self._partitions.values())

    def _count_held(self, partition: _Partition, change: int) -> None:
        partition.held_bytes += change
        if partition.state != "failed":
            self._held_by_all += change

    def _count_doubled(self, topic_partition: TopicPartition, records: int, **where: int) -> None:
        self.statistics.possibly_doubled += records
        _log.warning("records may be there twice", partition=str(topic_partition), records=records, **where)

    def _acknowledged(self, topic_partition: TopicPartition, sent: Sent) -> Exception | None:
        """Add acknowledged records to the offset map. Return the first error instead, if there is one."""
        if (error := sent.error) is not None:
            return error
        known = self._offsets.partition(topic_partition)
        if sent.sources is None:
            known.begin_at(sent.next_offset)
        else:
            targets = np.concatenate([future.outcome(0).offsets for future in sent.futures])
            firsts = targets[np.cumsum(sent.counts) - sent.counts]
            if (lost := known.add(sent.sources, firsts, sent.counts)) is not None:
                self._meet_lost(topic_partition, lost)
                return None
        self._count(topic_partition, sent)
        return None

    def _count(self, topic_partition: TopicPartition, sent: Sent) -> None:
        self.statistics.count(topic_partition, sent.moved, sent.way, sent.max_timestamp)


def _warn_of_recreated(topic_partition: TopicPartition, known: PartitionMap, target_id: UUID) -> None:
    _log.warning(
        "a topic was created again at the target, and is mirrored again from its start",
        partition=str(topic_partition),
        topic_id=str(target_id),
        earlier_topic_id=known.target_topic_id,
    )


def failure_message(error: Exception) -> str:
    """Return why a partition is stopped whose batches could not be sent."""
    return f"sending to the target failed: {type(error).__name__}: {error}"
