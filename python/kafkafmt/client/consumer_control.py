"""Subscriptions, groups, positions and offsets of a consumer: kafka-python's, beside fetches of our own.

kafka-python's classes keep subscriptions, groups, commits, and requests for offsets. They run in its thread
(`ControlPlane`). Fetches run in a thread of their own (`FetchEngine`). The caller's thread compares both in `poll`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.protocol.consumer import OffsetResetStrategy
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from kafkafmt.client.consumer_config import adjust_timeouts, consumer_config, metrics_of
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.fetch_engine import FetchEngine
from kafkafmt.client.fetch_metrics import FetchMetrics
from kafkafmt.client.fetch_queue import FetchQueue
from kafkafmt.client.io_thread import IoThread
from kafkafmt.client.metrics import values_by_group
from kafkafmt.client.offset_resets import OffsetResets
from kafkafmt.client.partition_fetches import ConsumerState, PartitionFetches
from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.types import TopicPartition as OwnTopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    from kafka.consumer.subscription_state import (
        AsyncConsumerRebalanceListener,
        ConsumerRebalanceListener,
        TopicPartitionState,
    )
    from kafka.future import Future
    from kafka.structs import OffsetAndTimestamp
    from typing_extensions import Self

    from kafkafmt.client.fetch_queue import Fetched
    from kafkafmt.client.offset_resets import OffsetReset
    from kafkafmt.client.partition_fetches import Part

_UNBOUNDED = 2**62


class ConsumerControl:
    """The methods of kafka-python's KafkaConsumer but `poll` and iteration. Subclasses open what was fetched."""

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = {**KafkaConsumer.DEFAULT_CONFIG, "budget": None}

    def __init__(self, *topics: str, **configs: Any) -> None:
        self.config = consumer_config(self.DEFAULT_CONFIG, configs)
        self._metrics = metrics_of(self.config)
        self._control = ControlPlane(self.config, self._metrics)
        self._control.start(self.config["bootstrap_timeout_ms"])
        self._io = IoThread(f"{self.config['client_id']}-fetch")
        self._closed = False
        self._iterator: Iterator[Any] | None = None
        self._next_control = 0.0
        self._topic_update: Future | None = None  # the metadata of topics that were subscribed
        try:
            self._compose(configs)
            if topics:
                self._subscription.subscribe(topics=topics)
                self._topic_update = self._cluster.set_topics(topics)
        except BaseException:
            self._io.stop()
            self._control.close()
            raise

    def _compose(self, configs: Mapping[str, Any]) -> None:
        adjust_timeouts(self.config, configs, self._control.broker_version)
        options = {**self._control.config, **self.config, "metrics": self._metrics}
        self._subscription = SubscriptionState(self.config["auto_offset_reset"])
        # Only its requests for offsets and epochs are used.
        unused = {"metrics": None, "key_deserializer": None, "value_deserializer": None}
        self._offsets = Fetcher(self._control.client, self._subscription, **{**options, **unused})
        self._coordinator = ConsumerCoordinator(
            self._control.client,
            self._subscription,
            assignors=self.config["partition_assignment_strategy"],
            **options,
        )
        self._resets = OffsetResets(self._subscription)
        self._queue = FetchQueue()
        metrics = FetchMetrics(self._metrics, self.config["metric_group_prefix"])
        budget = self.config["budget"] or MemoryBudget(_UNBOUNDED, "fetched")
        self._engine = FetchEngine(self._io, self._control, self._queue, budget, metrics.record_latency)
        self._fetches = PartitionFetches(
            ConsumerState(self._subscription, self._cluster, self._resets, metrics),
            self._engine,
            self._queue,
            self._open_part,
            self.config["retry_backoff_ms"] / 1000,
        )
        self._cluster.add_listener(self._on_metadata)
        self._io.start()

    def _open_part(self, fetched: Fetched, metrics: FetchMetrics) -> Part:
        raise NotImplementedError

    @property
    def _cluster(self) -> Any:
        return self._control.cluster

    def _on_metadata(self, _: object) -> None:
        self._engine.update()
        self._fetches.mark_changed()
        self._queue.wake()

    # Lifecycle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        # After an exception the last records may not be processed, so they are not committed.
        self.close(autocommit=exc_type is None)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Leave the group and close the connections.

        autocommit: commit the positions first, if `enable_auto_commit` is set.
        timeout_ms: how long to wait for that; None for `request_timeout_ms`.
        """
        if self._closed:
            return
        self._closed = True
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        try:
            self._coordinator.close(autocommit=autocommit, timeout_ms=timeout_ms)
        finally:
            self._cluster.remove_listener(self._on_metadata)
            self._engine.close()
            self._io.stop(timeout_ms / 1000)
            self._fetches.close()
            if self._metrics is not None:
                self._metrics.close()
            self._control.close()

    def bootstrap_connected(self) -> bool:
        """Return whether the metadata of the cluster was received."""
        connected: bool = self._control.client.bootstrap_connected()
        return connected

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        """Wait for the metadata of the cluster. Raises KafkaTimeoutError after `timeout_ms`."""
        self._control.bootstrap(timeout_ms, refresh=refresh)

    def metrics(self, raw: bool = False) -> dict[Any, Any] | None:
        """Return the metrics by group and name; None without `metrics_enabled`. raw: kafka-python's objects."""
        if self._metrics is None:
            return None
        return dict(self._metrics.metrics) if raw else values_by_group(self._metrics)

    # Subscriptions

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics, or to those that match a pattern; see kafka-python's `KafkaConsumer.subscribe`."""
        self._subscription.subscribe(topics=topics, pattern=pattern, listener=listener)
        self._cluster.need_all_topic_metadata = pattern is not None
        if pattern is not None:
            self._cluster.set_topics([])
            self._cluster.request_update()
        else:
            self._topic_update = self._cluster.set_topics(self._subscription.group_subscription())
        self._fetches.mark_changed()

    def unsubscribe(self) -> None:
        """End all subscriptions and assignments."""
        self._coordinator.maybe_auto_commit_offsets_now()
        self._subscription.unsubscribe()
        if self.config["api_version"] >= (0, 9):
            self._coordinator.maybe_leave_group()
        self._cluster.need_all_topic_metadata = False
        self._cluster.set_topics([])
        self._topic_update = None
        self._iterator = None
        self._fetches.mark_changed()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, without a group's assignment. They replace the earlier ones.

        Raises IllegalStateError after `subscribe`, and TypeError for no TopicPartition.
        """
        wanted = _partitions_of(partitions or ())
        if not wanted:
            self.unsubscribe()
            return
        self._coordinator.maybe_auto_commit_offsets_now()
        self._subscription.assign_from_user(wanted)
        self._cluster.set_topics([partition.topic for partition in wanted])
        self._fetches.mark_changed()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions."""
        assigned: set[TopicPartition] = self._subscription.assigned_partitions()
        return assigned

    def subscription(self) -> set[str] | None:
        """Return the subscribed topics; None without a subscription."""
        topics = self._subscription.subscription
        return None if topics is None else set(topics)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return the membership in the group, for `send_offsets_to_transaction` of a producer."""
        if self.config["group_id"] is None:
            return ConsumerGroupMetadata(group_id=None)
        return self._coordinator.group_metadata()

    def topics(self) -> set[str]:
        """Request the topics of the cluster that the user may see."""
        self._fetch_all_metadata()
        topics: set[str] = self._cluster.topics()
        return topics

    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the partitions of a topic. Requests the metadata if it does not have the topic."""
        partitions = self._cluster.partitions_for_topic(topic)
        if partitions is None:
            self._fetch_all_metadata()
            partitions = self._cluster.partitions_for_topic(topic)
        return partitions or set()

    def _fetch_all_metadata(self) -> None:
        if self._cluster.metadata_refresh_in_progress:
            self._control.wait(self._cluster.request_update())
        needed_all = self._cluster.need_all_topic_metadata
        self._cluster.need_all_topic_metadata = True
        self._control.wait(self._cluster.request_update())
        self._cluster.need_all_topic_metadata = needed_all

    # Positions

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """Return the offset of the next record; None if it is not known within `timeout_ms`.

        Raises TypeError for no TopicPartition, and IllegalStateError if the partition is not assigned.
        """
        state = self._state_of(partition)
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        self._resolve_positions(left_ms(deadline))
        futures = [self._begin_resets(left_ms(deadline)), self._validate_positions(left_ms(deadline))]
        for future in futures:
            if future is not None and left_ms(deadline) != 0:
                try:
                    self._control.wait(future, left_ms(deadline))
                except kafka_errors.KafkaTimeoutError:
                    break
        self._resets.end_all()
        return None if state.position is None else int(state.position.offset)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of a partition, from its last fetch response; None before the first one.

        Raises as `position`.
        """
        highwater: int | None = self._state_of(partition).highwater
        return highwater

    def _state_of(self, partition: TopicPartition) -> TopicPartitionState:
        (partition,) = _partitions_of([partition])
        state = self._subscription.assignment.get(partition)
        if state is None:
            raise kafka_errors.IllegalStateError("Partition is not assigned")
        return state

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these partitions until `resume`. Any thread may call this."""
        for partition in _partitions_of(partitions):
            self._subscription.pause(partition)
        self._fetches.mark_changed()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        paused: set[TopicPartition] = self._subscription.paused_partitions()
        return paused

    def resume(self, *partitions: TopicPartition) -> None:
        """Return data of these partitions again."""
        for partition in _partitions_of(partitions):
            self._subscription.resume(partition)
        self._fetches.mark_changed()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position of an assigned partition. Raises ValueError for an offset below 0."""
        (partition,) = _partitions_of([partition])
        if not isinstance(offset, int) or offset < 0:
            raise ValueError("Offset must be int >= 0")
        state = self._subscription.assignment.get(partition)
        if state is None:
            raise ValueError("Unassigned partition")
        self._resets.cancel(partition)
        state.seek(offset)
        self._iterator = None
        self._fetches.mark_changed()

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the positions to the first offsets, at the next poll. No partitions: all that are assigned."""
        self._seek_to(OffsetResetStrategy.EARLIEST, partitions)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the positions to the ends, at the next poll. No partitions: all that are assigned."""
        self._seek_to(OffsetResetStrategy.LATEST, partitions)

    def _seek_to(self, strategy: OffsetResetStrategy, partitions: Sequence[TopicPartition]) -> None:
        partitions = _partitions_of(partitions)
        assigned = self.assignment()
        if not partitions and not assigned:
            raise ValueError("No partitions are currently assigned")
        for partition in partitions:
            if partition not in assigned:
                raise ValueError(f"Unassigned partition: {partition}")
        for partition in partitions or assigned:
            self._resets.cancel(partition)
            self._subscription.request_offset_reset(partition, strategy)
        self._iterator = None
        self._fetches.mark_changed()

    # Offsets

    def commit(
        self, offsets: dict[TopicPartition, OffsetAndMetadata] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit offsets, by default all positions, and wait for it. Raises IllegalStateError without a group."""
        self._coordinator.commit_offsets_sync(self._committable(offsets), timeout_ms=timeout_ms)

    def commit_async(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[[Any, Any], object] | None = None,
    ) -> Future:
        """Commit offsets, by default all positions, without waiting. callback: called in `poll` with the result."""
        return self._coordinator.commit_offsets_async(self._committable(offsets), callback=callback)

    def _committable(self, offsets: dict[TopicPartition, OffsetAndMetadata] | None) -> Any:
        self._check_group()
        if offsets is None:
            return self._subscription.all_consumed_offsets()
        return dict(zip(_partitions_of(offsets), offsets.values(), strict=True))

    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> Any:
        """Request the committed offset of a partition; None if there is none. metadata: as OffsetAndMetadata."""
        self._check_group()  # before the argument, as kafka-python does
        (partition,) = _partitions_of([partition])
        found = self.committed_offsets([partition], timeout_ms).get(partition)
        return found if metadata or found is None else found.offset

    def committed_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Request the committed offsets of partitions, without those that have none."""
        self._check_group()
        found: dict[TopicPartition, OffsetAndMetadata] = self._coordinator.fetch_committed_offsets(
            _partitions_of(partitions), timeout_ms=timeout_ms
        )
        return found

    def _check_group(self) -> None:
        if self.config["api_version"] < (0, 8, 1):
            raise kafka_errors.IncompatibleBrokerVersion("Requires >= Kafka 0.8.1")
        if self.config["group_id"] is None:
            raise kafka_errors.IllegalStateError("Requires group_id")

    def offsets_for_times(
        self, timestamps: dict[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Request the first offset of each partition at or after a timestamp in milliseconds; None if there is none.

        Raises ValueError for a timestamp below 0, and KafkaTimeoutError.
        """
        wanted = {partition: int(timestamp) for partition, timestamp in timestamps.items()}
        for partition, timestamp in wanted.items():
            if timestamp < 0:
                raise ValueError(
                    f"The target time for partition {partition} is {timestamp}. The target time cannot be negative."
                )
        found: dict[Any, Any] = self._offsets.offsets_by_times(wanted, self._timeout_ms(timeout_ms))
        return found

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Request the first offset of each partition. Raises KafkaTimeoutError."""
        found: dict[Any, int] = self._offsets.beginning_offsets(partitions, self._timeout_ms(timeout_ms))
        return found

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Request the end of each partition: the offset of the next record. Raises KafkaTimeoutError."""
        found: dict[Any, int] = self._offsets.end_offsets(partitions, self._timeout_ms(timeout_ms))
        return found

    def _timeout_ms(self, timeout_ms: float | None) -> float:
        return self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms

    def take_offset_resets(self) -> Iterator[OffsetReset]:
        """Yield each position that `auto_offset_reset` replaced since the last call."""
        return self._resets.take()

    # Steps of a poll

    def _await_topics(self, timeout_ms: float | None) -> None:
        """Wait for the metadata of subscribed topics: a leader that does not know them assigns no partitions."""
        if self._topic_update is not None:
            with suppress(kafka_errors.KafkaError):
                self._control.wait(self._topic_update, timeout_ms)
                self._topic_update = None

    def _resolve_positions(self, timeout_ms: float | None) -> None:
        """Set positions to committed offsets, and let the reset policy set the others."""
        if self._subscription.has_all_fetch_positions():
            return
        if self.config["group_id"] is not None:
            missing = self._subscription.missing_fetch_positions()
            try:
                found = self._coordinator.fetch_committed_offsets(missing, timeout_ms=timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return
            for partition, (offset, _, leader_epoch) in found.items():
                # With the epoch: kafka-python's refresh_committed_offsets_if_needed drops it, and truncation with it.
                self._subscription.seek(partition, OffsetAndMetadata(offset, "", leader_epoch))
        self._subscription.reset_missing_positions()

    def _begin_resets(self, timeout_ms: float | None = None) -> Future | None:
        """Request the offsets of positions that are reset."""
        self._resets.begin_all()
        return self._wake_after(self._offsets.reset_offsets_if_needed(timeout_ms=timeout_ms))

    def _validate_positions(self, timeout_ms: float | None = None) -> Future | None:
        """Validate positions against new leaders' logs (KIP-320)."""
        self._offsets.maybe_validate_positions()
        return self._wake_after(self._offsets.validate_offsets_if_needed(timeout_ms=timeout_ms))

    def _wake_after(self, future: Future | None) -> Future | None:
        """Let `poll` look again once a future is done."""
        if future is not None and not future.is_done:
            future.add_both(lambda _: self._queue.wake())
        return future


def left_ms(deadline: float | None) -> float | None:
    """Return the milliseconds until a time of `time.monotonic`; None for None."""
    return None if deadline is None else max(deadline - time.monotonic(), 0) * 1000


def _partitions_of(partitions: Iterable[Any]) -> list[TopicPartition]:
    """Return partitions as those of kafka-python. Raises TypeError for no TopicPartition, of it or of kafkafmt."""
    found = list(partitions)
    if not all(isinstance(partition, TopicPartition | OwnTopicPartition) for partition in found):
        raise TypeError("partitions must be TopicPartition namedtuples")
    return [TopicPartition(*partition) for partition in found]
