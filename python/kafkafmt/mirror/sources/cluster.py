"""A cluster as a source: a raw consumer in a group, so that several mirrors share the partitions.

A mirror into a folder that does not follow takes all partitions: a lock of each log excludes other writers. Into a
cluster only the group keeps two mirrors from sending the same batches. So the mirror joins the group also if it does
not follow. It ends when all partitions, also those of other members, have reached the end that they had at the start.

The consumer calls its rebalance listener in its own thread, while the mirror's thread waits in `poll`. The listener
therefore needs no lock. It must not call the consumer, except to commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import kafka.errors as kafka_errors
import structlog
from kafka import TopicPartition as KafkaTopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata

from kafkafmt.client.errors import CorruptFetchedBatchError
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import (
    NOTHING_DELETED,
    TOPICS_AWAITED,
    Membership,
    PartitionError,
    Reached,
    Source,
    SourceRun,
    SourceTopic,
)
from kafkafmt.mirror.refusals import Right, naming_refusals
from kafkafmt.mirror.sources.goals import Goals
from kafkafmt.mirror.sources.log_epochs import LogEpochs
from kafkafmt.records.runs import joined_runs
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from _kafkafmt.batches.scan import BatchRun

_log = structlog.get_logger()

# A commit that takes longer may be of a topic that was deleted.
_FIRST_COMMIT_SECONDS = 2
_ASK_SECONDS = 30.0
# A group's leader that has just started may not know the partitions yet, and assign none. An empty assignment is
# therefore not trusted for this time.
_EMPTY_SECONDS = 5.0
# Another mirror gets the partitions of a killed one after this time. kafka-python's default of 45 s is for consumers
# that may pause.
_SESSION_TIMEOUT_MS = 10_000
# How long other members may make no progress. It is longer than a killed mirror stays a member.
_PATIENCE_SECONDS = 60.0
_DELETED = "the topic was deleted at the source while it was mirrored"
_RECREATED = "the topic was deleted and created again at the source while it was mirrored"
# A topic that is missing for this time counts as deleted.
_MISSING_SECONDS = 5.0
_LOOK_SECONDS = 1.0
# If no position has moved for this time, a partition may wait for an end that its log has lost.
_STILL_SECONDS = 10.0
# New topics and partitions are found within this time.
_FETCHES_AHEAD = 2
_METADATA_MAX_AGE_MS = 10_000

# Drains revoked partitions, and returns the offsets that may be committed.
OnRevoked = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


class ClusterSource(Source):
    """Batches of a cluster, read by a RawConsumer.

    group: the consumer group that shares the partitions and keeps the offsets.

    Raises MirrorError if a named topic does not exist, or a pattern matches no topic, unless the mirror follows.
    """

    def __init__(
        self, cluster: MirrorCluster, address: ClusterAddress, options: MirrorOptions, group: str | None
    ) -> None:
        self._cluster, self._address, self._options = cluster, address, options
        self.name = cluster.id
        self._assigned: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._moved_at = time.monotonic()  # the position of any partition
        self._topic_ids: dict[str, UUID] = {}
        self._begun_ids: dict[TopicPartition, UUID | None] = {}
        self._ids_asked_at = time.monotonic()
        self._unknown_ids: set[str] = set()
        self._missing: dict[str, float] = {}
        self._believed_at = float("inf")
        self._is_handing_out = False
        self._handed_out_bytes = 0
        self.on_revoke: OnRevoked = lambda _: {}
        self._is_closing = False
        missing = address.missing(cluster.topic_names())
        if missing is not None and not options.is_following:
            raise MirrorError(f"{address}: {missing}")
        if missing is not None:
            _log.warning(TOPICS_AWAITED, source=str(address), missing=missing)
        fetch_bytes = options.memory.fetch_bytes
        defaults: dict[str, Any] = {
            "metadata_max_age_ms": _METADATA_MAX_AGE_MS,
            "session_timeout_ms": _SESSION_TIMEOUT_MS,
            "fetch_max_bytes": max(fetch_bytes // cluster.brokers, 1),  # each broker returns as much
            "max_partition_fetch_bytes": max(fetch_bytes // 4, 1),
            "max_poll_records": 10_000,
            "metrics_enabled": False,  # kafka-python's metrics are not used here, and take a fifth of the time
        }
        fixed: dict[str, Any] = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed" if options.is_committed else "read_uncommitted",
            "keep_control_batches": options.keeps_control_batches,
            # The consumer fetches ahead for every partition: the next responses, while the target takes the last ones.
            "budget": MemoryBudget(_FETCHES_AHEAD * fetch_bytes, "fetched"),
        }
        config = cluster.config_of(RawConsumer)
        self._consumer = RawConsumer(**{**defaults, **config, **fixed})
        self._epochs = LogEpochs(self._consumer, has_group=group is not None)
        self._group = group or ""
        given = config.get("session_timeout_ms")
        self.patience = _PATIENCE_SECONDS if given is None else 2 * given / 1000
        self._goals = Goals(cluster, address, options)
        self._ends.update(self._goals.ends)
        self._reached = dict(self._goals.starts)
        self._looked_at = float("-inf")
        self._begin_reading()

    def _begin_reading(self) -> None:
        """Join the group, or take all partitions."""
        if self._options.is_following or self._options.into_cluster:
            self._join_group()
        else:
            self._consumer.assign(list(map(_kafka, self._goals.ends)))
            self.assigned(self._goals.ends.keys())

    def _join_group(self) -> None:
        listener = _Listener(self)
        if self._address.pattern is None:
            self._consumer.subscribe(list(self._address.topics), listener=listener)
            # So that the group assigns them only after it knows the partitions.
            for topic in self._address.topics:
                self._consumer.partitions_for_topic(topic)
        else:
            self._consumer.subscribe(pattern=self._address.pattern, listener=listener)

    def membership(self) -> Membership | None:
        found = self._consumer.group_metadata()
        return Membership(self._group, found.generation_id, found.member_id)

    def has_member(self, membership: Membership) -> bool:
        try:
            return membership.member in self._cluster.group_members(membership.group)
        except kafka_errors.KafkaError as error:
            _log.warning("the members of the group could not be read", error=str(error))
            return True

    def goals(self) -> Mapping[TopicPartition, int]:
        return self._goals.ends

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the group's committed offsets, or else the first offset. They are read again after some time."""
        if self._group and time.monotonic() - self._looked_at > _LOOK_SECONDS:
            try:
                for one, offset in self._cluster.group_offsets(self._group).items():
                    self._reached[one] = max(offset, self._reached.get(one, 0))
            except kafka_errors.KafkaError as error:
                _log.warning(
                    "the offsets of the group could not be read, and are requested again", error=str(error)
                )
            self._looked_at = time.monotonic()
        return {one: self._reached.get(one, 0) for one in topic_partitions}

    def topics(self) -> Mapping[str, SourceTopic]:
        names = {topic for topic, _ in self._assigned}
        ids = self._cluster.topic_ids(names)
        self._topic_ids.update({name: one for name, one in ids.items() if one is not None})
        counts = self._cluster.partition_counts(names)
        known = self._cluster.describe_topics(counts)
        return {
            name: SourceTopic(known[name])
            if name in known
            else SourceTopic(TopicConfig(count, NOTHING_DELETED), is_known=False)
            for name, count in counts.items()
        }

    def selected_topics(self) -> set[str]:
        return set(filter(self._address.matches, self._cluster.topic_names()))

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        found = self._topic_ids.get(topic_partition.topic)
        self._begun_ids[topic_partition] = found
        self._consumer.pin_topic_id(topic_partition.topic, found)
        return found

    def lost_topics(self) -> dict[TopicPartition, str]:
        now = time.monotonic()
        unknown = self._consumer.take_unknown_topics() | self._unknown_ids
        if not unknown and not self._missing and now - self._ids_asked_at < _METADATA_MAX_AGE_MS / 1000:
            return {}
        self._ids_asked_at = now
        ids = self._ask_ids({topic for topic, _ in self._assigned})
        self._unknown_ids = unknown if ids is None else set()
        deleted = set() if self._options.is_following else self._deleted_topics()
        lost = {one: _DELETED for one in self._assigned if one.topic in deleted}
        # Partitions without a position were not begun, and begin with the new topic.
        lost |= {one: _RECREATED for one in self._positions if self._is_recreated(one, ids or {})}
        return lost

    def _deleted_topics(self) -> set[str]:
        """Return topics that were missing for some time. A broker that has just started may not know all topics."""
        try:
            missing = {topic for topic, _ in self._assigned}.difference(self._cluster.topic_names())
        except kafka_errors.KafkaError as error:
            _log.warning("the names of topics could not be read, and are requested again", error=str(error))
            return set()
        now = time.monotonic()
        self._missing = {topic: self._missing.get(topic, now) for topic in missing}
        return {topic for topic, since in self._missing.items() if now - since >= _MISSING_SECONDS}

    def _ask_ids(self, topics: Iterable[str]) -> dict[str, UUID | None] | None:
        try:
            return self._cluster.topic_ids(topics)
        except kafka_errors.KafkaError as error:
            _log.warning("the ids of topics could not be read, and are requested again", error=str(error))
            return None

    def _is_recreated(self, topic_partition: TopicPartition, ids: Mapping[str, UUID | None]) -> bool:
        """Return whether the topic has another id in `ids` than when the partition was begun."""
        known, found = self._begun_ids.get(topic_partition), ids.get(topic_partition.topic)
        return None not in (known, found) and known != found

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        try:
            with naming_refusals(
                self._address, "reading records", Right("Read", "topic"), Right("Read", "group", self._group)
            ):
                polled = self._consumer.poll_runs(timeout * 1000)
        except CorruptFetchedBatchError as error:
            yield SourceDamage(error.topic_partition, error.offset, error.next_offset, str(error))
            return
        except kafka_errors.RetriableError as error:
            _log.warning("the source could not be read, and is read again", error=str(error))
            return
        self._discard_unproven(polled)
        self._is_handing_out = True
        self._handed_out_bytes = sum(int(run.index["size"].sum()) for runs in polled.values() for run in runs)
        for kafka_partition, runs in polled.items():
            topic_partition = TopicPartition(*kafka_partition)
            for run in joined_runs(runs):
                if self._epochs.is_rewound(topic_partition, run, self._positions[topic_partition]):
                    self.pause([topic_partition])
                    break
                yield from self._goals.before_cut(topic_partition, run, self._positions[topic_partition])
                self._epochs.add(topic_partition, run)
                self._set_position(topic_partition, int(run.index["last_offset"][-1]) + 1)
            if self._is_over(topic_partition):
                self.pause([topic_partition])
        self._is_handing_out = False
        self._handed_out_bytes = 0

    def take_rewound(self) -> set[TopicPartition]:
        return self._epochs.take_rewound()

    def kept_ends(
        self, reached: Mapping[TopicPartition, Reached]
    ) -> Mapping[TopicPartition, int | PartitionError]:
        kept = self._epochs.kept_ends(reached)
        if not self._options.is_following:
            lost = [one for one in kept if self._epochs.has_lost(one)]
            for one, (_, end) in self.bounds(lost).items() if lost else ():
                self._lower_goal(one, end, reached[one].offset)
        return kept

    def lower_goals(self, topic_partitions: Iterable[TopicPartition]) -> None:
        now = time.monotonic()
        if now - self._moved_at < _STILL_SECONDS:
            return
        self._moved_at = now
        try:
            for one in topic_partitions:
                self._lower_goal(one, self._cluster.end_offset(one), self._positions[one])
        except kafka_errors.KafkaError as error:
            _log.warning("the end of a partition could not be read, and is requested again", error=str(error))

    def _lower_goal(self, topic_partition: TopicPartition, end: int, reached: int) -> None:
        self._goals.lower(topic_partition, end, reached)
        self._ends[topic_partition] = min(end, self._ends[topic_partition])

    def _set_position(self, topic_partition: TopicPartition, position: int) -> None:
        self._positions[topic_partition] = self._goals.bounded(topic_partition, position)
        self._moved_at = time.monotonic()

    def _discard_unproven(self, polled: dict[KafkaTopicPartition, list[BatchRun]]) -> None:
        """Drop batches that were fetched by name, if the topic of that name does not have the expected id any more.

        The ids are requested after the fetch: a topic that still has its id had it during the fetch, too.
        """
        unproven = self._consumer.take_fetched_by_name()
        if not unproven:
            return
        ids = self._ask_ids(unproven)
        for kafka_partition in [one for one in polled if one.topic in unproven]:
            topic_partition = TopicPartition(*kafka_partition)
            if ids is None or ids.get(topic_partition.topic) != self._begun_ids.get(topic_partition):
                del polled[kafka_partition]
                self._consumer.seek(kafka_partition, self._positions[topic_partition])
                self._unknown_ids.add(topic_partition.topic)

    def gone(self) -> Iterator[OffsetsGone]:
        for kafka_partition, from_offset, to_offset in self._consumer.take_offset_resets():
            topic_partition = TopicPartition(*kafka_partition)
            if from_offset is None:
                from_offset = self._positions.get(topic_partition)
            if from_offset is not None and from_offset < to_offset:
                yield OffsetsGone(topic_partition, from_offset, to_offset)

    @property
    def fetched_bytes(self) -> int:
        return self._consumer.fetched_bytes + self._handed_out_bytes

    def position(self, topic_partition: TopicPartition) -> int:
        return self._positions[topic_partition]

    def refresh_positions(self) -> None:
        if self._is_handing_out:  # the consumer's position is already after runs that are not taken yet
            return
        for topic_partition, known in list(self._positions.items()):
            if self._epochs.must_begin(topic_partition):
                continue
            with suppress(kafka_errors.KafkaError):
                position = self._consumer.position(_kafka(topic_partition), timeout_ms=0)
                # A position that goes back is reported when a batch from there arrives.
                if position is not None and position > known:
                    epoch = self._consumer.position_epoch(_kafka(topic_partition))
                    self._epochs.move(topic_partition, position, epoch)
                    self._set_position(topic_partition, position)

    def partitions(self) -> Sequence[TopicPartition] | None:
        if not self._assigned and time.monotonic() < self._believed_at:
            return None
        return sorted(self._assigned)

    def committed(self, topic_partition: TopicPartition) -> int | None:
        found: int | None = self._consumer.committed(_kafka(topic_partition), timeout_ms=_ASK_SECONDS * 1000)
        return found

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        asked = list(map(_kafka, topic_partitions))
        try:
            starts = self._consumer.beginning_offsets(asked)
            ends = self._consumer.end_offsets(asked)
        except KeyError as error:  # kafka-python's answer if only some partitions have a leader
            raise kafka_errors.LeaderNotAvailableError(str(error)) from None
        for topic_partition in asked:
            self._ends.setdefault(TopicPartition(*topic_partition), ends[topic_partition])
        return {TopicPartition(*one): (starts[one], ends[one]) for one in asked}

    def find_timestamp(self, topic_partition: TopicPartition, timestamp_ms: int) -> int | None:
        return self._cluster.offsets_at([topic_partition], timestamp_ms)[topic_partition]

    def log_end(self, topic_partition: TopicPartition) -> int:
        return self._cluster.end_offset(topic_partition)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(_kafka(topic_partition), offset)
        self._positions[topic_partition] = offset
        self._moved_at = time.monotonic()
        self._epochs.begin(topic_partition, offset)

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._consumer.pause(*map(_kafka, self._assigned.intersection(topic_partitions)))

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        wanted = self._assigned.intersection(topic_partitions)
        self._consumer.resume(*(_kafka(one) for one in wanted if not self._is_over(one)))

    def lag(self, topic_partition: TopicPartition, offset: int) -> int | None:
        end = self._consumer.highwater(_kafka(topic_partition))
        if end is None:
            end = self._ends.get(topic_partition)
        return None if end is None else max(end - offset, 0)

    def is_at_end(self, topic_partition: TopicPartition) -> bool:
        return self._positions[topic_partition] >= self._ends.get(topic_partition, 0)

    def _is_over(self, topic_partition: TopicPartition) -> bool:
        """Return whether a mirror that does not follow has reached the end of the partition."""
        return (
            not self._options.is_following
            and topic_partition in self._positions
            and self.is_at_end(topic_partition)
        )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            self._commit(offsets)
        except kafka_errors.KafkaError as error:
            _log.warning("offsets could not be committed, and are committed the next time", error=str(error))

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets, but those of deleted topics.

        kafka-python repeats the commit of a deleted topic until its timeout, so that is short at first.
        """
        try:
            self._consumer.commit(self._commits(offsets), timeout_ms=_FIRST_COMMIT_SECONDS * 1000)
        except kafka_errors.KafkaTimeoutError:
            there = {*self._cluster.topic_names()}
            if deleted := sorted({one.topic for one in offsets} - there):
                _log.warning("offsets of deleted topics are not committed", topics=deleted)
            if left := {one: offset for one, offset in offsets.items() if one.topic in there}:
                self._consumer.commit(self._commits(left), timeout_ms=_ASK_SECONDS * 1000)

    def _commits(self, offsets: Mapping[TopicPartition, int]) -> dict[KafkaTopicPartition, OffsetAndMetadata]:
        """Return offsets with their leader epochs, with which the next run finds out whether the log was truncated."""
        return {
            _kafka(one): OffsetAndMetadata(offset, "", self._epochs.epoch_at(one, offset))
            for one, offset in offsets.items()
        }

    def close(self) -> None:
        self._is_closing = True
        self.on_revoke = lambda _: {}
        self._consumer.close(autocommit=False)

    # Called by the rebalance listener

    def assigned(self, topic_partitions: AbstractSet[TopicPartition]) -> None:
        self._believed_at = time.monotonic() + _EMPTY_SECONDS
        self._assigned |= topic_partitions
        self.pause(topic_partitions)

    async def revoked(self, topic_partitions: AbstractSet[TopicPartition], *, is_lost: bool) -> None:
        began = time.monotonic()
        commits = self._commits(self.on_revoke(sorted(topic_partitions)))
        self._assigned -= topic_partitions
        for topic_partition in topic_partitions:
            self._positions.pop(topic_partition, None)
            self._epochs.revoke(topic_partition)
            if topic_partition not in self._goals.ends:
                self._ends.pop(topic_partition, None)
        if commits and not is_lost:
            try:
                await self._consumer.commit_async(commits)
            except kafka_errors.KafkaError as error:
                _log.warning("offsets of revoked partitions could not be committed", error=str(error))
        if topic_partitions and not self._is_closing:
            seconds = round(time.monotonic() - began, 3)
            _log.info("partitions were revoked", partitions=len(topic_partitions), seconds=seconds)


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, source: ClusterSource) -> None:
        self._source = source

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._source.assigned({TopicPartition(*one) for one in assigned})

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        await self._source.revoked({TopicPartition(*one) for one in revoked}, is_lost=False)

    async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        await self._source.revoked({TopicPartition(*one) for one in lost}, is_lost=True)


def _kafka(topic_partition: TopicPartition) -> KafkaTopicPartition:
    return KafkaTopicPartition(*topic_partition)
