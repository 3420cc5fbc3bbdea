"""A member whose join takes longer than a poll: a later poll takes over the outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.coordinator.base import Generation, MemberState
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.future import Future

from kafkafmt.client.group_membership import poll_group
from kafkafmt.net import Consumer
from kafkafmt.types import TopicPartition


class Manager:
    """Runs nothing: the test ends the join. A wait for what has not ended times out at once."""

    def __init__(self) -> None:
        self.join = Future()

    def call_soon(self, _: object) -> Future:
        return self.join

    async def wait_for(self, future: Future, _: float | None) -> Any:
        if not future.is_done:
            raise kafka_errors.KafkaTimeoutError
        return future.value


class Subscription:
    """To one topic, whose partitions the group assigns."""

    subscription = frozenset({"t"})
    subscribed_pattern = None

    def partitions_auto_assigned(self) -> bool:
        return True


class Net:
    """The I/O thread: it runs what it is given at once."""

    def run(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: object) -> object:
        try:
            function(*arguments).send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("it waits")


class Leader(ConsumerCoordinator):  # type: ignore[misc]
    """The leader of a stable group. Nothing is sent."""

    def __init__(self) -> None:
        self.config = {"api_version": (4, 0), "group_id": "g", "retry_backoff_ms": 100, "assignors": ()}
        self._net = Net()
        self._lock = threading.RLock()
        self._manager = Manager()
        self._subscription = Subscription()
        self._generation = Generation.NO_GENERATION
        self._join_task = None
        self.rejoin_needed = self.rejoining = False
        self.state = MemberState.STABLE
        self._assignment_snapshot = self._metadata_snapshot = {"t": 3}
        self._joined_subscription = self._subscription.subscription
        self.has_heartbeat = True
        self.assigned: list[bytes] = []

    def _auto_assign_all_partitions(self) -> bool:
        return False

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        return True

    async def _on_join_prepare_async(self, *_: object, timeout_ms: float | None = None) -> None:
        pass

    async def _on_join_complete_async(self, *found: Any) -> None:
        self.assigned.append(found[-1])

    def _disable_heartbeat(self) -> None:
        self.has_heartbeat = False

    def _enable_heartbeat(self) -> None:
        self.has_heartbeat = True

    def poll_heartbeat(self) -> None:
        pass

    def _invoke_completed_offset_commit_callbacks(self) -> None:
        pass

    def _maybe_auto_commit_offsets_async(self) -> None:
        pass

    def _maybe_start_heartbeat_loop(self) -> None:
        pass


def test_poll_when_a_join_outlasts_it_then_a_later_poll_takes_over_the_assignment() -> None:
    leader = Leader()
    assert poll_group(leader, 1)
    leader._metadata_snapshot = {"t": 4}
    assert not poll_group(leader, 1)
    assert not leader.has_heartbeat
    leader._assignment_snapshot = leader._metadata_snapshot  # the join goes on in kafka-python's thread
    assert not poll_group(leader, 1)
    leader._manager.join.success(b"four partitions")
    assert poll_group(leader, 1)
    assert leader.assigned == [b"four partitions"]
    assert (leader.state, leader.has_heartbeat) == (MemberState.STABLE, True)
    assert not leader.need_rejoin()


class LostCoordinator:
    """Cannot be reached, or refuses the member."""

    rejoining = False

    def __init__(self, error: Exception) -> None:
        self._error = error

    def poll(self, timeout_ms: float | None) -> bool:
        raise self._error

    def close(self, **_: object) -> None:
        pass


class LostOffsets(LostCoordinator):
    """A coordinator that cannot be asked for the offsets of a consumer without membership."""

    def poll(self, timeout_ms: float | None) -> bool:
        return True

    def fetch_committed_offsets(self, partitions: object, timeout_ms: float | None) -> Any:
        raise self._error


@contextmanager
def polling(error: Exception, lost: type[LostCoordinator] = LostCoordinator) -> Iterator[Consumer]:
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", api_version=(2, 5), group_id="g")
    if lost is LostOffsets:
        consumer.assign([TopicPartition("t", 0)])
    found, consumer._coordinator = consumer._coordinator, lost(error)
    try:
        yield consumer
    finally:
        consumer._coordinator = found
        consumer.close(autocommit=False, timeout_ms=0)


def test_poll_when_the_coordinator_cannot_be_reached_then_returns_nothing_and_warns_once(caplog: Any) -> None:
    with polling(kafka_errors.KafkaConnectionError("refused")) as consumer:
        assert [consumer.poll(0) for _ in range(3)] == [{}, {}, {}]
    warned = [one.getMessage() for one in caplog.records if "coordinator" in one.getMessage()]
    assert warned == ["the coordinator of group g is asked again: KafkaConnectionError: refused"]


def test_poll_when_committed_offsets_cannot_be_asked_for_then_returns_nothing() -> None:
    with polling(kafka_errors.KafkaConnectionError("refused"), LostOffsets) as consumer:
        assert consumer.poll(0) == {}


def test_poll_when_the_coordinator_refuses_the_member_then_raises() -> None:
    refused = kafka_errors.GroupAuthorizationFailedError("g")
    with polling(refused) as consumer, pytest.raises(kafka_errors.GroupAuthorizationFailedError):
        consumer.poll(0)
