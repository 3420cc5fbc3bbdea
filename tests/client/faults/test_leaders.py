"""Leaders that die or move while records are sent and read, in a cluster of three brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

import kafkafmt as kf
from broker.three_brokers import ThreeBrokers
from client.faults.numbered import (
    CLOSE_SECONDS,
    DELIVERY_SECONDS,
    KINDS,
    RETURN_SECONDS,
    Numbered,
    consuming,
    has_failed,
    numbers_in,
    producing,
)
from client.raw_reading import READ_SECONDS
from kafkafmt.net import RawConsumer

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("three")]

PATIENT = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 200, "retry_backoff_ms": 50}
SOME = 200  # records that are sent at once


class Traffic:
    """Every kind of producer sends to partitions of its own, and one consumer reads all of them."""

    def __init__(self, brokers: ThreeBrokers, consumer: RawConsumer) -> None:
        self._brokers, self._consumer = brokers, consumer
        self._sent: dict[TopicPartition, tuple[Numbered, Mapping[str, Any]]] = {}
        self._found: dict[TopicPartition, list[int]] = {}

    def add(self, partition: TopicPartition, producer: Any, guarantee: Mapping[str, Any]) -> None:
        self._sent[partition] = Numbered(producer, *partition), guarantee
        self._found[partition] = []
        self._consumer.assign(list(self._sent))
        self._consumer.seek_to_beginning(partition)

    def send(self) -> None:
        """Some to each partition. The first of them is delivered when this returns; others are on their way."""
        for future in [sent.send(SOME)[0] for sent, _ in self._sent.values()]:
            future.get(DELIVERY_SECONDS)
        self._read()

    def assert_sent_and_read(self) -> None:
        """Each record is in the log as is guaranteed, and what was read is what is there."""
        expected = {}
        for partition, (sent, guarantee) in self._sent.items():
            sent.flush()
            batches = self._brokers.batches(*partition)
            sent.assert_arrived(batches, guarantee)
            expected[partition] = list(numbers_in(batches).values())
        deadline = time.monotonic() + READ_SECONDS
        while any(len(self._found[partition]) < len(expected[partition]) for partition in expected):
            assert time.monotonic() < deadline
            self._read()
        assert self._found == expected

    def _read(self) -> None:
        for partition, records in self._consumer.poll(100).items():
            for record in records:
                self._found[partition] += numbers_in(kf.MemoryRecords(record.value).batches()).values()


@contextmanager
def traffic(brokers: ThreeBrokers, name: str, leader: int) -> Iterator[Traffic]:
    """A topic for each kind of producer, with that leader."""
    with ExitStack() as stack:
        many = {"max_poll_records": 500, "max_partition_fetch_bytes": 5000, **PATIENT}
        running = Traffic(brokers, stack.enter_context(consuming(brokers.bootstrap, **many)))
        for kind, (client, guarantee) in KINDS.items():
            topic = brokers.create_topic(f"{name}-{kind}", [leader])
            options = {"batch_size": 500, **PATIENT, **guarantee}
            producer = stack.enter_context(producing(client, brokers.bootstrap, **options))
            running.add(TopicPartition(topic, 0), producer, guarantee)
        yield running


def test_records_when_their_leader_is_killed_and_comes_back_then_all_are_sent_and_read(
    brokers: ThreeBrokers,
) -> None:
    with traffic(brokers, "killed", leader=3) as running:
        running.send()
        brokers.kill(3)
        running.send()
        brokers.start(3)
        running.send()
        for kind in KINDS:
            brokers.elect(f"killed-{kind}", 0, preferred=3)
        running.send()
        running.assert_sent_and_read()


def test_records_when_their_leader_moves_then_all_are_sent_and_read(brokers: ThreeBrokers) -> None:
    with traffic(brokers, "moved", leader=1) as running:
        for leader in (2, 3, 1, 2):
            running.send()
            for kind in KINDS:
                brokers.move_leader(f"moved-{kind}", 0, to=leader)
        running.send()
        running.assert_sent_and_read()


def test_close_when_the_only_broker_of_a_partition_is_killed_then_returns_in_time_and_no_future_is_left(
    brokers: ThreeBrokers,
) -> None:
    """Other brokers answer that the partition has no leader."""
    sent = {}
    for kind, (client, guarantee) in KINDS.items():
        topic = brokers.create_topic(f"lost-{kind}", [2], is_replicated=False)
        sent[kind] = Numbered(client(bootstrap_servers=brokers.bootstrap, **guarantee), topic)
        sent[kind].send()
        sent[kind].flush()
    brokers.kill(2)
    for one in sent.values():
        lost = one.send(7)
        begun = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match="not delivered: 7 record"):
            one.producer.close(CLOSE_SECONDS)
        assert time.monotonic() - begun < RETURN_SECONDS
        assert all(has_failed(future) for future in lost)
    brokers.start(2)
