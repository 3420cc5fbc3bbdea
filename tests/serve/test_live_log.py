"""A real broker writes, rolls, deletes and compacts its logs while the endpoint serves them out of the same folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DeleteTopicsRequest

import kafkafmt as kf
from broker.broker import Broker
from broker.client import JavaClient, Message
from endpoints.fetched import FOREVER_MS
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, list_offsets
from endpoints.served import Served
from oracle.kafka import KafkaOracle

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("live")]

SECONDS = 90
ROUNDS = 40
OLD = 3  # the version of Fetch
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
SMALL_SEGMENTS = {"segment.bytes": 4_000, "index.interval.bytes": 500, "file.delete.delay.ms": 100}
TOPICS = {
    "plain": SMALL_SEGMENTS,
    "transactions": SMALL_SEGMENTS,
    "retained": {**SMALL_SEGMENTS, "retention.bytes": 12_000},
    "compacted": {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
}
LOSING = ("retained", "compacted")


class Seen(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    config = {"log.retention.check.interval.ms": 300, "log.cleaner.backoff.ms": 100}
    with Broker(tmp_path_factory.mktemp("live"), config) as broker:
        for topic, config in TOPICS.items():
            broker.create_topic(topic, config=config)
        yield broker


@pytest.fixture(scope="module")
def client(oracle: KafkaOracle, broker: Broker) -> Iterator[JavaClient]:
    with JavaClient(oracle.jvm, broker) as client:
        yield client


class Follower:
    """A consumer of the endpoint, from the start on and until it is told where the end is and has come there."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.address, self.topic = address, topic
        self.seen: list[Seen] = []
        self.end: int | None = None
        self.caught_up = threading.Event()  # a first time

    def is_over(self, position: int) -> bool:
        if self.seen:
            self.caught_up.set()
        return self.end is not None and position >= self.end


def follow_now(follower: Follower, isolation: str) -> None:
    """By kafka-python's consumer."""
    host, port = follower.address
    partition = TopicPartition(follower.topic, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=f"{host}:{port}",
        isolation_level=isolation,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=1000,
    )
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    deadline = time.monotonic() + SECONDS
    while not follower.is_over(consumer.position(partition)):
        assert time.monotonic() < deadline, f"at {consumer.position(partition)} of {follower.end}"
        for records in consumer.poll(200).values():
            follower.seen += [Seen(r.offset, r.key, r.value) for r in records]
    consumer.close()


def follow_as_old(follower: Follower) -> None:
    """At a version of Fetch that knows message format v1 alone."""
    topic, position = follower.topic, 0
    deadline = time.monotonic() + SECONDS
    with RawClient(follower.address) as client:
        while not follower.is_over(position):
            assert time.monotonic() < deadline, f"at {position} of {follower.end}"
            found = only(client.ask(fetch(Wanted(topic, 0, position), max_wait_ms=200), OLD).responses)
            if found.error_code == OffsetOutOfRangeError.errno:
                position = only(client.ask(list_offsets((topic, 0, -2)), 1).topics).offset
                continue
            assert found.error_code == 0
            records = kf.MemoryRecords(found.records or b"")
            assert all(one.magic == 1 for one in records.batches())
            new = [Seen(r.offset, r.key, r.value) for r in records.records() if r.offset >= position]
            follower.seen += new
            if new:
                position = new[-1].offset + 1
            elif follower.end is not None:  # markers may be all that is left
                position = found.high_watermark


def only(topics: Any) -> Any:
    (topic,) = topics
    (partition,) = topic.partitions
    return partition


def write(client: JavaClient, rounds: range) -> None:
    """To all topics by turns; every third transaction is aborted."""
    with (
        client.producer("lz4", transactional_id=f"live-{rounds.start}") as transactional,
        client.producer("none") as plain,
        client.producer("gzip") as compressed,
    ):
        for number in rounds:
            values = [b"%d/%d " % (number, i) + bytes(200) for i in range(1 + number % 7)]
            messages = [
                Message(1_700_000_000_000 + number, b"key-%d" % (number % 5), value) for value in values
            ]
            client.send(plain, "plain", messages)
            client.send(compressed if number % 2 else plain, "compacted", messages)
            client.send(plain, "retained", messages)
            transactional.beginTransaction()
            client.send(transactional, "transactions", messages)
            client.send(plain, "transactions", messages[:1])
            if number % 3:
                transactional.commitTransaction()
            else:
                transactional.abortTransaction()


def at_the_broker(client: JavaClient, topic: str, isolation: str = UNCOMMITTED) -> list[Seen]:
    return [Seen(r.offset, r.key, r.value) for r in client.consume(topic, isolation=isolation)]


def end_offset(broker: Broker, topic: str) -> int:
    return int(only(broker.request(list_offsets((topic, 0, -1)), 1).topics).offset)


def test_consumers_see_what_the_brokers_own_sees_while_it_is_written(
    broker: Broker, client: JavaClient
) -> None:
    write(client, range(5))
    with Served(broker.log_dir) as served, ThreadPoolExecutor(10) as threads:
        current = {
            (topic, isolation): Follower(served.address, topic)
            for topic in TOPICS
            for isolation in (COMMITTED, UNCOMMITTED)
            if isolation == UNCOMMITTED or topic == "transactions"
        }
        old = {topic: Follower(served.address, topic) for topic in TOPICS}
        running = [threads.submit(follow_now, one, isolation) for (_, isolation), one in current.items()]
        running += [threads.submit(follow_as_old, one) for one in old.values()]
        for follower in (*current.values(), *old.values()):
            assert follower.caught_up.wait(SECONDS)  # so that what follows is served as it is written
        write(client, range(5, ROUNDS))
        for follower in (*current.values(), *old.values()):
            follower.end = end_offset(broker, follower.topic)
        for future in running:
            future.result(SECONDS)

    for (topic, isolation), follower in current.items():
        assert_sees(client, follower, isolation, in_order=topic not in LOSING)
    for topic, follower in old.items():
        assert_sees(client, follower, UNCOMMITTED, in_order=topic not in LOSING)
    assert len(list((broker.log_dir / "plain-0").glob("*.log"))) > 5


def assert_sees(client: JavaClient, follower: Follower, isolation: str, *, in_order: bool) -> None:
    """All that is there, or, of a log that loses records, at the least what is left of it."""
    expected = at_the_broker(client, follower.topic, isolation)
    offsets = [seen.offset for seen in follower.seen]
    assert offsets == sorted(set(offsets))
    if in_order:
        assert follower.seen == expected
    else:
        assert set(expected) <= set(follower.seen)


@pytest.mark.parametrize("topic", TOPICS)
def test_log_that_was_rolled_and_cleaned_is_as_the_brokers_own_consumer_sees_it(
    broker: Broker, client: JavaClient, topic: str
) -> None:
    write(client, range(100, 110))
    with Served(broker.log_dir) as served:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:  # again, where the cleaner was at work meanwhile
            before = at_the_broker(client, topic)
            end = end_offset(broker, topic)
            current, old = Follower(served.address, topic), Follower(served.address, topic)
            current.end = old.end = end
            follow_now(current, UNCOMMITTED)
            follow_as_old(old)
            if at_the_broker(client, topic) == before:
                break
        assert current.seen == before
        assert old.seen == before


def test_long_poll_is_answered_when_the_broker_has_written(broker: Broker, client: JavaClient) -> None:
    with (
        Served(broker.log_dir) as served,
        RawClient(served.address) as consumer,
        client.producer() as producer,
    ):
        for version in (OLD, 12):
            end = end_offset(broker, "plain")
            request = fetch(Wanted("plain", 0, end), max_wait_ms=FOREVER_MS)  # longer than its client waits
            correlation_id = consumer.send(request, version)
            client.send(producer, "plain", [Message(1, b"key", b"value")])
            found = only(consumer.receive(request, version, correlation_id).responses)
            assert found.high_watermark == end + 1
            assert [r.value for r in kf.MemoryRecords(found.records).records()] == [b"value"]


def test_topic_that_the_broker_deletes_is_unknown_and_a_new_one_of_its_name_is_served(
    broker: Broker, client: JavaClient
) -> None:
    topic, request = "short-lived", fetch(Wanted("short-lived", 0, 1), max_wait_ms=SECONDS * 1000)
    with (
        Served(broker.log_dir) as served,
        RawClient(served.address) as consumer,
        client.producer() as producer,
    ):
        broker.create_topic(topic)
        client.send(producer, topic, [Message(1, b"key", b"first")])
        correlation_id = consumer.send(request, 12)
        broker.request(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 4)
        found = only(consumer.receive(request, 12, correlation_id).responses)
        assert found.error_code == UnknownTopicOrPartitionError.errno
        broker.create_topic(topic)
        with client.producer() as another:  # the first one knows the topic's former id
            client.send(another, topic, [Message(1, b"key", b"second")])
        found = only(consumer.ask(fetch(Wanted(topic)), OLD).responses)
        assert [r.value for r in kf.MemoryRecords(found.records).records()] == [b"second"]
