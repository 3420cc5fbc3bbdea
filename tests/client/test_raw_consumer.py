"""What a RawConsumer hands out is what the broker's log has, batch by batch (KIP-712)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import kafka.errors
import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

import kafkafmt as kf
from client.cluster import Cluster
from client.raw_reading import READ_SECONDS, batch_of, polled, read_records, reading
from client.sending import ANSWER_SECONDS, json_text
from kafkafmt.net import CorruptRecordError, Producer, RawConsumer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("net")]

# A leader whose poll ends between its JoinGroup and its SyncGroup loses its assignment (kafka-python 3.0.12). One that
# is longer than its wait for metadata does not end there.
GROUP_POLL_MS = 500
CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


def fill(cluster: Cluster, topic: str, *, records: int = 40) -> None:
    """Batches of every codec, one of a single record, the next of many."""
    for codec in CODECS:
        with Producer(
            bootstrap_servers=cluster.bootstrap, compression_type=codec, linger_ms=1000, batch_size=10_000
        ) as producer:
            producer.send(topic, b"one", key=b"key", headers=[("n", b"1")])
            producer.flush(ANSWER_SECONDS)
            for number in range(records):
                producer.send(topic, json_text(number), key=b"%d" % number)


def send_singly(cluster: Cluster, topic: str, count: int, partition: int = 0) -> None:
    """A batch a record."""
    with Producer(bootstrap_servers=cluster.bootstrap, batch_size=0) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)


def segment_of(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    (segment,) = (cluster.broker.log_dir / f"{topic}-{partition}").glob("*.log")
    return segment


def transact(cluster: Cluster, topic: str) -> int:
    """Transactions of two producers among each other, some aborted, and records outside of any; returns the end."""
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                Producer(bootstrap_servers=cluster.bootstrap, transactional_id=f"{topic}-{name}")
            )
            for name in "ab"
        )
        plain = stack.enter_context(Producer(bootstrap_servers=cluster.bootstrap))

        def send(producer: Producer, *values: bytes) -> None:
            for value in values:
                producer.send(topic, value, partition=0)
            producer.flush(ANSWER_SECONDS)

        first.init_transactions()
        second.init_transactions()
        first.begin_transaction()
        send(first, b"aborted 1", b"aborted 2")
        second.begin_transaction()
        send(second, b"committed 3")
        send(plain, b"plain 4")
        send(first, b"aborted 5")
        first.abort_transaction()
        cluster.wait_for_end(topic, 6)
        first.begin_transaction()
        send(first, b"committed 7")
        second.commit_transaction()
        cluster.wait_for_end(topic, 8)
        second.begin_transaction()
        send(second, b"aborted 9")
        first.commit_transaction()
        cluster.wait_for_end(topic, 10)
        first.begin_transaction()
        send(first, b"aborted 11")
        second.abort_transaction()
        cluster.wait_for_end(topic, 12)
        first.abort_transaction()
        cluster.wait_for_end(topic, 13)
        send(plain, b"plain 14")
    return 14


# What comes


def test_polled_values_are_the_batches_of_the_log_byte_for_byte(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    stored = cluster.batches(topic)
    assert {batch.codec for batch in stored} == set(kf.Codec)
    with reading(cluster.bootstrap, topic) as consumer:
        assert [bytes(batch_of(record)) for record in polled(consumer)] == [bytes(one) for one in stored]


def test_runs_are_the_same_batches_end_to_end(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    with reading(cluster.bootstrap, topic) as consumer:
        (partition,) = consumer.assignment()
        end = consumer.end_offsets([partition])[partition]
        runs = []
        while (position := consumer.position(partition)) < end:
            assert not runs or position == runs[-1].index["last_offset"][-1] + 1
            runs += consumer.poll_runs(READ_SECONDS * 1000).get(partition, [])
    assert all(
        one["position"] + one["size"] == other["position"]
        for run in runs
        for one, other in pairwise(run.index)
    )
    assert (
        b"".join(run.batch(number) for run in runs for number in range(len(run)))
        == segment_of(cluster, topic).read_bytes()
    )


def test_fetched_bytes_when_batches_are_handed_out_singly_then_are_those_of_the_others(
    cluster: Cluster, topic: str
) -> None:
    """All of them are one fetch; what is paused meanwhile is kept."""
    fill(cluster, topic)
    sizes = [batch.size_in_bytes for batch in cluster.batches(topic)]
    with reading(cluster.bootstrap, topic) as consumer:
        (partition,) = consumer.assignment()
        assert consumer.fetched_bytes == 0
        for number in range(1, len(sizes) + 1):
            consumer.resume(partition)
            consumer.poll_runs(READ_SECONDS * 1000, 1)
            consumer.pause(partition)
            assert consumer.poll_runs() == {}
            assert consumer.fetched_bytes == sum(sizes[number:])


def test_a_position_within_a_batch_trims_the_first_one_alone(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, records=3)
    expected = cluster.consume(topic)
    for offset in range(len(expected)):
        assert read_records(cluster.bootstrap, topic, offset) == expected[offset:]


def test_a_position_within_a_batch_without_trimming_gives_that_batch_whole(
    cluster: Cluster, topic: str
) -> None:
    fill(cluster, topic, records=3)
    stored = cluster.batches(topic)
    for offset in range(stored[-1].last_offset + 1):
        with reading(cluster.bootstrap, topic, offset, trim_first_batch=False) as consumer:
            values = [bytes(record.value) for record in polled(consumer)]
        assert values == [bytes(batch) for batch in stored if batch.last_offset >= offset]


def test_where_there_is_nothing_nothing_comes(cluster: Cluster, topic: str) -> None:
    with reading(cluster.bootstrap, topic) as consumer:
        assert consumer.poll(100) == {}
        assert consumer.poll_runs(100) == {}
        assert consumer.position(TopicPartition(topic, 0)) == 0


# Transactions


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_records_of_transactions_are_those_that_another_consumer_gives(
    cluster: Cluster, topic: str, isolation: str
) -> None:
    end = transact(cluster, topic)
    cluster.wait_for_end(topic, end)
    expected = cluster.consume(topic, isolation=isolation)
    assert any(record.value.startswith(b"aborted") for record in expected) == (
        isolation == "read_uncommitted"
    )
    for offset in range(end):
        found = read_records(cluster.bootstrap, topic, offset, isolation_level=isolation)
        assert found == [record for record in expected if record.offset >= offset]


def test_with_control_batches_the_bytes_of_the_segment_come(cluster: Cluster, topic: str) -> None:
    transact(cluster, topic)
    with reading(cluster.bootstrap, topic, keep_control_batches=True) as consumer:
        values = [record.value for record in polled(consumer)]
    assert b"".join(values) == segment_of(cluster, topic).read_bytes()


def test_where_all_is_left_out_the_position_moves_on_all_the_same(cluster: Cluster, topic: str) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted").get(ANSWER_SECONDS)
        producer.abort_transaction()
        cluster.wait_for_end(topic, 2)
    with reading(cluster.bootstrap, topic, isolation_level="read_committed") as consumer:
        assert list(polled(consumer, end=2)) == []


# Positions


def test_max_poll_records_counts_batches_and_commits_fall_between_them(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic)
    stored = cluster.batches(topic)
    group: dict[str, Any] = {"group_id": topic, "enable_auto_commit": False, "max_poll_records": 2}
    partition = TopicPartition(topic, 0)
    came: list[bytes] = []
    while len(came) < len(stored):
        with reading(cluster.bootstrap, topic, **group) as consumer:
            consumer.seek(partition, consumer.committed(partition) or 0)
            records = consumer.poll(READ_SECONDS * 1000)[partition]
            assert len(records) <= 2
            came += [bytes(record.value) for record in records]
            consumer.commit()
            assert consumer.committed(partition) == stored[len(came) - 1].last_offset + 1
    assert came == [bytes(batch) for batch in stored]


def test_iterating_gives_the_same_and_moves_batch_by_batch(cluster: Cluster, topic: str) -> None:
    fill(cluster, topic, records=5)
    stored = cluster.batches(topic)
    partition = TopicPartition(topic, 0)
    with reading(cluster.bootstrap, topic) as consumer:
        for batch, record in zip(stored, consumer, strict=False):
            assert bytes(record.value) == bytes(batch)
            assert consumer.position(partition) == batch.last_offset + 1


def test_topics_when_their_ids_are_pinned_then_are_fetched_by_these_ids_alone(
    cluster: Cluster, topic: str
) -> None:
    """Topics join and leave the fetch session, and one of them changes its id in it."""
    names = [topic, cluster.create_topic(f"{topic}-2"[-200:])]
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:
        ids = {one["name"]: UUID(str(one["topic_id"])) for one in admin.describe_topics(names)}
    partitions = [TopicPartition(name, 0) for name in names]
    with RawConsumer(bootstrap_servers=cluster.bootstrap, fetch_max_wait_ms=20) as consumer:

        def polled_topics(*wanted: str) -> set[str]:
            """Of polls until those have come, and of ten more: the second behind an error begins a session anew."""
            found: set[str] = set()
            deadline, more = time.monotonic() + READ_SECONDS, 10
            while more:
                assert time.monotonic() < deadline, found
                found |= {partition.topic for partition in consumer.poll(50)}
                more -= found.issuperset(wanted)
            return found

        consumer.assign(partitions)
        consumer.seek_to_beginning()
        for name, topic_id in ids.items():
            consumer.pin_topic_id(name, topic_id)
        for name in names:
            send_singly(cluster, name, 3)
        assert polled_topics(*names) == set(names)
        consumer.pause(partitions[1])
        for name in names:
            send_singly(cluster, name, 3)
        assert polled_topics(names[0]) == {names[0]}
        consumer.pin_topic_id(names[1], uuid4())
        consumer.resume(partitions[1])
        deadline = time.monotonic() + READ_SECONDS
        while not (unknown := consumer.take_unknown_topics()):
            assert time.monotonic() < deadline
            assert polled_topics() == set()
        assert unknown == {names[1]}
        assert consumer.position(partitions[1]) == 3
        consumer.pin_topic_id(names[1], ids[names[1]])
        assert polled_topics(names[1]) == {names[1]}
        assert consumer.take_fetched_by_name() == set()
        consumer.pin_topic_id(names[1], None)
        for name in names:
            send_singly(cluster, name, 3)
        assert polled_topics(*names) == set(names)
        assert consumer.take_fetched_by_name() == {names[0]}


def test_two_consumers_of_a_group_share_the_batches(cluster: Cluster, topic: str) -> None:
    four = cluster.create_topic(f"{topic}-4"[-200:], partitions=4)
    for partition in range(4):
        send_singly(cluster, four, 5, partition)
    options: dict[str, Any] = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": four,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "heartbeat_interval_ms": 50,
        "fetch_max_wait_ms": 20,
    }
    came: list[tuple[int, int]] = []

    def poll(consumer: RawConsumer, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READ_SECONDS
        while not until():
            assert time.monotonic() < deadline
            for one in consumers:
                polled = one.poll(GROUP_POLL_MS)
                came.extend(
                    (record.partition, record.offset) for records in polled.values() for record in records
                )
                if polled:
                    one.commit()

    with ExitStack() as stack:
        consumers = [RawConsumer(four, **options)]
        stack.callback(consumers[0].close)
        # kafka-python may keep the empty assignment that its leader made before it knew the partitions.
        assert consumers[0].partitions_for_topic(four) == {0, 1, 2, 3}
        poll(consumers[0], lambda: len(came) == 20)
        consumers.append(RawConsumer(four, **options))
        stack.callback(consumers[1].close)
        poll(consumers[1], lambda: all(len(one.assignment()) == 2 for one in consumers))
        for partition in range(4):
            send_singly(cluster, four, 5, partition)
        poll(consumers[1], lambda: len(came) >= 40)
    assert sorted(came) == [(partition, offset) for partition in range(4) for offset in range(10)]


# Damage


def damage(cluster: Cluster, topic: str, number: int, at: int) -> None:
    """Flip a bit of a batch in the log, in the byte `at`, counted from its end where negative."""
    batch = cluster.batches(topic)[number]
    with segment_of(cluster, topic).open("r+b") as file:
        file.seek(batch.position + (at if at >= 0 else batch.size_in_bytes + at))
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x40]))


@pytest.mark.parametrize("at", [-1, 20], ids=["records", "crc"])
@pytest.mark.parametrize("number", [0, 2, 4], ids=["first", "middle", "last"])
def test_a_damaged_batch_stops_its_partition_alone_until_a_seek_behind_it(
    cluster: Cluster, topic: str, number: int, at: int
) -> None:
    """Batch 4 is the last of them."""
    send_singly(cluster, topic, 5)
    other = cluster.create_topic(f"{topic}-other"[-200:])
    send_singly(cluster, other, 3)
    expected = cluster.consume(topic)
    damage(cluster, topic, number, at)
    came: dict[str, list[int]] = {topic: [], other: []}
    errors = []
    partition = TopicPartition(topic, 0)
    with reading(cluster.bootstrap, topic) as consumer:
        consumer.assign([partition, TopicPartition(other, 0)])
        consumer.seek_to_beginning()
        deadline = time.monotonic() + READ_SECONDS
        while len(came[other]) < 3 or consumer.position(partition) < 5:
            assert time.monotonic() < deadline, (came, errors)
            try:
                for records in consumer.poll(100).values():
                    for record in records:
                        came[record.topic].append(record.offset)
            except CorruptRecordError as error:
                errors.append(error)
                if len(errors) == 2:  # it stays where it is until then
                    consumer.seek(partition, error.next_offset)
    assert came == {topic: [offset for offset in range(5) if offset != number], other: [0, 1, 2]}
    assert len(errors) == 2
    for error in errors:
        assert error.topic_partition == (topic, 0)
        assert (error.offset, error.base_offset, error.last_offset) == (number, number, number)
        assert error.next_offset == number + 1
        assert isinstance(error, kafka.errors.CorruptRecordError)
        assert isinstance(error, kf.CorruptRecordError)
        assert f"{topic}-0 at offset {number}: CRC mismatch" in str(error)
    assert [record.offset for record in expected] == list(range(5))


def test_damage_is_handed_out_without_check_crcs(cluster: Cluster, topic: str) -> None:
    send_singly(cluster, topic, 3)
    damage(cluster, topic, 1, at=-1)
    with reading(cluster.bootstrap, topic, check_crcs=False) as consumer:
        batches = [batch_of(record) for record in polled(consumer)]
    assert [batch.is_valid() for batch in batches] == [True, False, True]


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fetch_raw_bytes": False}, "fetch_raw_bytes: expected True, found False"),
        ({"value_deserializer": str}, "value_deserializer: expected None"),
        ({"key_deserializer": str}, "key_deserializer: expected None"),
    ],
)
def test_options_that_mean_nothing_for_batches_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RawConsumer("topic", bootstrap_servers="127.0.0.1:1", **options)
