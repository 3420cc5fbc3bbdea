"""Which of three brokers a partition is read from: the one in the own rack (KIP-392), or a new leader (KIP-951)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
from kafka.structs import TopicPartition

from broker.three_brokers import ThreeBrokers
from client.faults.numbered import Numbered
from client.raw_reading import READ_SECONDS
from client.sending import IDEMPOTENT
from kafkafmt.net import Consumer, Producer

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("three")]

NEVER_MS = 3_600_000


class Reader:
    """A consumer of a partition, beside a producer to it. Both see records 0, 1, 2, ..."""

    def __init__(self, brokers: ThreeBrokers, topic: str, **options: Any) -> None:
        self._partition = TopicPartition(topic, 0)
        self.producer = Producer(bootstrap_servers=brokers.bootstrap, **IDEMPOTENT)
        self._sent = Numbered(self.producer, topic)
        self.consumer = Consumer(bootstrap_servers=brokers.bootstrap, fetch_max_wait_ms=20, **options)
        self.consumer.assign([self._partition])
        self.consumer.seek(self._partition, 0)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.consumer.close(autocommit=False)
        self.producer.close()

    @property
    def source(self) -> int | None:
        """The broker that the partition is fetched from."""
        source: int | None = self.consumer._engine._plan._partitions[self._partition].node_id
        return source

    def send_and_read(self, count: int = 10) -> None:
        self._sent.send(count)
        self._sent.flush()
        deadline = time.monotonic() + READ_SECONDS
        while self.consumer.position(self._partition) < len(self._sent.futures):
            assert time.monotonic() < deadline
            for records in self.consumer.poll(100, 3).values():
                assert all(int(record.value) == record.offset for record in records)

    def send_and_read_until_source_is(self, node: int) -> None:
        """A leader names another source as soon as that is in sync."""
        deadline = time.monotonic() + READ_SECONDS
        self.send_and_read()
        while self.source != node:
            assert time.monotonic() < deadline, self.source
            self.send_and_read()


def test_records_when_a_follower_is_in_the_own_rack_then_come_from_it_and_from_the_leader_once_it_has_died(
    brokers: ThreeBrokers,
) -> None:
    """The consumer does not wait until it may connect to the follower again, nor for new metadata."""
    topic = brokers.create_topic("rack", [1])
    rarely = {"reconnect_backoff_ms": NEVER_MS, "reconnect_backoff_max_ms": NEVER_MS}
    with Reader(brokers, topic, client_rack="rack-2", **rarely) as reader:
        reader.send_and_read_until_source_is(2)
        brokers.kill(2)
        try:
            reader.send_and_read()
            assert reader.source == 1
        finally:
            brokers.start(2)


def test_records_when_no_broker_is_in_the_own_rack_then_come_from_the_leader(brokers: ThreeBrokers) -> None:
    topic = brokers.create_topic("no-rack", [3])
    with Reader(brokers, topic, client_rack="rack-7") as reader:
        reader.send_and_read()
        assert reader.source == 3


@pytest.mark.parametrize("replicas", [[2, 1, 3], [2, 3]], ids=["it-follows-the-new-one", "it-has-no-replica"])
def test_records_when_the_leader_has_moved_then_come_from_the_one_that_the_former_one_names(
    brokers: ThreeBrokers, replicas: Sequence[int]
) -> None:
    """Without new metadata, which is not requested again, and without a pause."""
    topic = brokers.create_topic(f"named-{len(replicas)}", [1])
    with Reader(brokers, topic, retry_backoff_ms=NEVER_MS) as reader:
        reader.send_and_read()
        brokers.reassign(topic, 0, replicas)
        brokers.elect(topic, 0, preferred=2)
        reader.send_and_read()
        assert reader.source == 2
