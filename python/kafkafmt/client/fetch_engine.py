"""Fetches batches from all brokers into a queue, in the I/O thread of a consumer.

Each broker has one request in flight. It asks for the partitions that may be fetched: assigned, not paused, and with
less than `max_partition_fetch_bytes` in the queue. So the next batches of a partition arrive while the last ones are
used. The caller's thread says what to fetch (`FetchEngine.fetch`), and takes what has arrived (`FetchQueue`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import kafka.errors as kafka_errors

from _kafkafmt.batches.scan import scan
from _kafkafmt.client import fetch
from _kafkafmt.client.messages import RequestHeader
from _kafkafmt.columns.arrays import lend
from _kafkafmt.streams.reservations import Waiter
from _kafkafmt.wire.status import MalformedResponseError
from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.client.fetch_queue import Fetched, FetchQueue, ResponseMemory
from kafkafmt.client.fetch_session import FetchPosition, FetchSessionState
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.client.control_plane import ControlPlane
    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.memory.budget import MemoryBudget

log = logging.getLogger(__name__)

_API_KEY = 1
# The first versions of Fetch with isolation levels, and with sessions (KIP-227).
_ISOLATION_VERSION = 4
_SESSION_VERSION = 7
_NO_ID = UUID(int=0)
_NO_EPOCH = -1
# Errors after which the leader is looked up again, and the partition is fetched again.
_MOVED = frozenset(
    error.errno
    for error in (
        kafka_errors.NotLeaderForPartitionError,
        kafka_errors.LeaderNotAvailableError,
        kafka_errors.ReplicaNotAvailableError,
        kafka_errors.UnknownTopicOrPartitionError,
        kafka_errors.KafkaStorageError,
    )
)
# Errors of topics that were deleted, or are not known by this id yet. The caller may want to know.
_OTHER_ID = frozenset(
    error.errno for error in (kafka_errors.UnknownTopicIdError, kafka_errors.InconsistentTopicIdError)
)


class Target(NamedTuple):
    """Where the caller wants to fetch a partition from.

    leader_epoch: of the record before `offset`; -1 if it is not known.
    generation: changes with each seek and assignment. What was fetched for an earlier one is dropped.
    preferred_replica: the node to fetch from in place of the leader (KIP-392).
    """

    offset: int
    leader_epoch: int
    generation: int
    is_paused: bool = False
    preferred_replica: int | None = None


@dataclass(slots=True)
class _Partition:
    """The state of a partition that is fetched.

    offset, last_epoch: of the next fetch, which is after all that was fetched.
    queued_bytes: fetched, and not taken by the caller.
    node_id: of the broker whose session has it; None for none.
    is_stopped: after an error that the caller must handle.
    """

    target: Target
    offset: int
    last_epoch: int
    queued_bytes: int = 0
    node_id: int | None = None
    not_before: float = 0.0
    is_stopped: bool = False


@dataclass(slots=True)
class _Broker:
    """The fetches of one broker. ids: the topic ids of its session by topic; empty if it uses names."""

    session: FetchSessionState = field(default_factory=FetchSessionState)
    is_in_flight: bool = False
    not_before: float = 0.0
    ids: dict[str, UUID] = field(default_factory=dict)
    has_stale_ids: bool = True


class FetchEngine:
    """Sends fetches, and queues what they return. Any thread may call its public methods.

    budget: bounds the bytes that are fetched and not taken. A request takes at most half of it. One batch may be larger.
    """

    def __init__(self, io: IoThread, control: ControlPlane, queue: FetchQueue, budget: MemoryBudget) -> None:
        self._io = io
        self._control = control
        self._queue = queue
        self._budget = budget
        config = control.config
        self._max_partition_bytes = config["max_partition_fetch_bytes"]
        self._backoff_s = config["retry_backoff_ms"] / 1000
        self._client_id = config["client_id"].encode()
        self._connections = BrokerConnections(io, control, lambda _: self._plan_soon())
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._brokers: dict[int, _Broker] = {}
        self._pinned: dict[str, UUID] = {}
        self._waiter: Waiter | None = None
        self._reservation: Reservation | None = None  # of the waiter, for the next request
        self._dirty: set[TopicPartition] = set()
        self._encoders: dict[int, fetch.FetchEncoder] = {}
        self._is_planned = False
        self._is_closed = False

    # What the caller wants

    def fetch(self, targets: Mapping[TopicPartition, Target]) -> None:
        """Fetch partitions from these targets on. Other partitions are fetched as before."""
        self._call(self._set_targets, dict(targets))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions no more."""
        self._call(self._forget, list(partitions))

    def take(self, sizes: Mapping[TopicPartition, int]) -> None:
        """Count so many bytes of each partition as taken from the queue, and fetch more."""
        self._call(self._take, dict(sizes))

    def pin(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by this id only, where brokers support that; None to use the id of the metadata."""
        self._call(self._pin, topic, topic_id)

    def update(self) -> None:
        """Look leaders up in the metadata again, because it has changed."""
        self._call(self._touch_all)

    def close(self) -> None:
        """Close the connections. The thread must still run."""
        self._call(self._close)

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        with suppress(kafka_errors.KafkaConnectionError):  # the thread has ended
            self._io.call_soon(method, *args)

    # Changes, in the I/O thread

    def _set_targets(self, targets: dict[TopicPartition, Target]) -> None:
        for topic_partition, target in targets.items():
            partition = self._partitions.get(topic_partition)
            if partition is None or partition.target.generation != target.generation:
                if partition is not None:
                    self._withdraw(topic_partition, partition)
                partition = _Partition(target, target.offset, target.leader_epoch)
                self._partitions[topic_partition] = partition
            partition.target = target
            self._touch(topic_partition)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for topic_partition in partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                self._withdraw(topic_partition, partition)

    def _take(self, sizes: dict[TopicPartition, int]) -> None:
        for topic_partition, size in sizes.items():
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                partition.queued_bytes = max(partition.queued_bytes - size, 0)
                self._touch(topic_partition)

    def _pin(self, topic: str, topic_id: UUID | None) -> None:
        if topic_id is None:
            self._pinned.pop(topic, None)
        else:
            self._pinned[topic] = topic_id
        self._touch_all()

    def _touch_all(self) -> None:
        """Look at all partitions again: the metadata has changed."""
        self._dirty.update(self._partitions)
        for broker in self._brokers.values():
            broker.has_stale_ids = True
        self._plan_soon()

    def _touch(self, topic_partition: TopicPartition) -> None:
        """Look at a partition again: what is wanted of it, or where it is, may have changed."""
        self._dirty.add(topic_partition)
        self._plan_soon()

    def _close(self) -> None:
        self._is_closed = True
        self._connections.close()
        if self._waiter is not None:
            self._waiter.leave(0)
        if self._reservation is not None:
            self._reservation.release()

    # Plan

    def _plan_soon(self) -> None:
        """Plan once, after the callbacks that wait already."""
        if not self._is_planned and not self._is_closed:
            self._is_planned = True
            self._io.loop.call_soon(self._plan)

    def _plan(self) -> None:
        """Give each partition to the session of its broker, and send the requests that can be sent."""
        self._is_planned = False
        if self._is_closed:
            return
        now = time.monotonic()
        dirty, self._dirty = self._dirty, set()
        for topic_partition in dirty:
            partition = self._partitions.get(topic_partition)
            if partition is not None:
                self._place(topic_partition, partition, now)
        for node_id, broker in self._brokers.items():
            if broker.is_in_flight or not len(broker.session) or now < broker.not_before:
                continue
            connection = self._connections.ready(node_id)
            if connection is not None and not self._send(connection, broker):
                return  # until there is memory

    def _place(self, topic_partition: TopicPartition, partition: _Partition, now: float) -> None:
        """Put a partition into the session of the broker that it is fetched from, if it is to be fetched now."""
        node_id = None
        is_wanted = not (
            partition.is_stopped
            or partition.target.is_paused
            or partition.queued_bytes >= self._max_partition_bytes
            or now < partition.not_before
        )
        if is_wanted:
            node_id = self._node_of(topic_partition, partition)
            if node_id is None:
                self._control.cluster.request_update()
                self._retry(topic_partition, partition)
        if partition.node_id is not None and partition.node_id != node_id:
            self._withdraw(topic_partition, partition)
        if node_id is None:
            return
        broker = self._brokers.setdefault(node_id, _Broker())
        broker.has_stale_ids |= partition.node_id is None
        partition.node_id = node_id
        epoch = self._control.cluster.leader_epoch_for_partition(topic_partition)
        broker.session.put(
            topic_partition,
            FetchPosition(
                partition.offset,
                _NO_EPOCH if epoch is None else epoch,
                partition.last_epoch,
                self._max_partition_bytes,
            ),
        )

    def _node_of(self, topic_partition: TopicPartition, partition: _Partition) -> int | None:
        preferred = partition.target.preferred_replica
        if preferred is not None and self._control.cluster.is_replica_node(topic_partition, preferred):
            return preferred
        leader: int | None = self._control.cluster.leader_for_partition(topic_partition)
        return None if leader == -1 else leader

    def _withdraw(self, topic_partition: TopicPartition, partition: _Partition) -> None:
        if partition.node_id is not None:
            self._brokers[partition.node_id].session.discard(topic_partition)
            partition.node_id = None

    def _retry(self, topic_partition: TopicPartition, partition: _Partition) -> None:
        """Fetch a partition again after `retry_backoff_ms`."""
        partition.not_before = time.monotonic() + self._backoff_s
        self._withdraw(topic_partition, partition)
        self._io.call_later(self._backoff_s, self._touch, topic_partition)

    # Requests

    def _send(self, connection: BrokerConnection, broker: _Broker) -> bool:
        """Send the next fetch to a broker. Return False if there is no memory for the response."""
        size = min(
            self._control.config["fetch_max_bytes"],
            len(broker.session) * self._max_partition_bytes,
            max(self._budget.total_bytes // 2, 1),
        )
        reservation = self._reserve(size)
        if reservation is None:
            return False
        version = self._version(connection, broker)
        plan = broker.session.next_request(is_incremental=self._is_incremental(version))
        numbers: dict[str, int] = {}
        rows = [
            (numbers.setdefault(key.topic, len(numbers)), key.partition, *position)
            for key, position in plan.positions.items()
        ]
        forgotten = [(numbers.setdefault(key.topic, len(numbers)), key.partition) for key in plan.forgotten]
        if len(numbers) > 1:
            rows.sort()
            forgotten.sort()
        topics = [broker.ids[topic].bytes if broker.ids else topic.encode() for topic in numbers]
        correlation_id = connection.next_correlation_id()
        frame = self._encoder(size).encode(
            RequestHeader(version, correlation_id, self._client_id),
            fetch.FetchSession(plan.session_id, plan.epoch),
            topics,
            rows,
            forgotten,
        )
        broker.is_in_flight = True
        connection.send(
            [frame],
            correlation_id,
            partial(self._answered, connection, broker, version, reservation),
            partial(_lent, reservation),
        )
        return True

    def _is_incremental(self, version: int) -> bool:
        return version >= _SESSION_VERSION and self._control.config["enable_incremental_fetch_sessions"]

    def _encoder(self, max_bytes: int) -> fetch.FetchEncoder:
        encoder = self._encoders.get(max_bytes)
        if encoder is None:
            config = self._control.config
            encoder = self._encoders[max_bytes] = fetch.FetchEncoder(
                config["fetch_max_wait_ms"],
                config["fetch_min_bytes"],
                max_bytes,
                int(config["isolation_level"] == "read_committed"),
                config["client_rack"].encode(),
            )
        return encoder

    def _version(self, connection: BrokerConnection, broker: _Broker) -> int:
        """Choose the version of the next fetch. Fetch by topic ids if the broker can, and the ids are known.

        A topic cannot change its id within a session, nor a session from names to ids. A new session is begun then.
        """
        assert connection.versions is not None
        oldest, newest = connection.versions.api_versions[_API_KEY]
        version = min(newest, fetch.NEWEST_VERSION)
        if version < fetch.TOPIC_IDS_VERSION:
            ids: dict[str, UUID] = {}
        else:
            ids = self._ids(broker) if broker.has_stale_ids else broker.ids
        if any(ids.get(topic) != known for topic, known in broker.ids.items()) or bool(ids) != bool(broker.ids):
            broker.session.failed()
        broker.ids, broker.has_stale_ids = ids, False
        if not ids:
            version = min(version, fetch.TOPIC_IDS_VERSION - 1)
        is_committed = self._control.config["isolation_level"] == "read_committed"
        if version < max(oldest, _ISOLATION_VERSION if is_committed else fetch.OLDEST_VERSION):
            raise kafka_errors.IncompatibleBrokerVersion(f"{connection}: no version of Fetch that both sides know")
        return version

    def _ids(self, broker: _Broker) -> dict[str, UUID]:
        """Return the ids of all topics of a session; empty if one is not known."""
        ids = {}
        for topic in broker.session.topics():
            topic_id = self._pinned.get(topic) or self._control.cluster.topic_id(topic)
            if not topic_id or topic_id == _NO_ID:
                return {}
            ids[topic] = topic_id
        return ids

    def _reserve(self, size: int) -> Reservation | None:
        """Reserve bytes for a response, or wait for them without blocking the thread."""
        if self._reservation is not None:
            reservation, self._reservation = self._reservation, None
            return reservation
        if self._waiter is not None:
            return None
        found = self._budget.try_reserve(size)
        if found is None:
            self._waiter = Waiter(self._budget, size, partial(self._call, self._woken))
            self._waiter.enlist()
        return found

    def _woken(self) -> None:
        waiter = self._waiter
        if waiter is not None and waiter.is_served:
            self._reservation = waiter.take()
        if waiter is not None and not waiter.is_in_line:
            waiter.leave(0)
            self._waiter = None
            self._plan_soon()

    # Responses

    def _answered(
        self,
        connection: BrokerConnection,
        broker: _Broker,
        version: int,
        reservation: Reservation,
        frame: memoryview | None,
        error: Exception | None,
    ) -> None:
        """Take a response, or the error that ended the wait for it."""
        broker.is_in_flight = False
        memory = ResponseMemory(reservation)
        try:
            if frame is None:
                broker.session.failed()
                return
            reservation.resize(len(frame))
            try:
                response = fetch.decode_fetch_response(frame, version)
            except MalformedResponseError as malformed:
                broker.session.failed()
                connection.close(kafka_errors.KafkaProtocolError(str(malformed)))
                return
            connection.throttle(response.throttle_time_ms)
            refused = broker.session.answered(response.session_id, response.error_code)
            if refused is not None:
                log.info("%s refused a fetch, which is sent again: %r", connection, refused)
                broker.not_before = time.monotonic() + self._backoff_s
                self._io.call_later(self._backoff_s, self._plan_soon)
                return
            self._queue.put(self._accepted(connection.node_id, broker, version, frame, response, memory))
        finally:
            memory.release()
            self._plan_soon()

    def _accepted(
        self,
        node_id: int,
        broker: _Broker,
        version: int,
        frame: memoryview,
        response: fetch.FetchResponse,
        memory: ResponseMemory,
    ) -> list[Fetched]:
        """Return what of a response the caller gets. Move its partitions to their next offsets."""
        is_by_id = version >= fetch.TOPIC_IDS_VERSION
        names = {topic_id.bytes: topic for topic, topic_id in broker.ids.items()}
        topics = [names.get(topic) if is_by_id else topic.decode() for topic in response.topics]
        aborted = response.aborted.tolist()
        accepted = []
        for row in response.partitions.tolist():
            answer = _Answer(*row)
            topic = topics[answer.topic]
            if topic is None:
                continue
            key = TopicPartition(topic, answer.partition)
            partition = self._partitions.get(key)
            if (
                partition is None
                or partition.node_id != node_id
                or broker.session.fetched_offset(key) != partition.offset
            ):
                continue  # it was moved meanwhile
            if answer.leader_epoch >= 0:
                self._learn_leader(key, answer)
            if answer.error_code in _MOVED:
                self._control.cluster.request_update()
                self._retry(key, partition)
                continue
            first, size = answer.records_position, max(answer.records_size, 0)
            fetched = Fetched(
                key,
                partition.target.generation,
                partition.offset,
                answer.error_code,
                frame[first : first + size],
                answer.high_watermark,
                aborted[answer.first_aborted : answer.first_aborted + max(answer.aborted, 0)],
                answer.preferred_read_replica,
                answer.diverging_end_offset >= 0,
                is_by_id,
                memory,
            )
            memory.add_part()
            self._advance(key, partition, fetched)
            accepted.append(fetched)
        return accepted

    def _advance(self, key: TopicPartition, partition: _Partition, fetched: Fetched) -> None:
        """Move a partition behind what was fetched."""
        if fetched.error_code in _OTHER_ID:
            self._control.cluster.request_update()
            self._retry(key, partition)
        elif fetched.error_code or fetched.is_diverging:
            partition.is_stopped = True
        elif len(fetched.records):
            run, *_, error = scan(fetched.records)
            if len(run):
                last = run.index[-1]
                partition.offset = max(int(last["last_offset"]) + 1, partition.offset)
                partition.last_epoch = int(last["partition_leader_epoch"])
            partition.is_stopped = error is not None or not len(run)
            partition.queued_bytes += len(fetched.records)
        else:
            return
        self._touch(key)

    def _learn_leader(self, key: TopicPartition, answer: _Answer) -> None:
        """Take the leader that a broker names (KIP-951)."""
        cluster = self._control.cluster
        if cluster.update_partition_leader(key, answer.leader_id, answer.leader_epoch):
            if cluster.broker_metadata(answer.leader_id) is None:
                cluster.request_update()
            self._touch(key)


class _Answer(NamedTuple):
    """A row of `FETCHED_DTYPE`."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    diverging_end_offset: int
    records_position: int
    records_size: int
    topic: int
    partition: int
    diverging_epoch: int
    leader_id: int
    leader_epoch: int
    preferred_read_replica: int
    first_aborted: int
    aborted: int
    error_code: int
    reserved: int


def _lent(reservation: Reservation, size: int) -> memoryview:
    """Return memory for a response, which counts as what it takes."""
    reservation.resize(size)
    return memoryview(lend(size))
