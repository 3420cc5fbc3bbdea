"""From cluster to cluster: an ordinary consumer reads in the target what it reads in the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, NewPartitions, ResourceType

import kafkafmt as kf
from client.cluster import Cluster
from mirror.reading import Reader, batches_of, end_of, records_section
from mirror.running import QUICKLY, SECONDS, Mirror, address, wait_until
from mirror.scenarios import PARTITIONS, SCENARIOS, Direction, Feed

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

# What MirrorMaker leaves to the target, too: with its timestamp type the target would stamp the records anew.
NOT_COPIED = {"message.timestamp.type"}
MakeMirror = Callable[..., Mirror]


@pytest.fixture(scope="module")
def readers(direction: Direction, mirrored: dict[str, Any]) -> Iterator[tuple[Reader, Reader]]:
    """Consumers of source and target."""
    with Reader(direction.source.bootstrap) as source, Reader(direction.target.bootstrap) as target:
        yield source, target


def carried(direction: Direction, source: Reader, topic: str, partition: int) -> list[kf.RecordBatch]:
    """The batches of the source whose records a committed reader sees."""
    offsets = source.by_offset(topic, partition).keys()
    batches = batches_of(direction.source.broker.log_dir, topic, partition)
    return [batch for batch in batches if not batch.is_control and any(r.offset in offsets for r in batch)]


def is_to_be_opened(batch: kf.RecordBatch) -> str | None:
    """What for."""
    if batch.count != batch.last_offset - batch.base_offset + 1:
        return "gaps"
    return "timestamp type" if batch.timestamp_type == kf.TimestampType.LOG_APPEND_TIME else None


@pytest.mark.parametrize(("scenario", "partition"), PARTITIONS)
def test_consume_when_it_was_mirrored_then_gives_what_the_source_gives(
    direction: Direction, readers: tuple[Reader, Reader], scenario: str, partition: int
) -> None:
    source, target = readers
    topic = direction.topic(scenario)
    wanted = [read._replace(timestamp_type=1) for read in source.records(topic, partition)]
    assert target.records(topic, partition) == wanted


@pytest.mark.parametrize(("scenario", "partition"), PARTITIONS)
def test_batches_when_they_passed_raw_then_are_the_same_bytes_behind_their_headers(
    direction: Direction, readers: tuple[Reader, Reader], scenario: str, partition: int
) -> None:
    topic = direction.topic(scenario)
    sent = carried(direction, readers[0], topic, partition)
    arrived = batches_of(direction.target.broker.log_dir, topic, partition)
    described = [(batch.count, batch.codec, batch.max_timestamp) for batch in sent]
    assert [(batch.count, batch.codec, batch.max_timestamp) for batch in arrived] == described
    for before, after in zip(sent, arrived, strict=True):
        if is_to_be_opened(before) is None:
            assert records_section(after) == records_section(before)
            assert after.base_timestamp == before.base_timestamp
        assert not after.is_transactional


def test_summary_tells_what_went_and_what_was_opened(
    direction: Direction, readers: tuple[Reader, Reader], mirrored: dict[str, Any]
) -> None:
    batches = [
        batch
        for scenario, partition in PARTITIONS
        for batch in carried(direction, readers[0], direction.topic(scenario), partition)
    ]
    opened = Counter(filter(None, map(is_to_be_opened, batches)))
    assert set(opened) == {"gaps", "timestamp type"}
    assert {reason: count for reason, count in mirrored["opened"].items() if count} == opened
    assert mirrored["batches"] == len(batches)
    assert mirrored["records"] == sum(batch.count for batch in batches)
    assert mirrored["bytes"] > 0
    assert (mirrored["skipped"], mirrored["stopped"], mirrored["possibly_doubled"]) == ([], [], 0)


def test_summary_tells_that_nothing_is_left_but_what_no_committed_reader_sees(
    direction: Direction, mirrored: dict[str, Any]
) -> None:
    lagging = {partition for partition, lag in mirrored["lag"].items() if lag}
    assert lagging <= {f"{direction.topic('open-transaction')}-0"}


def test_mirror_when_nothing_came_since_then_moves_nothing(
    direction: Direction, mirrored: dict[str, Any], mirror: MakeMirror
) -> None:
    with mirror(address(direction.source, direction.pattern), address(direction.target), "--once") as again:
        second = again.summary()
    assert (second["batches"], second["records"], second["possibly_doubled"]) == (0, 0, 0)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_topic_when_it_was_created_then_has_the_partitions_and_configuration_of_its_source(
    direction: Direction, mirrored: dict[str, Any], scenario: str
) -> None:
    topic = direction.topic(scenario)
    source, target = (
        AdminClient({"bootstrap.servers": server.bootstrap})
        for server in (direction.source, direction.target)
    )
    wanted = {name: value for name, value in configuration(source, topic).items() if name not in NOT_COPIED}
    assert configuration(target, topic) == wanted
    assert partition_count(target, topic) == partition_count(source, topic) == SCENARIOS[scenario].partitions


def configuration(admin: AdminClient, topic: str) -> dict[str, str]:
    """What was set for a topic."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    dynamic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: entry.value for name, entry in entries.items() if entry.source == dynamic}


def partition_count(admin: AdminClient, topic: str) -> int:
    return len(admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions)


# While it follows


def test_follow_when_topics_and_partitions_appear_then_are_mirrored_too(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(f"{topic}-1")
    feed = Feed(old)
    logs = new.broker.log_dir
    with (
        mirror(address(old, f"{topic}-[0-9]"), address(new), *QUICKLY) as running,
        feed.producer("lz4") as producer,
    ):
        feed.send(producer, f"{topic}-1", feed.orders.take(20))
        wait_until(lambda: end_of(logs, f"{topic}-1") == 20, running)
        old.create_topic(f"{topic}-2", 3)
        feed.send(producer, f"{topic}-2", feed.orders.take(30, partition=2))
        wait_until(lambda: end_of(logs, f"{topic}-2", 2) == 30, running)
        admin = AdminClient({"bootstrap.servers": old.bootstrap})
        admin.create_partitions([NewPartitions(f"{topic}-1", 2)])[f"{topic}-1"].result(SECONDS)
        wait_until(lambda: end_of(old.broker.log_dir, f"{topic}-1", 1) == 0)
        with feed.producer("zstd") as later:  # the first one does not know the partition yet
            feed.send(later, f"{topic}-1", feed.orders.take(7, partition=1))
        wait_until(lambda: end_of(logs, f"{topic}-1", 1) == 7, running)
        summary = running.stop()
    assert summary["records"] == 57


def test_stop_when_it_follows_then_the_next_run_goes_on_where_a_batch_begins(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer("gzip") as producer, mirror(address(old, topic), address(new), *QUICKLY) as running:
        for size in (10, 1, 30):
            feed.send(producer, topic, feed.orders.take(size))
        wait_until(lambda: end_of(new.broker.log_dir, topic) == 41, running)
        first = running.stop()
        ends = {batch.last_offset + 1 for batch in old.batches(topic)}
        assert {commit.offset for commit in old.tap.commits if commit.topic == topic} <= ends | {0}
        for size in (5, 6):
            feed.send(producer, topic, feed.orders.take(size))
        running.start()
        wait_until(lambda: end_of(new.broker.log_dir, topic) == 52, running)
        second = running.stop()
    assert [first["batches"], second["batches"]] == [3, 2]
    assert first["possibly_doubled"] == second["possibly_doubled"] == 0
    with Reader(old.bootstrap) as source, Reader(new.bootstrap) as target:
        assert target.by_offset(topic) == source.by_offset(topic)


def test_mirror_when_the_target_stamps_the_records_itself_then_batches_pass_raw(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    for cluster in (old, new):
        cluster.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    feed = Feed(old)
    with feed.producer("snappy") as producer:
        feed.send(producer, topic, feed.orders.take(50))
    with mirror(address(old, topic), address(new), "--once") as running:
        assert not any(running.summary()["opened"].values())
    sections = [[records_section(batch) for batch in cluster.batches(topic)] for cluster in (old, new)]
    assert sections[0] == sections[1] != []


def test_mirror_when_the_target_takes_smaller_batches_then_splits_and_counts_them(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    limit = 20_000
    old.create_topic(topic)
    new.create_topic(topic, config={"max.message.bytes": limit})
    feed = Feed(old)
    with feed.producer("lz4") as producer:
        feed.send(producer, topic, [feed.orders.noise(5_000) for _ in range(30)])
        feed.send(producer, topic, feed.orders.take(9))
    with mirror(address(old, topic), address(new), "--once") as running:
        summary = running.summary()
    assert summary["opened"]["size"] == 1
    assert max(batch.size_in_bytes for batch in new.batches(topic)) <= limit
    with Reader(old.bootstrap) as source, Reader(new.bootstrap) as target:
        assert target.by_offset(topic) == source.by_offset(topic)


def test_mirror_when_one_record_is_too_large_then_stops_that_partition_and_carries_the_others(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic, 2)
    new.create_topic(topic, 2, {"max.message.bytes": 20_000})
    feed = Feed(old)
    with feed.producer("lz4") as producer:
        for partition in (0, 1):
            feed.send(producer, topic, feed.orders.take(9, partition=partition))
        feed.send(producer, topic, [feed.orders.noise(30_000, partition=0)])
        for partition in (0, 1):
            feed.send(producer, topic, feed.orders.take(5, partition=partition))
    with mirror(address(old, topic), address(new), "--once") as running:
        summary = running.summary(status=1)
    (stopped,) = summary["stopped"]
    assert (stopped["topic"], stopped["partition"], stopped["offset"]) == (topic, 0, 9)
    assert f"{topic}-0" in running.said
    with Reader(new.bootstrap) as target:
        assert [target.end_offset(topic, partition) for partition in (0, 1)] == [9, 14]


def test_mirror_when_a_server_is_not_there_then_says_so_in_a_line(
    old: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    for source, target, side in (
        (address(NOBODY, topic), address(old), "source"),
        (address(old, topic), address(NOBODY), "target"),
    ):
        with mirror(source, target, "--once", f"--{side}-config", "bootstrap_timeout_ms=500") as running:
            running.summary(status=2)
        last = running.said.splitlines()[-1]
        assert NOBODY in last
        assert "Traceback" not in running.said


NOBODY = "127.0.0.1:1"
