"""Fetches batches from all brokers into a queue, in the I/O thread of a consumer.

Each broker has one request in flight. It asks for the partitions that may be fetched: assigned, not paused, and with
less than `max_partition_fetch_bytes` in the queue. So the next batches of a partition arrive while the last ones are
used. A broker without more records is asked only while the caller waits for some: then no request is on its way, with
memory reserved for it, when the caller seeks.

The caller's thread says what to fetch (`FetchEngine.fetch`), and takes what has arrived (`FetchQueue`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import kafka.errors as kafka_errors

from _kafkafmt.batches.scan import scan
from _kafkafmt.client.fetch import TOPIC_IDS_VERSION, decode_fetch_response
from _kafkafmt.wire.status import MalformedResponseError
from _kafkafmt.wire.views import part_of
from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.client.broker_fetches import BrokerFetches, FetchAnswer, FetchSettings
from kafkafmt.client.fetch_memory import FetchMemory, ResponseMemory, lend_reserved
from kafkafmt.client.fetch_plan import FetchPlan
from kafkafmt.client.fetch_queue import AbortedTransaction, Fetched, FetchQueue
from kafkafmt.client.fetch_targets import PartitionProgress, Target
from kafkafmt.memory.errors import MemoryBudgetError

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.client.control_plane import ControlPlane
    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.types import TopicPartition

log = logging.getLogger(__name__)

# How long a caller counts as waiting after `want`. It calls that again before half of the time has passed.
_WANTED_SECONDS = 0.4
# From this version of Fetch on, the client waits as long as a response says. Before, the broker has waited (KIP-219).
_THROTTLING_VERSION = 8
_OUT_OF_RANGE = kafka_errors.OffsetOutOfRangeError.errno
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
OTHER_ID = frozenset(
    error.errno for error in (kafka_errors.UnknownTopicIdError, kafka_errors.InconsistentTopicIdError)
)


class FetchEngine:
    """Sends fetches, and queues what they return. Any thread may call its public methods.

    budget: bounds the bytes that are fetched and not returned. A request takes at most half of it. One batch may be
        larger.
    on_response: called in the I/O thread with the seconds that each request took.
    """

    def __init__(
        self,
        io: IoThread,
        control: ControlPlane,
        queue: FetchQueue,
        budget: MemoryBudget,
        on_response: Callable[[float], object],
    ) -> None:
        self._io = io
        self._control = control
        self._queue = queue
        self._on_response = on_response
        config = control.config
        self._settings = FetchSettings.of_config(config)
        self._max_partition_bytes = config["max_partition_fetch_bytes"]
        self._max_bytes = config["fetch_max_bytes"]
        self._backoff_s = config["retry_backoff_ms"] / 1000
        self._plan = FetchPlan(io, control, self._settings, self._send_soon)
        self._memory = FetchMemory(budget, io, self._send_soon, self._backoff_s)
        self._connections = BrokerConnections(io, control, self._on_connection)
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._wanted_until = 0.0
        self._is_due = False
        self._is_closed = False

    # What the caller wants

    def fetch(self, targets: Mapping[TopicPartition, Target]) -> None:
        """Fetch partitions from these targets on. Other partitions are fetched as before."""
        self._call(self._plan.set_targets, dict(targets))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions no more."""
        self._call(self._plan.forget, list(partitions))

    def take(self, topic_partition: TopicPartition, generation: int, size: int) -> None:
        """Count bytes of a partition as taken from the queue, and fetch more."""
        self._call(self._plan.take, topic_partition, generation, size)

    def pin(self, topic: str, topic_id: UUID | None) -> None:
        """Fetch a topic by this id only, where brokers support that; None to use the id of the metadata."""
        self._call(self._plan.pin, topic, topic_id)

    def stop_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Fetch no more of a partition once all before this offset was fetched."""
        self._call(self._plan.set_stops, dict(offsets))

    def update(self) -> None:
        """Look leaders up in the metadata again, because it has changed."""
        self._call(self._plan.touch_all)

    def want(self) -> None:
        """Ask brokers for records that they do not have yet, because the caller waits. Call it while it waits."""
        now = time.monotonic()
        if now > self._wanted_until - _WANTED_SECONDS / 2:
            self._wanted_until = now + _WANTED_SECONDS
            self._call(self._send_soon)

    @property
    def is_receiving(self) -> bool:
        """Whether a large response is arriving."""
        return any(connection.is_receiving for connection in self._connections.all())

    @property
    def is_waiting_for_memory(self) -> bool:
        """Whether a request, or another user of the budget, waits for bytes."""
        return self._memory.is_waiting

    def ask_for_memory(self) -> None:
        """Ask the other users of the budget for the bytes that a request waits for."""
        self._memory.ask_holders()

    def close(self) -> None:
        """Close the connections. The thread must still run."""
        self._call(self._close)

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        with suppress(kafka_errors.KafkaConnectionError):  # the thread has ended
            self._io.call_soon(method, *args)

    # In the I/O thread

    def _close(self) -> None:
        self._is_closed = True
        self._connections.close()
        self._memory.close()

    def _send_soon(self) -> None:
        """Send what can be sent, after the callbacks that wait already."""
        if not self._is_due and not self._is_closed:
            self._is_due = True
            self._io.loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send a request to each broker that can be asked now."""
        self._is_due = False
        if self._is_closed:
            return
        now = time.monotonic()
        self._plan.update_sessions(now)
        for node_id, broker in list(self._plan.brokers.items()):
            if broker.is_in_flight or now < broker.not_before or not len(broker.session):
                continue
            if not broker.behind and now >= self._wanted_until:
                continue
            connection = self._connections.ready(node_id)
            if connection is not None and not self._send(connection, broker):
                return  # until there is memory
        self._memory.release_unused()

    # Requests

    def _send(self, connection: BrokerConnection, broker: BrokerFetches) -> bool:
        """Send the next fetch to a broker. Return False if there is no memory for the response."""
        assert connection.versions is not None
        most = min(self._max_bytes, len(broker.session) * self._max_partition_bytes)
        try:
            reservation = self._memory.reserve(most)
        except MemoryBudgetError as error:
            self._queue.fail(error)
            return False
        if reservation is None:
            self._queue.wake()  # the caller may hold bytes of paused partitions
            return False
        correlation_id = connection.next_correlation_id()
        try:
            request = broker.encode(
                broker.api_versions(connection.versions.api_versions),
                correlation_id,
                min(most, reservation.size_bytes),
                self._control.cluster,
                self._plan.pinned,
            )
        except Exception as error:  # such as an offset that is no int64
            reservation.release()
            broker.session.fail()
            broker.not_before = time.monotonic() + self._backoff_s
            self._io.call_later(self._backoff_s, self._send_soon)
            self._queue.fail(error)
            return True
        broker.is_in_flight = True
        self._plan.brokers[connection.node_id] = self._plan.brokers.pop(connection.node_id)
        connection.send(
            [request.frame],
            correlation_id,
            partial(self._on_answer, connection, broker, request.version, reservation, time.monotonic()),
            partial(lend_reserved, reservation),
        )
        return True

    # Responses

    def _on_answer(
        self,
        connection: BrokerConnection,
        broker: BrokerFetches,
        version: int,
        reservation: Reservation,
        sent_at: float,
        frame: memoryview | None,
        error: Exception | None,
    ) -> None:
        """Take a response, or the error that ended the wait for it."""
        broker.is_in_flight = False
        memory = ResponseMemory(reservation)
        try:
            if frame is None:
                broker.session.fail()
                return
            reservation.resize(len(frame))
            try:
                response = decode_fetch_response(frame, version)
                answers = broker.answers(response, version)
            except (MalformedResponseError, UnicodeDecodeError) as malformed:
                broker.session.fail()
                connection.close(kafka_errors.KafkaProtocolError(f"{connection}: {malformed}"))
                return
            if version >= _THROTTLING_VERSION:
                connection.throttle(response.throttle_time_ms)
            refused = broker.session.accept(response.session_id, response.error_code)
            if refused is not None:
                self._refuse(connection, broker, refused)
                return
            aborted = [AbortedTransaction(*row) for row in response.aborted.tolist()]
            is_by_id = version >= TOPIC_IDS_VERSION
            accepted = self._accept(connection.node_id, answers, aborted, frame, memory, is_by_id=is_by_id)
            found = list(accepted)
            found += self._unchanged(connection.node_id, broker, version)
            if found:
                self._queue.put(found)
            self._on_response(time.monotonic() - sent_at)
        finally:
            memory.release()
            self._send_soon()

    def _on_connection(self, connection: BrokerConnection | None) -> None:
        """Send what can be sent on a new connection. After an error, leave the broker if it is only a follower."""
        if connection is not None and connection.is_closed and connection.error is not None:
            self._plan.leave_follower(connection.node_id)
        self._send_soon()

    def _refuse(self, connection: BrokerConnection, broker: BrokerFetches, error: Exception) -> None:
        """Send a fetch again that the broker refused as a whole: at once if only its session has ended."""
        log.info("%s refused a fetch, which is sent again: %r", connection, error)
        if isinstance(
            error, kafka_errors.FetchSessionIdNotFoundError | kafka_errors.InvalidFetchSessionEpochError
        ):
            return
        broker.forget_ids()
        self._control.cluster.request_update()
        broker.not_before = time.monotonic() + self._backoff_s
        self._io.call_later(self._backoff_s, self._send_soon)

    def _accept(
        self,
        node_id: int,
        answers: Iterable[tuple[TopicPartition, FetchAnswer]],
        aborted: list[AbortedTransaction],
        frame: memoryview,
        memory: ResponseMemory,
        *,
        is_by_id: bool,
    ) -> Iterator[Fetched]:
        """Yield what of a response the caller gets. Move its partitions to their next offsets."""
        broker = self._plan.brokers[node_id]
        for key, answer in answers:
            partition = self._plan.current(key, node_id, broker)
            if partition is None:
                continue  # it was moved meanwhile
            self._plan.unanswered.discard(key)
            has_new_leader = answer.leader_epoch >= 0 and self._plan.learn_leader(key, answer)
            if self._moves(key, partition, answer, has_new_leader=has_new_leader):
                continue
            first, size = answer.records_position, max(answer.records_size, 0)
            fetched = Fetched(
                key,
                partition.target.generation,
                partition.offset,
                answer.error_code,
                part_of(frame, first, first + size),  # another thread slices these bytes
                answer.high_watermark,
                aborted[answer.first_aborted : answer.first_aborted + max(answer.aborted, 0)],
                answer.diverging_end_offset >= 0,
                is_by_id,
                memory,
            )
            memory.add_part()
            has_stable_end = self._settings.isolation_level and answer.last_stable_offset >= 0
            partition.end = answer.last_stable_offset if has_stable_end else answer.high_watermark
            self._advance(key, partition, fetched)
            yield fetched

    def _moves(
        self, key: TopicPartition, partition: PartitionProgress, answer: FetchAnswer, *, has_new_leader: bool
    ) -> bool:
        """Return whether a partition is fetched again elsewhere, so that the answer is not for the caller."""
        is_from_follower = partition.follower is not None
        if answer.error_code in _MOVED or (is_from_follower and answer.error_code == _OUT_OF_RANGE):
            partition.follower = None
            if answer.error_code != _OUT_OF_RANGE:  # a follower may lack what its leader has
                self._control.cluster.request_update()
            if not has_new_leader:
                self._plan.retry(key, partition)
            return True
        if answer.preferred_read_replica >= 0 and not answer.records_size > 0 and not answer.error_code:
            replica = answer.preferred_read_replica
            is_known = self._control.cluster.is_replica_node(key, replica)
            if not is_known or self._connections.get(replica) is None:  # it is new, or was not reached
                if not is_known:
                    self._control.cluster.request_update()
                self._plan.retry(key, partition)
                return True
            partition.follower = replica
            max_age_s = self._control.config["metadata_max_age_ms"] / 1000
            partition.follower_until = time.monotonic() + max_age_s
            self._plan.touch(key)
            return True
        return False

    def _advance(self, key: TopicPartition, partition: PartitionProgress, fetched: Fetched) -> None:
        """Move a partition to the offset after what was fetched."""
        if fetched.error_code in OTHER_ID:
            self._control.cluster.request_update()
            self._plan.retry(key, partition)
        elif fetched.error_code or fetched.is_diverging:
            partition.is_stopped = True
        else:
            self._high_watermarks[key] = fetched.high_watermark
            if len(fetched.records):
                run, *_, error = scan(fetched.records)
                if len(run):
                    last = run.index[-1]
                    partition.offset = max(int(last["last_offset"]) + 1, partition.offset)
                    partition.last_epoch = int(last["partition_leader_epoch"])
                partition.is_stopped = error is not None or not len(run)
                partition.queued_bytes += len(fetched.records)
        self._plan.touch(key)

    def _unchanged(self, node_id: int, broker: BrokerFetches, version: int) -> Iterator[Fetched]:
        """Yield an empty answer for partitions of a new generation that the response leaves out as unchanged."""
        for key in tuple(self._plan.unanswered):
            partition = self._plan.current(key, node_id, broker)
            if partition is not None:
                self._plan.unanswered.discard(key)
                generation, high_watermark = partition.target.generation, self._high_watermarks.get(key, -1)
                partition.end = high_watermark
                self._plan.touch(key)
                is_by_id = version >= TOPIC_IDS_VERSION
                empty = memoryview(b"")
                yield Fetched(
                    key, generation, partition.offset, 0, empty, high_watermark, [], False, is_by_id, None
                )
