"""Which partitions a consumer fetches, from which offsets, and from which brokers. Only the I/O thread uses it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from kafkafmt.client.broker_fetches import BrokerFetches
from kafkafmt.client.fetch_session import FetchPosition
from kafkafmt.client.fetch_targets import PartitionProgress, Target

if TYPE_CHECKING:
    from kafkafmt.client.broker_fetches import FetchAnswer, FetchSettings
    from kafkafmt.client.control_plane import ControlPlane
    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.types import TopicPartition

_NO_EPOCH = -1


class FetchPlan:
    """Puts each partition that may be fetched into the session of its leader, or of a follower that was preferred.

    brokers: by node id; the one that was asked longest ago comes first.
    pinned: the topics that are fetched by this id only.
    unanswered: partitions whose broker has not answered for their generation.
    on_change: called after a change, before the next `update_sessions`.
    """

    def __init__(
        self, io: IoThread, control: ControlPlane, settings: FetchSettings, on_change: Callable[[], None]
    ) -> None:
        self.brokers: dict[int, BrokerFetches] = {}
        self.pinned: dict[str, UUID] = {}
        self.unanswered: set[TopicPartition] = set()
        self._io = io
        self._control = control
        self._settings = settings
        self._max_partition_bytes = control.config["max_partition_fetch_bytes"]
        # A partition is fetched if it has fewer bytes than these in the queue: with 0, none would ever be.
        self._max_queued_bytes = max(self._max_partition_bytes, 1)
        self._backoff_s = control.config["retry_backoff_ms"] / 1000
        self._on_change = on_change
        self._partitions: dict[TopicPartition, PartitionProgress] = {}
        self._stops: dict[TopicPartition, int] = {}
        self._dirty: set[TopicPartition] = set()

    def set_targets(self, targets: dict[TopicPartition, Target]) -> None:
        """Fetch partitions from these targets on; those of a new generation from its offset."""
        for key, target in targets.items():
            partition = self._partitions.get(key)
            if partition is None or partition.target.generation != target.generation:
                if partition is not None:
                    self._withdraw(key, partition)
                not_before = time.monotonic() + target.delay_s if target.delay_s else 0.0
                partition = PartitionProgress(target, target.offset, target.leader_epoch, not_before)
                self._partitions[key] = partition
                self.unanswered.add(key)
                if target.delay_s:
                    self._io.call_later(target.delay_s, self.touch, key)
            partition.target = target
            self.touch(key)

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Fetch these partitions no more."""
        for key in partitions:
            partition = self._partitions.pop(key, None)
            self.unanswered.discard(key)
            if partition is not None:
                self._withdraw(key, partition)

    def take(self, key: TopicPartition, generation: int, size: int) -> None:
        """Count bytes as taken from the queue, unless they are of an earlier generation."""
        partition = self._partitions.get(key)
        if partition is not None and partition.target.generation == generation:
            partition.queued_bytes -= size
            if partition.node_id is None:
                self.touch(key)

    def pin(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by this id only; None to use the id of the metadata."""
        if topic_id is None:
            self.pinned.pop(topic, None)
        else:
            self.pinned[topic] = topic_id
        self.touch_all()

    def set_stops(self, offsets: dict[TopicPartition, int]) -> None:
        """Fetch no more of a partition once all before this offset was fetched."""
        self._stops.update(offsets)
        for key in offsets:
            self.touch(key)

    def touch_all(self) -> None:
        """Look at all partitions again: the metadata has changed."""
        self._dirty.update(self._partitions)
        for broker in self.brokers.values():
            broker.forget_ids()
        self._on_change()

    def touch(self, key: TopicPartition) -> None:
        """Look at a partition again: what is wanted of it, or where it is, may have changed."""
        self._dirty.add(key)
        self._on_change()

    def update_sessions(self, now: float) -> None:
        """Put each partition that has changed into the session of its broker, or take it out."""
        dirty, self._dirty = self._dirty, set()
        for key in dirty:
            partition = self._partitions.get(key)
            if partition is not None:
                self._place(key, partition, now)

    def _place(self, key: TopicPartition, partition: PartitionProgress, now: float) -> None:
        """Put a partition into the session of the broker that it is fetched from, if it is to be fetched now."""
        node_id = None
        is_wanted = not (
            partition.is_stopped
            or partition.target.is_paused
            or partition.queued_bytes >= self._max_queued_bytes
            or partition.offset >= self._stops.get(key, math.inf)
            or now < partition.not_before
        )
        if is_wanted:
            node_id = self._node_of(key, partition, now)
            if node_id is None:
                self._look_up(key, partition, now)
        if partition.node_id is not None and partition.node_id != node_id:
            self._withdraw(key, partition)
        if node_id is None:
            return
        broker = self.brokers.setdefault(node_id, BrokerFetches(self._settings))
        if partition.node_id is None:
            broker.forget_ids()
        partition.node_id = node_id
        if partition.end is None or partition.offset < partition.end:
            broker.behind.add(key)
        else:
            broker.behind.discard(key)
        epoch = self._control.cluster.leader_epoch_for_partition(key)
        position = FetchPosition(
            partition.offset,
            _NO_EPOCH if epoch is None else epoch,
            partition.last_epoch,
            self._max_partition_bytes,
            partition.target.generation,
        )
        broker.session.put(key, position)

    def _node_of(self, key: TopicPartition, partition: PartitionProgress, now: float) -> int | None:
        cluster = self._control.cluster
        if partition.follower is not None:
            if now < partition.follower_until and cluster.is_replica_node(key, partition.follower):
                return partition.follower
            partition.follower = None
            cluster.request_update()
        leader: int | None = cluster.leader_for_partition(key)
        return None if leader == -1 else leader

    def _look_up(self, key: TopicPartition, partition: PartitionProgress, now: float) -> None:
        """Request the metadata of a partition without a known leader, once in `retry_backoff_ms`.

        The backoff is that of the request. Once the metadata has the leader, the partition is fetched at once.
        """
        if now >= partition.next_look_up:
            partition.next_look_up = now + self._backoff_s
            self._control.cluster.request_update()
            self._io.call_later(self._backoff_s, self.touch, key)

    def _withdraw(self, key: TopicPartition, partition: PartitionProgress) -> None:
        if partition.node_id is not None:
            broker = self.brokers[partition.node_id]
            broker.session.discard(key)
            broker.behind.discard(key)
            partition.node_id = None

    def retry(self, key: TopicPartition, partition: PartitionProgress) -> None:
        """Fetch a partition again after `retry_backoff_ms`."""
        partition.not_before = time.monotonic() + self._backoff_s
        self._withdraw(key, partition)
        self._io.call_later(self._backoff_s, self.touch, key)

    def leave_follower(self, node_id: int) -> None:
        """Fetch partitions from their leaders in place of a follower that gave no answer."""
        for key, partition in self._partitions.items():
            if partition.node_id == node_id and partition.follower is not None:
                partition.follower = None
                self.touch(key)

    def current(self, key: TopicPartition, node_id: int, broker: BrokerFetches) -> PartitionProgress | None:
        """Return the state of a partition if the request of that broker has fetched it for its current position."""
        partition = self._partitions.get(key)
        position = broker.session.fetched_position(key)
        if partition is None or position is None:
            return None
        is_paused = partition.node_id is None and partition.target.is_paused
        if partition.node_id != node_id and not is_paused:
            return None
        is_same = (position.generation, position.offset) == (partition.target.generation, partition.offset)
        return partition if is_same else None

    def learn_leader(self, key: TopicPartition, answer: FetchAnswer) -> bool:
        """Take the leader that a broker names (KIP-951). Return whether it is newer than the known one."""
        cluster = self._control.cluster
        if not cluster.update_partition_leader(key, answer.leader_id, answer.leader_epoch):
            return False
        if cluster.broker_metadata(answer.leader_id) is None:
            cluster.request_update()
        self.touch(key)
        return True
