"""A cluster as a target: sent in order, each partition's for itself, and known by the offset map once it has arrived.

Before the first record of a partition goes out the map has an anchor: where the source goes on, and where the target
ended then. What the target has beyond that and the map does not know of, when a mirror begins again, may be there
twice once it is sent again; it is counted.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import kafka.errors as kafka_errors
import numpy as np
import structlog

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.clusters import Cluster
from kafkafmt.mirror.moving import PartitionError, SourceTopic, Stopped
from kafkafmt.mirror.offset_map import OffsetMap
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.recreated_topics import recreated_message
from kafkafmt.mirror.targets.unknown_topics import warn_of_unknown

if TYPE_CHECKING:
    from uuid import UUID

    from numpy.typing import NDArray

    from _kafkafmt.scan import BatchRun
    from kafkafmt.accumulator import RecordsFuture
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_SETTLE_SECONDS = 0.05
# What a topic at the target is not given of the source's configuration, as MirrorMaker 2 has it: it belongs to the
# cluster. Of LogAppendTime records would get other timestamps than they have.
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


@dataclass(frozen=True)
class Sent:
    """What has been handed to a producer, and where it came from.

    first_offset: that of the source's batch that it begins in. next_offset: the source's offset behind it. sources,
    counts: stretches of records, each of one batch at most, in the order of the futures' offsets; sources is None where
    records go to other partitions.
    """

    first_offset: int
    next_offset: int
    futures: list[RecordsFuture]
    batches: int
    size_bytes: int
    sources: NDArray[np.int64] | None
    counts: NDArray[np.int64]

    @property
    def is_done(self) -> bool:
        return all(future.is_done for future in self.futures)


class Sender(Protocol):
    """Hands batches, or their records, to a producer of its own."""

    @property
    def keeps_partitions(self) -> bool:
        """Whether the records of a partition stay together; else no offset at the target stands for one of theirs."""

    def learn(self, topic: str, config: TopicConfig) -> None:
        """What holds for a topic at the target, defaults included, and how many partitions it has."""

    def send(self, topic_partition: TopicPartition, run: BatchRun) -> Iterator[Sent]: ...

    def close(self, timeout: float) -> None: ...


class ClusterTarget:
    """Sends what it takes, with `sender`, and follows what has arrived."""

    def __init__(
        self,
        cluster: Cluster,
        offsets: OffsetMap,
        sender: Sender,
        statistics: Statistics,
        options: MirrorOptions,
    ) -> None:
        self._cluster, self._offsets, self._sender = cluster, offsets, sender
        self._settings = options.topic_settings
        self._restarts_recreated, self._appends = options.restarts_recreated, options.appends
        self._restarted: set[TopicPartition] = set()
        self._known_topics: dict[str, bool] = {}
        self.statistics = statistics
        self._under_way: defaultdict[TopicPartition, deque[Sent]] = defaultdict(deque)
        self._held: defaultdict[TopicPartition, int] = defaultdict(int)
        self._held_by_all = 0  # but of those that have failed
        self._failed: set[TopicPartition] = set()
        self._topics: dict[str, SourceTopic] = {}

    def prepare(self, topics: Mapping[str, SourceTopic]) -> None:
        new = {name: topic for name, topic in topics.items() if self._topics.get(name) != topic}
        if not new:
            return
        there = self._cluster.describe_topics(new)
        for name, topic in new.items():
            wanted = topic.config.partitions or 1
            if name not in there:
                configs = {
                    key: value for key, value in topic.config.configs.items() if key not in _NOT_COPIED
                }
                self._cluster.create_topic(name, TopicConfig(wanted, self._settings.applied(name, configs)))
            elif (there[name].partitions or 0) < wanted:
                self._cluster.grow_topic(name, wanted)
        warn_of_unknown(name for name, topic in new.items() if name not in there and not topic.is_known)
        for name, config in self._cluster.describe_topics(new, own=False).items():
            self._sender.learn(name, config)
        self._topics.update(new)

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
                behind_offset=end,
            )
            known.clear()
            self._restarted.add(topic_partition)
        known.identify(str(topic_id))

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        known = self._offsets.partition(topic_partition)
        end = self._cluster.end_offset(topic_partition)
        if end is not None and known.target_end is not None and end < known.target_end:
            _log.warning(
                "records are gone at the target, and are mirrored again",
                partition=str(topic_partition),
                from_offset=end,
                records=known.target_end - end,
            )
            known.truncate(end)
        return known.end

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        known = self._offsets.partition(topic_partition)
        if not self._appends and topic_partition not in self._restarted:
            self._ensure_vouched_for(topic_partition)
        if not self._sender.keeps_partitions:
            known.begin_at(position)
            return
        expected = known.look_up(position)
        end = self._cluster.end_offset(topic_partition) or 0
        if expected is not None and end > expected:
            self._count_doubled(topic_partition, end - expected, from_offset=expected)
        known.rewind(position)
        known.anchor(position, end)

    def _ensure_vouched_for(self, topic_partition: TopicPartition) -> None:
        """Raise PartitionError for records at the target if the offset map has no entry of this source about them.

        They may be the source's own, as where a backup was restored: sent again they would be there twice.
        """
        topic = topic_partition.topic
        if self._sender.keeps_partitions:
            if len(self._offsets.partition(topic_partition)):
                return
            others = [topic_partition]
        else:  # of any partition of the topic the records may be anywhere in it
            config = self._topics[topic].config
            others = [topic_partition._replace(partition=number) for number in range(config.partitions or 1)]
            if topic not in self._known_topics:
                self._known_topics[topic] = any(len(self._offsets.partition(one)) for one in others)
            if self._known_topics[topic]:
                return
        for one, (start, end) in self._cluster.bounds(others).items():
            if end > start:
                raise PartitionError(
                    f"{one} has offsets {start} to {end - 1} at the target, and the offset map has no entry of this "
                    "source about them: expected an empty partition, or --append"
                )

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        under_way = self._under_way[topic_partition]
        try:
            for sent in self._sender.send(topic_partition, run):
                under_way.append(sent)
                self._hold(topic_partition, sent.size_bytes)
        except kafka_errors.KafkaError as error:
            raise PartitionError(f"{type(error).__name__}: {error}") from None

    def advance(self) -> Iterator[Stopped]:
        for topic_partition, under_way in self._under_way.items():
            if topic_partition in self._failed:
                continue
            while under_way and under_way[0].is_done:
                error = self._arrived(topic_partition, under_way[0])
                if error is not None:
                    self._held_by_all -= self._held[topic_partition]
                    self._failed.add(topic_partition)
                    message = f"the target does not take it: {type(error).__name__}: {error}"
                    yield Stopped(topic_partition, under_way[0].first_offset, message)
                    break
                self._hold(topic_partition, -under_way.popleft().size_bytes)

    def held_bytes(self, topic_partition: TopicPartition | None = None) -> int:
        if topic_partition is not None:
            return self._held[topic_partition]
        return self._held_by_all

    def pending(self, topic_partition: TopicPartition) -> int | None:
        under_way = self._under_way[topic_partition]
        return under_way[0].first_offset if under_way else None

    def settle(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        waiting = [
            sent
            for one, under_way in self._under_way.items()
            if one not in self._failed
            for sent in under_way
        ]
        for future in (future for sent in waiting for future in sent.futures):
            try:
                future.outcome(max(deadline - time.monotonic(), 0))
            except TimeoutError:
                return

    def make_durable(self) -> None:
        self._offsets.save()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._offsets.forget(topic_partitions)
        for topic_partition in topic_partitions:
            under_way = self._under_way.pop(topic_partition, ())
            # What comes after another mirror has begun.
            late = 0 if topic_partition in self._failed else sum(int(sent.counts.sum()) for sent in under_way)
            if late:
                self._count_doubled(topic_partition, late)
            held = self._held.pop(topic_partition, 0)
            self._held_by_all -= 0 if topic_partition in self._failed else held
            self._failed.discard(topic_partition)

    def close(self) -> None:
        is_idle = not any(self._under_way.values())
        self._sender.close(_SETTLE_SECONDS if is_idle else 0)

    def _hold(self, topic_partition: TopicPartition, change: int) -> None:
        self._held[topic_partition] += change
        if topic_partition not in self._failed:
            self._held_by_all += change

    def _count_doubled(self, topic_partition: TopicPartition, records: int, **where: int) -> None:
        self.statistics.possibly_doubled += records
        _log.warning("records may be there twice", partition=str(topic_partition), records=records, **where)

    def _arrived(self, topic_partition: TopicPartition, sent: Sent) -> Exception | None:
        """Take in what a broker has answered; the first error, where there is one."""
        outcomes = [future.outcome(0) for future in sent.futures]
        for outcome in outcomes:
            for error in outcome.exceptions.values():
                return error
        known = self._offsets.partition(topic_partition)
        if sent.sources is None:
            known.begin_at(sent.next_offset)
        else:
            targets = np.concatenate([outcome.offsets for outcome in outcomes])
            firsts = targets[np.cumsum(sent.counts) - sent.counts]
            known.add(sent.sources, firsts, sent.counts)
        self.statistics.moved[topic_partition].add(sent.batches, int(sent.counts.sum()), sent.size_bytes)
        return None
