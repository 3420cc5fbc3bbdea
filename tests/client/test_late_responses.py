"""Without idempotence, a partition has one batch in flight at a time, also after a batch has expired in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer
from kafka.protocol.broker_version_data import BrokerVersionData

from client.scripted_sender import sender_of
from kafkafmt import TopicPartition
from kafkafmt.client.clock import monotonic_ms
from kafkafmt.client.io_thread import IoLoop
from kernels.wire_messages import TOPIC_ID, encoded, produce_response

PARTITION = TopicPartition("topic", 0)
NOT_LEADER = kafka.errors.NotLeaderForPartitionError.errno
VERSION = 9


class Node:
    """A connection that takes one request at a time, which the test answers when it likes."""

    versions = BrokerVersionData((2, 8))

    def __init__(self) -> None:
        self.waiting: Callable[[Any, Any], object] | None = None
        self.in_flight_count = 0

    def next_correlation_id(self) -> int:
        return 1

    def cork(self) -> None: ...

    def uncork(self) -> None: ...

    def throttle(self, throttle_time_ms: int) -> None: ...

    def send(
        self, pieces: Sequence[Any], correlation_id: int, on_response: Callable[[Any, Any], object]
    ) -> None:
        self.waiting = on_response

    def answer(self, error_code: int, offset: int) -> None:
        assert self.waiting is not None
        answered, self.waiting = self.waiting, None
        partition = (PARTITION.partition, error_code, offset, -1, 0, [], None, None)
        response = produce_response([(PARTITION.topic, TOPIC_ID, [partition])])
        answered(memoryview(encoded(response, VERSION, 1)), None)


class Cluster:
    """Three nodes, of which `leader` leads all partitions. In the place of connections and metadata."""

    need_update = False

    def __init__(self) -> None:
        self.nodes = {number: Node() for number in range(3)}
        self.leader = 0

    def leader_for_partition(self, _: TopicPartition) -> int:
        return self.leader

    def request_update(self) -> None: ...

    def ready(self, node_id: int) -> Node | None:
        node = self.nodes[node_id]
        return None if node.waiting else node

    def moved_to(self, leader: int) -> Node:
        """Move all partitions. Return their new leader."""
        self.leader = leader
        return self.nodes[leader]


class Sending:
    """A sender without threads, that runs when the test calls it."""

    def __init__(self, cluster: Cluster) -> None:
        control = SimpleNamespace(cluster=cluster, config=KafkaProducer.DEFAULT_CONFIG)
        self.sender = sender_of(IoLoop(asyncio.get_running_loop()), control, transactional_id=None)
        self.accumulator = self.sender._accumulator
        self.sender._connections = cluster

    def send(self, value: bytes) -> Any:
        """Send a batch of one record, if that may be sent now. Return its future."""
        appended = self.accumulator.append(PARTITION, 0, None, value, now_ms=monotonic_ms())
        assert appended is not None
        self.accumulator._queues.end_appends(PARTITION)
        self.sender.run()
        return appended[0]


@pytest.mark.parametrize("is_late", [True, False], ids=["late response", "no late response"])
def test_response_when_its_batch_has_expired_then_later_batches_keep_their_order(is_late: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        sending = Sending(cluster)
        expired = sending.send(b"expired")
        expired.batch.created_ms = float("-inf")
        sending.sender._in_flight._next_expiry_ms = 0
        second_leader = cluster.moved_to(1)
        second = sending.send(b"second")
        with pytest.raises(kafka.errors.KafkaTimeoutError, match="since batch creation"):
            expired.get(0)
        assert second_leader.waiting
        if is_late:
            cluster.nodes[0].answer(0, 100)
        third_leader = cluster.moved_to(2)
        third = sending.send(b"third")
        assert third_leader.waiting is None, "the second batch is in flight, and may have to be sent again"
        second_leader.answer(NOT_LEADER, -1)
        for future, offset in ((second, 101), (third, 102)):
            sending.sender.run()
            assert not future.is_done
            third_leader.answer(0, offset)
            assert future.get(0).offset == offset

    asyncio.run(scenario())


@pytest.mark.parametrize(("version", "throttled_ms"), [(5, []), (6, [9])])
def test_response_when_the_broker_has_waited_itself_then_the_client_does_not_wait_again(
    version: int, throttled_ms: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-219"""
    found: list[int] = []

    async def answer() -> None:
        cluster = Cluster()
        sender: Any = Sending(cluster).sender
        monkeypatch.setattr(cluster.nodes[0], "throttle", found.append)
        response = memoryview(encoded(produce_response([], 9), version, 1))
        sender._answered(cluster.nodes[0], [], version, response, None)

    asyncio.run(answer())
    assert found == throttled_ms
