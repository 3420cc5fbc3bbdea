"""A cluster as a source: a raw consumer in a group, so that several mirrors share the partitions.

A mirror that does not follow, into a folder, needs no share: it takes all partitions, and a lock of each log keeps
other writers out. Into a cluster nothing else keeps two mirrors from sending the same batches. There it joins the
group, and ends when all partitions, its own and those of other members, are where they ended at the start.

The consumer calls its rebalance listener in a thread of its own, while the mirror's is within `poll`: what the mirror
does then needs no lock, and must not call the consumer but to commit.
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

from kafkafmt.log.reading import SourceDamage, first_offset
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.clusters import Cluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.moving import OffsetsGone, SourceRun, SourceTopic
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.net.errors import CorruptRecordError
from kafkafmt.net.raw_consumer import RawConsumer
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_log = structlog.get_logger()

_ASK_SECONDS = 30.0
# A group's leader that has just started may know of no partitions yet, and shares out none: for so long that is not
# believed.
_EMPTY_SECONDS = 5.0
# A mirror that was killed is given up so soon, and its partitions are another's. kafka-python's 45 s are for consumers
# that may pause.
_SESSION_TIMEOUT_MS = 10_000
# How long others of the group may stand still: longer than any mirror that was killed stays a member.
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 1.0
# Topics and partitions that are new are found that fast.
_METADATA_MAX_AGE_MS = 10_000

# Gives up partitions: finishes what is under way, and returns what may be committed.
OnRevoked = Callable[[Sequence[TopicPartition]], Mapping[TopicPartition, int]]


class ClusterSource:
    """Raises MirrorError where no broker answers, or a topic that is named is not there."""

    def __init__(self, cluster: Cluster, address: ClusterAddress, options: MirrorOptions, group: str) -> None:
        self._cluster, self._address, self._options = cluster, address, options
        self.name = cluster.id
        self._assigned: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._begun_ids: dict[TopicPartition, UUID | None] = {}
        self._ids_asked_at = time.monotonic()
        self._believed_at = float("inf")
        self._is_handing_out = False
        self._handed_out_bytes = 0
        self.on_revoked: OnRevoked = lambda _: {}
        self._is_closing = False
        if address.pattern is not None and not any(map(address.means, cluster.topic_names())):
            if not options.is_following:
                raise MirrorError(f"{address}: no topic is of those that are meant")
            _log.warning("no topic is of those that are meant", source=str(address))
        missing = [] if address.pattern is not None else sorted({*address.topics} - {*cluster.topic_names()})
        if missing and not options.is_following:
            raise MirrorError(f"{address}: no topic {', '.join(missing)}")
        fetch_bytes = options.memory.fetch_bytes
        defaults: dict[str, Any] = {
            "metadata_max_age_ms": _METADATA_MAX_AGE_MS,
            "session_timeout_ms": _SESSION_TIMEOUT_MS,
            "fetch_max_bytes": max(fetch_bytes // cluster.brokers, 1),  # each of them answers
            "max_partition_fetch_bytes": max(fetch_bytes // 4, 1),
            "max_poll_records": 10_000,
            "metrics_enabled": False,  # kafka-python's own, which nobody sees here, take a fifth of the time
        }
        fixed: dict[str, Any] = {
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed" if options.is_committed else "read_uncommitted",
            "keep_control_batches": options.keeps_control_batches,
        }
        config = cluster.config_of(RawConsumer)
        self._consumer = RawConsumer(**{**defaults, **config, **fixed})
        self._group = group
        given = config.get("session_timeout_ms")
        self.patience = _PATIENCE_SECONDS if given is None else 2 * given / 1000
        self._goals: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}
        self._looked_at = float("-inf")
        if not options.is_following:
            self._set_goals()
        if options.is_following or options.into_cluster:
            self._join_group()
        else:
            self._consumer.assign(list(map(_kafka, self._goals)))
            self.assigned(self._goals.keys())

    def _set_goals(self) -> None:
        """Have the mirror end where all partitions end now."""
        topics = filter(self._address.means, self._cluster.topic_names())
        # By the admin: the consumer would learn its topics one request at a time, and share out what it knows by then.
        partitions = self._cluster.partitions(topics)
        bounds = self._cluster.bounds(partitions, is_committed=self._options.is_committed)
        self._goals = {one: end for one, (_, end) in bounds.items()}
        self._reached = {one: start for one, (start, _) in bounds.items()}
        self._ends.update(self._goals)

    def _join_group(self) -> None:
        listener = _Listener(self)
        if self._address.pattern is None:
            self._consumer.subscribe(list(self._address.topics), listener=listener)
            for (
                topic
            ) in self._address.topics:  # lest the group shares them out before it knows their partitions
                self._consumer.partitions_for_topic(topic)
        else:
            self._consumer.subscribe(pattern=self._address.pattern, listener=listener)

    def goals(self) -> Mapping[TopicPartition, int]:
        return self._goals

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What the group has committed, asked for every so often; else where a partition begins."""
        if time.monotonic() - self._looked_at > _LOOK_SECONDS:
            try:
                for one, offset in self._cluster.group_offsets(self._group).items():
                    self._reached[one] = max(offset, self._reached.get(one, 0))
            except kafka_errors.KafkaError as error:
                _log.warning(
                    "the offsets of the group are not known, and are asked for again", error=str(error)
                )
            self._looked_at = time.monotonic()
        return {one: self._reached[one] for one in topic_partitions}

    def topics(self) -> Mapping[str, SourceTopic]:
        names = {topic for topic, _ in self._assigned}
        self._topic_ids.update(self._cluster.topic_ids(names))
        found = self._cluster.describe_topics(names)
        return {name: SourceTopic(config) for name, config in found.items()}

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        found = self._topic_ids.get(topic_partition.topic)
        self._begun_ids[topic_partition] = found
        return found

    def recreated(self) -> list[TopicPartition]:
        now = time.monotonic()
        if now - self._ids_asked_at < _METADATA_MAX_AGE_MS / 1000:
            return []
        self._ids_asked_at = now
        try:
            ids = self._cluster.topic_ids({topic for topic, _ in self._assigned})
        except kafka_errors.KafkaError as error:
            _log.warning("the ids of topics are not known, and are asked for again", error=str(error))
            return []
        begun = {one: self._begun_ids.get(one) for one in self._assigned if one.topic in ids}
        return [one for one, known in begun.items() if known not in (None, ids[one.topic])]

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        try:
            polled = self._consumer.poll_runs(timeout * 1000)
        except CorruptRecordError as error:
            yield SourceDamage(error.topic_partition, error.offset, error.next_offset, str(error))
            return
        except kafka_errors.RetriableError as error:
            _log.warning("the source could not be read, and is asked again", error=str(error))
            return
        self._is_handing_out = True
        self._handed_out_bytes = sum(int(run.index["size"].sum()) for runs in polled.values() for run in runs)
        for kafka_partition, runs in polled.items():
            topic_partition = TopicPartition(*kafka_partition)
            for run in runs:
                expected = self._positions[topic_partition]
                # If the log was cut off, the consumer begins anew at its start.
                if run.index["last_offset"][0] < expected:
                    self.hold([topic_partition])
                    found = first_offset(run)
                    message = f"the log was cut off in front of it, and goes on with offset {found}"
                    yield SourceDamage(topic_partition, expected, None, message)
                    break
                yield SourceRun(topic_partition, run)
                self._positions[topic_partition] = int(run.index["last_offset"][-1]) + 1
            if self._is_over(topic_partition):
                self.hold([topic_partition])
        self._is_handing_out = False
        self._handed_out_bytes = 0

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

    def learn_positions(self) -> None:
        if self._is_handing_out:  # the consumer is behind what was not taken any more
            return
        for topic_partition, known in self._positions.items():
            with suppress(kafka_errors.KafkaError):
                position = self._consumer.position(_kafka(topic_partition), timeout_ms=0)
                # One that goes back is told of when something comes from there.
                self._positions[topic_partition] = max(position or 0, known)

    def partitions(self) -> Sequence[TopicPartition] | None:
        if not self._assigned and time.monotonic() < self._believed_at:
            return None
        return sorted(self._assigned)

    def committed(self, topic_partition: TopicPartition) -> int | None:
        found: int | None = self._consumer.committed(_kafka(topic_partition), timeout_ms=_ASK_SECONDS * 1000)
        return found

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, tuple[int, int]]:
        asked = list(map(_kafka, topic_partitions))
        starts = self._consumer.beginning_offsets(asked)
        ends = self._consumer.end_offsets(asked)
        for topic_partition in asked:
            self._ends.setdefault(TopicPartition(*topic_partition), ends[topic_partition])
        return {TopicPartition(*one): (starts[one], ends[one]) for one in asked}

    def log_end(self, topic_partition: TopicPartition) -> int:
        return self._cluster.end_offset(topic_partition) or 0

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(_kafka(topic_partition), offset)
        self._positions[topic_partition] = offset

    def hold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._consumer.pause(*map(_kafka, self._assigned.intersection(topic_partitions)))

    def go_on(self, topic_partitions: Iterable[TopicPartition]) -> None:
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
        """Whether what is behind is nothing that a mirror which does not follow hands out."""
        return (
            not self._options.is_following
            and topic_partition in self._positions
            and self.is_at_end(topic_partition)
        )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        try:
            self._consumer.commit(_commits(offsets), timeout_ms=_ASK_SECONDS * 1000)
        except kafka_errors.KafkaError as error:
            _log.warning("offsets were not committed, and are the next time", error=str(error))

    def close(self) -> None:
        self._is_closing = True
        self.on_revoked = lambda _: {}
        self._consumer.close(autocommit=False)

    # Called by the consumer

    def assigned(self, topic_partitions: AbstractSet[TopicPartition]) -> None:
        self._believed_at = time.monotonic() + _EMPTY_SECONDS
        self._assigned |= topic_partitions
        self.hold(topic_partitions)

    async def revoked(self, topic_partitions: AbstractSet[TopicPartition], *, is_lost: bool) -> None:
        began = time.monotonic()
        offsets = self.on_revoked(sorted(topic_partitions))
        self._assigned -= topic_partitions
        for topic_partition in topic_partitions:
            self._positions.pop(topic_partition, None)
            if topic_partition not in self._goals:
                self._ends.pop(topic_partition, None)
        if offsets and not is_lost:
            try:
                await self._consumer.commit_async(_commits(offsets))
            except kafka_errors.KafkaError as error:
                _log.warning("offsets of partitions that are given up were not committed", error=str(error))
        if topic_partitions and not self._is_closing:
            seconds = round(time.monotonic() - began, 3)
            _log.info("partitions were given up", partitions=len(topic_partitions), seconds=seconds)


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


def _commits(offsets: Mapping[TopicPartition, int]) -> dict[KafkaTopicPartition, OffsetAndMetadata]:
    return {_kafka(one): OffsetAndMetadata(offset, "", -1) for one, offset in offsets.items()}
