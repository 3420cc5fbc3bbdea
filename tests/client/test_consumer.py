"""What a Consumer returns and promises, beside kafka-python's consumer, from a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.serializer import Deserializer
from kafka.structs import OffsetAndMetadata, TopicPartition

from client.cluster import Cluster
from client.raw_reading import READ_SECONDS
from client.test_raw_consumer import damage, fill, send_singly, transact
from kafkafmt import MemoryBudget
from kafkafmt.net import Consumer, CorruptRecordError, Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]

PROMPT: dict[str, Any] = {"fetch_max_wait_ms": 20, "retry_backoff_ms": 20}
EARLIEST: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}


@contextmanager
def consuming(
    bootstrap: str, *partitions: TopicPartition, kind: Callable[..., Any] = Consumer, **options: Any
) -> Iterator[Any]:
    """A consumer of these partitions, from offset 0 on."""
    consumer = kind(bootstrap_servers=bootstrap, **{**PROMPT, **options})
    try:
        if partitions:
            consumer.assign(list(partitions))
            consumer.seek_to_beginning()
        yield consumer
    finally:
        consumer.close(autocommit=False)


def polled(consumer: Any, count: int, most: int | None = None) -> list[ConsumerRecord]:
    """The next records, at least so many."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + READ_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came"
        for records in consumer.poll(1000, most).values():
            assert most is None or len(records) <= most
            found += records
    return found


def only(topic: str, partition: int = 0) -> TopicPartition:
    return TopicPartition(topic, partition)


def send_large(cluster: Cluster, topic: str, *, partitions: int, count: int) -> None:
    """Records of 10 kB, each in a batch of its own, to the partitions in turns."""
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=0) as producer:
        for number in range(count):
            producer.send(topic, bytes(10_000), partition=number % partitions)


# What comes


def test_poll_returns_the_records_of_kafka_python(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    with consuming(cluster.bootstrap, only(topic), kind=KafkaConsumer) as theirs:
        expected = polled(theirs, 205)
    with consuming(cluster.bootstrap, only(topic)) as consumer:
        assert polled(consumer, 205, 7) == expected
        assert consumer.position(only(topic)) == 205
        assert consumer.highwater(only(topic)) == 205
        assert consumer.poll(10) == {}


@pytest.mark.parametrize("most", [7, 10_000])
def test_columns_have_the_same_records(cluster: Cluster, topic: str, most: int) -> None:
    fill(cluster, topic)
    with consuming(cluster.bootstrap, only(topic)) as consumer:
        expected = polled(consumer, 205)
        consumer.seek_to_beginning()
        rows: list[dict[str, Any]] = []
        while len(rows) < 205:
            table = consumer.poll_arrow(max_records=most, timeout_ms=READ_SECONDS * 1000)
            assert 0 < len(table) <= most
            rows += table.to_pylist()
            assert consumer.position(only(topic)) == len(rows)
        assert len(consumer.poll_arrow(timeout_ms=1)) == 0
        consumer.seek(only(topic), 0)
        columns: dict[str, list[Any]] = {}
        while len(columns.get("offset", [])) < 205:
            part = consumer.poll_numpy(max_records=most, timeout_ms=READ_SECONDS * 1000)
            assert 0 < len(part["offset"]) <= most
            for name, column in part.items():
                columns.setdefault(name, []).extend(column)
        assert len(consumer.poll_numpy(timeout_ms=1)["value"]) == 0
    assert [(row["topic"], row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        (one.topic, one.partition, one.offset, one.key, one.value) for one in expected
    ]
    assert columns["value"] == [one.value for one in expected]
    assert columns["timestamp"] == [one.timestamp for one in expected]
    assert columns["headers"] == [one.headers for one in expected]


def test_columns_when_several_partitions_have_records_then_tell_which(cluster: Cluster, topic: str) -> None:
    three = cluster.create_topic(f"{topic}-3"[-200:], partitions=3)
    for partition in range(3):
        send_singly(cluster, three, partition + 1, partition)
    found: list[tuple[int, int]] = []
    with consuming(cluster.bootstrap, *(only(three, number) for number in range(3))) as consumer:
        deadline = time.monotonic() + READ_SECONDS
        while len(found) < 6:
            assert time.monotonic() < deadline
            columns = consumer.poll_numpy(timeout_ms=1000)
            assert set(columns["topic"].tolist()) <= {three}
            found += zip(columns["partition"].tolist(), columns["offset"].tolist(), strict=True)
    assert sorted(found) == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]


def test_iteration_moves_record_by_record_and_ends_after_its_timeout(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, records=3)
    with consuming(cluster.bootstrap, only(topic), consumer_timeout_ms=300) as consumer:
        for number, record in enumerate(consumer):
            assert (record.offset, consumer.position(only(topic))) == (number, number + 1)
        assert number == 19
        consumer.seek(only(topic), 5)
        assert next(consumer).offset == 5
        consumer.seek(only(topic), 2)
        assert next(consumer).offset == 2
        assert polled(consumer, 1)[0].offset == 3


def test_deserializers_make_keys_and_values(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, records=1)
    options = {"key_deserializer": bytes.decode, "value_deserializer": len}
    with (
        pytest.warns(DeprecationWarning, match="deserializer"),
        consuming(cluster.bootstrap, only(topic), **options) as consumer,
    ):
        first, second = polled(consumer, 2)[:2]
    assert (first.key, first.value, second.key) == ("key", 3, "0")


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_records_of_transactions_are_those_of_kafka_python(
    cluster: Cluster, topic: str, isolation: str
) -> None:
    end = transact(cluster, topic)
    cluster.wait_for_end(topic, end)
    expected = cluster.consume(topic, isolation=isolation)
    with consuming(cluster.bootstrap, only(topic), isolation_level=isolation) as consumer:
        records = polled(consumer, len(expected), 1)
        deadline = time.monotonic() + READ_SECONDS
        while consumer.position(only(topic)) < end:
            assert time.monotonic() < deadline
            assert consumer.poll(50) == {}
    assert [(one.offset, one.value) for one in records] == [(one.offset, one.value) for one in expected]


# Positions


def test_pause_when_data_was_fetched_then_it_comes_after_resume(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    with consuming(cluster.bootstrap, only(topic)) as consumer:
        assert polled(consumer, 1, 1)[0].offset == 0
        consumer.pause(only(topic))
        assert consumer.paused() == {only(topic)}
        assert consumer.poll(100) == {}
        consumer.resume(only(topic))
        assert polled(consumer, 1, 1)[0].offset == 1


def test_seek_when_data_was_fetched_then_other_data_comes(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    with consuming(cluster.bootstrap, only(topic)) as consumer:
        for offset in (0, 100, 3, 3):
            consumer.seek(only(topic), offset)
            assert [record.offset for record in polled(consumer, 2, 2)] == [offset, offset + 1]
        consumer.seek_to_end()
        assert consumer.position(only(topic)) == 205
        assert consumer.poll(50) == {}
        send_singly(cluster, topic, 1)
        assert polled(consumer, 1)[0].offset == 205


def test_offsets_are_those_that_the_broker_knows(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    partition = only(topic)
    with consuming(cluster.bootstrap, partition) as consumer:
        timestamp = polled(consumer, 3)[1].timestamp
        assert consumer.beginning_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 3}
        assert consumer.offsets_for_times({partition: timestamp})[partition].offset <= 1
        assert consumer.partitions_for_topic(topic) == {0}
        assert topic in consumer.topics()


def test_an_offset_out_of_range_is_reset_or_raised(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    with consuming(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([only(topic)])
        consumer.seek(only(topic), 99)
        assert polled(consumer, 1)[0].offset == 0
        assert list(consumer.take_offset_resets()) == [(only(topic), 99, 0)]
    with consuming(cluster.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([only(topic)])
        with pytest.raises(kafka.errors.NoOffsetForPartitionError):
            consumer.poll(READ_SECONDS * 1000)
        consumer.seek(only(topic), 99)
        for _ in range(2):
            with pytest.raises(kafka.errors.OffsetOutOfRangeError):
                consumer.poll(READ_SECONDS * 1000)
        consumer.seek(only(topic), 2)
        assert polled(consumer, 1)[0].offset == 2


def test_an_offset_that_no_request_can_have_is_raised_until_a_seek(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    with consuming(cluster.bootstrap, only(topic), budget=MemoryBudget("8m")) as consumer:
        consumer.seek(only(topic), 2**63)
        for _ in range(2):  # and not once, with silence after it
            with pytest.raises(OverflowError):
                polled(consumer, 1)
        consumer.seek(only(topic), 0)
        assert polled(consumer, 1)[0].offset == 0


def test_a_damaged_batch_stops_its_partition_until_a_seek_after_it(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    cluster.consume(topic)
    damage(cluster, topic, 1, at=-1)
    with consuming(cluster.bootstrap, only(topic)) as consumer:
        assert polled(consumer, 1)[0].offset == 0
        for _ in range(2):
            with pytest.raises(CorruptRecordError, match="CRC mismatch") as caught:
                consumer.poll(READ_SECONDS * 1000)
        consumer.seek(only(topic), caught.value.next_offset)
        assert polled(consumer, 1)[0].offset == 2


def test_a_topic_that_was_made_again_is_read_from_the_position(cluster: Cluster, topic: str) -> None:
    """By its new id, which the consumer learns of the metadata."""
    with consuming(cluster.bootstrap, only(topic), **EARLIEST) as consumer:
        send_singly(cluster, topic, 5)
        polled(consumer, 5)
        cluster.delete_topic(topic)
        assert consumer.poll(100) == {}
        cluster.create_topic(topic)
        send_singly(cluster, topic, 7)
        assert [record.offset for record in polled(consumer, 2)] == [5, 6]


# Groups


class Told(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.assigned: list[set[int]] = []
        self.revoked: list[set[int]] = []

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned.append({one.partition for one in assigned})

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.revoked.append({one.partition for one in revoked})


def test_consumers_of_a_group_share_partitions_and_continue_at_what_was_committed(
    cluster: Cluster, topic: str
) -> None:
    four = cluster.create_topic(f"{topic}-4"[-200:], partitions=4)
    options = {**EARLIEST, "group_id": four, "heartbeat_interval_ms": 50}
    told = Told()
    came: list[tuple[int, int]] = []
    with ExitStack() as stack:
        consumers = [stack.enter_context(consuming(cluster.bootstrap, **options))]

        def poll_until(is_done: Callable[[], bool]) -> None:
            deadline = time.monotonic() + READ_SECONDS
            while not is_done():
                assert time.monotonic() < deadline, came
                for consumer in consumers:
                    found = [one for records in consumer.poll(20).values() for one in records]
                    came.extend((record.partition, record.offset) for record in found)
                    if found:
                        consumer.commit()

        assert consumers[0].partitions_for_topic(four) == {0, 1, 2, 3}
        consumers[0].subscribe([four], listener=told)
        for partition in range(4):
            send_singly(cluster, four, 5, partition)
        poll_until(lambda: len(came) == 20)
        assert told.assigned[-1] == {0, 1, 2, 3}
        consumers.append(stack.enter_context(consuming(cluster.bootstrap, **options)))
        consumers[1].subscribe([four])
        poll_until(lambda: all(len(one.assignment()) == 2 for one in consumers))
        assert told.revoked
        for partition in range(4):
            send_singly(cluster, four, 5, partition)
        poll_until(lambda: len(came) >= 40)
        assert consumers[0].committed(next(iter(consumers[0].assignment()))) == 10
    assert sorted(came) == [(partition, offset) for partition in range(4) for offset in range(10)]


def test_commits_are_those_of_the_positions_or_of_given_offsets(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 5)
    done = []
    with consuming(cluster.bootstrap, only(topic), group_id=topic, **EARLIEST) as consumer:
        polled(consumer, 2, 2)
        consumer.commit()
        assert consumer.committed(only(topic)) == 2
        consumer.commit({only(topic): OffsetAndMetadata(4, "text", -1)})
        assert consumer.committed(only(topic), metadata=True).metadata == "text"
        consumer.commit_async(callback=lambda offsets, result: done.append(offsets))
        deadline = time.monotonic() + READ_SECONDS
        while not done:
            assert time.monotonic() < deadline
            consumer.poll(10, 1)
        assert consumer.committed(only(topic)) == 2
        consumer.commit({only(topic): OffsetAndMetadata(3, "", -1)})
    with consuming(cluster.bootstrap, group_id=topic, **EARLIEST) as consumer:
        consumer.assign([only(topic)])
        assert polled(consumer, 1)[0].offset == 3


def test_close_when_auto_commit_is_on_then_commits_what_was_returned(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    options: dict[str, Any] = {**PROMPT, "group_id": topic, "auto_offset_reset": "earliest"}
    with Consumer(bootstrap_servers=cluster.bootstrap, **options) as consumer:
        consumer.assign([only(topic)])
        polled(consumer, 2, 1)
    with Consumer(bootstrap_servers=cluster.bootstrap, **options) as consumer:
        assert consumer.committed(only(topic)) == 2
    with pytest.raises(kafka.errors.IllegalStateError, match="closed"):
        consumer.poll()


# Memory


def test_a_budget_bounds_what_was_fetched_and_all_records_come(cluster: Cluster, topic: str) -> None:
    """Batches of 10 kB in four partitions, and half of the budget for a request: one batch each."""
    four = cluster.create_topic(f"{topic}-4"[-200:], partitions=4)
    count = 40
    send_large(cluster, four, partitions=4, count=count)
    budget = MemoryBudget(40_000)
    partitions = [only(four, number) for number in range(4)]
    options = {"max_partition_fetch_bytes": 15_000, "budget": budget}
    with (
        consuming(cluster.bootstrap, *partitions, **options) as one,
        consuming(cluster.bootstrap, *partitions[:1], **options) as other,
    ):
        found: list[ConsumerRecord] = []
        deadline = time.monotonic() + READ_SECONDS
        while len(found) < count or other.position(partitions[0]) < count // 4:
            assert time.monotonic() < deadline
            found += [record for records in one.poll(20, 3).values() for record in records]
            other.poll(20, 1)
    assert sorted((record.partition, record.offset) for record in found) == [
        (partition, offset) for partition in range(4) for offset in range(count // 4)
    ]
    assert 10_000 < budget.peak_bytes <= 40_000 + 2 * 11_000
    assert budget.held_bytes == 0


def test_a_budget_when_paused_partitions_hold_all_of_it_then_others_get_it(
    cluster: Cluster, topic: str
) -> None:
    two = cluster.create_topic(f"{topic}-2"[-200:], partitions=2)
    send_large(cluster, two, partitions=2, count=10)
    budget = MemoryBudget(12_000)
    partitions = [only(two, number) for number in range(2)]
    with consuming(cluster.bootstrap, *partitions, max_poll_records=1, budget=budget) as consumer:
        seen = polled(consumer, 1)
        consumer.pause(partitions[seen[0].partition])
        seen += [record for record in polled(consumer, 5) if record.partition != seen[0].partition]
        consumer.resume(*partitions)
        seen += polled(consumer, 10 - len(seen))
    assert sorted((record.partition, record.offset) for record in seen) == [
        (partition, offset) for partition in range(2) for offset in range(5)
    ]


def test_a_budget_when_paused_partitions_of_another_consumer_hold_all_of_it_then_this_one_gets_it(
    cluster: Cluster, topic: str
) -> None:
    two = cluster.create_topic(f"{topic}-2"[-200:], partitions=2)
    send_large(cluster, two, partitions=2, count=10)
    budget = MemoryBudget(12_000)
    options = {"max_poll_records": 1, "max_partition_fetch_bytes": 5000, "budget": budget}
    with (
        consuming(cluster.bootstrap, only(two), **options) as first,
        consuming(cluster.bootstrap, only(two, 1), **options) as second,
    ):
        polled(first, 1)
        deadline = time.monotonic() + READ_SECONDS
        while budget.held_bytes < 10_000:  # until the next batch has come
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.pause(only(two))
        found: list[ConsumerRecord] = []
        while len(found) < 5:
            assert time.monotonic() < deadline, found
            assert not first.poll(20)
            found += [record for records in second.poll(20).values() for record in records]
        first.resume(only(two))
        assert [record.offset for record in polled(first, 4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("with_sessions", [True, False])
def test_a_budget_of_few_batches_when_partitions_are_many_then_all_of_them_come_in_turns(
    cluster: Cluster, topic: str, with_sessions: bool
) -> None:
    """A response has a batch or two. A partition that has more of them does not come before the others."""
    count, partitions = 120, 30
    many = cluster.create_topic(f"{topic}-{partitions}"[-200:], partitions=partitions)
    send_large(cluster, many, partitions=partitions, count=count)
    budget = MemoryBudget(40_000)
    options = {"enable_incremental_fetch_sessions": with_sessions, "budget": budget}
    assigned = [only(many, number) for number in range(partitions)]
    with consuming(cluster.bootstrap, *assigned, max_poll_records=5, **options) as consumer:
        found = polled(consumer, count)
    assert sorted((record.partition, record.offset) for record in found) == [
        (partition, offset) for partition in range(partitions) for offset in range(count // partitions)
    ]
    assert {record.partition for record in found[: 2 * partitions]} == set(range(partitions))
    assert budget.peak_bytes <= 40_000 + 11_000
    assert budget.held_bytes == 0


def test_a_budget_when_nobody_polls_then_has_no_bytes_of_a_request(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    budget = MemoryBudget("1m")
    with consuming(cluster.bootstrap, only(topic), budget=budget) as consumer:
        polled(consumer, 3)
        deadline = time.monotonic() + READ_SECONDS
        while budget.held_bytes:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        send_singly(cluster, topic, 1)
        assert polled(consumer, 1)[0].offset == 3


# The beginning and the end


@pytest.mark.parametrize(
    ("topics", "options"), [(["no topic"], {}), ([], {"group_id": "g", "heartbeat_interval_ms": 60_000})]
)
def test_a_consumer_when_it_is_refused_then_leaves_no_threads(
    cluster: Cluster, topics: list[str], options: dict[str, Any]
) -> None:
    before = set(threading.enumerate())
    with pytest.raises((ValueError, kafka.errors.KafkaConfigurationError)):
        Consumer(*topics, bootstrap_servers=cluster.bootstrap, **options)
    for thread in set(threading.enumerate()) - before:
        thread.join(READ_SECONDS)
        assert not thread.is_alive()


def test_client_id_when_it_is_none_then_records_come_as_with_any_other(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 1)
    with consuming(cluster.bootstrap, only(topic), client_id=None) as consumer:
        assert polled(consumer, 1)[0].offset == 0


class Closable(Deserializer):
    """Counts how often it was closed."""

    closed = 0

    def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.closed += 1


def test_deserializers_when_a_consumer_is_closed_twice_then_are_closed_once(cluster: Cluster) -> None:
    deserializer = Closable()
    with Consumer(bootstrap_servers=cluster.bootstrap, value_deserializer=deserializer) as consumer:
        consumer.close()
    assert deserializer.closed == 1
