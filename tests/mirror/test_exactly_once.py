"""`--exactly-once`: batches and their ranges of the offset map in one transaction of the target.

KIP-712 leaves the promise of a mirror to the producer's transactions: KIP-98, "Producer API" and KIP-447, "Proposed
Changes". A `read_committed` reader sees each record once, and in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from client.cluster import Cluster, messages_up_to
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.claims import fence
from kafkafmt.mirror.clusters import MirrorCluster
from mirror.folders import batches, put_log
from mirror.load import Load, numbers_of
from mirror.reading import Reader, batches_of, end_of
from mirror.running import QUICKLY, SECONDS, Mirror, address, wait_until
from mirror.scenarios import Feed
from mirror.test_kills import shares

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
RARELY = ("--source-config", "metadata_max_age_ms=300", "--commit-interval", 50)
QUICKER = ("--source-config", "metadata_max_age_ms=300", "--commit-interval", 10)
SHORT = ("--source-config", "session_timeout_ms=6000", "--source-config", "heartbeat_interval_ms=500")


def exactly_once(topic: str) -> tuple[str, ...]:
    """The option, with an offset map and a group of the test alone."""
    return "--exactly-once", "--offset-map", f"topic:{topic}-map", "--group", topic


def static(topic: str) -> tuple[str, ...]:
    """A member that has its partitions again as soon as it is started again."""
    return "--source-config", f"group_instance_id={topic}"


def fill(cluster: Cluster, topic: str, first: int, stop: int, partition: int = 0, codec: str = "lz4") -> None:
    """Batches of ten numbered records."""
    feed = Feed(cluster)
    with feed.producer(codec) as producer:
        for start in range(first, stop, 10):
            numbers = range(start, min(start + 10, stop))
            orders = [feed.orders.order(value=b"%d " % n + bytes(50), partition=partition) for n in numbers]
            feed.send(producer, topic, orders)


def numbers(cluster: Cluster, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[int]:
    """Those of all records up to the end of the log. Waits until the transactions there have ended."""
    end = end_of(cluster.broker.log_dir, topic, partition)
    with Reader(cluster.bootstrap, isolation) as reader:
        return numbers_of([record.value for record in reader.records(topic, partition, end)])


def numbers_now(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    """Those of the records that are committed now."""
    with Reader(cluster.bootstrap) as reader:
        return numbers_of([record.value for record in reader.records(topic, partition)])


def claims_of(cluster: Cluster, topic: str) -> dict[tuple[str, int, str], Any]:
    """The claims in a test's offset map, by topic, partition and transactional id."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "unused", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    found = {}
    try:
        where = TopicPartition(f"{topic}-map", 0, 0)
        end = consumer.get_watermark_offsets(where, SECONDS)[1]
        consumer.assign([where])
        for message in messages_up_to(end, consumer):
            named = json.loads(message.key())
            if "claim" in named:
                value = message.value()
                claimed = named["topic"], named["partition"], named["claim"]
                found[claimed] = None if value is None else json.loads(value)
    finally:
        consumer.close()
    return {claimed: value for claimed, value in found.items() if value is not None}


def await_open_transaction(
    running: Mirror, source: Cluster, target: Cluster, topic: str, name: str | None = None
) -> None:
    """The target has records 0 to 19 and the marker of their transaction, and 20 to 99 in an open one.

    name: of the topic at the target, if it has another one there.
    """
    there = topic if name is None else name
    wait_until(lambda: end_of(target.broker.log_dir, there) == 21, running)
    fill(source, topic, 20, 100)
    wait_until(lambda: end_of(target.broker.log_dir, there) == 101, running)


def test_mirror_when_it_ends_then_each_record_is_there_once_and_no_claim_is_left(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic, 2)
    for partition in range(2):
        fill(old, topic, 0, 100, partition)
    with mirror(address(old, topic), address(new), "--once", *exactly_once(topic)) as running:
        summary = running.summary()
        assert (summary["records"], summary["possibly_doubled"]) == (200, 0)
        assert summary["ways"]["combined"]["records"] == 200
        fill(old, topic, 100, 130)
        running.start()
        summary = running.summary()
        assert (summary["records"], summary["possibly_doubled"], summary["stopped"]) == (30, 0, [])
    assert [numbers(new, topic, partition) for partition in range(2)] == [[*range(130)], [*range(100)]]
    stored = [batch for batch in batches_of(new.broker.log_dir, topic) if not batch.is_control]
    assert all(batch.is_transactional and batch.producer_id >= 0 for batch in stored)
    assert claims_of(new, topic) == {}
    with mirror(
        address(old, topic), address(new), "--once", "--offset-map", f"topic:{topic}-map", "--group", topic
    ) as running:  # without transactions, from the same map
        assert running.summary()["records"] == 0


@pytest.mark.parametrize(
    "way",
    [("--use-raw-bytes",), ("--deep",), ("--deep", "--repartition")],
    ids=["raw", "deep", "repartition"],
)
def test_mirror_when_it_sends_in_any_way_then_a_kill_doubles_nothing(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror, way: tuple[str, ...]
) -> None:
    old.create_topic(topic)
    fill(old, topic, 0, 20)
    options = (*exactly_once(topic), *static(topic), *way)
    with mirror(address(old, topic), address(new), *options, *RARELY) as running:
        await_open_transaction(running, old, new, topic)
        running.kill()
    with mirror(address(old, topic), address(new), *options, "--once") as running:
        assert running.summary()["records"] == 80
    assert numbers(new, topic) == [*range(100)]


def test_mirror_when_a_topic_has_another_name_at_the_target_then_a_kill_doubles_nothing(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    name = f"east.{topic}"
    old.create_topic(topic)
    fill(old, topic, 0, 20)
    options = (*exactly_once(topic), *static(topic), "--topic-prefix", "east.")
    with mirror(address(old, topic), address(new), *options, *RARELY) as running:
        await_open_transaction(running, old, new, topic, name)
        running.kill()
    with mirror(address(old, topic), address(new), *options, "--once") as running:
        assert running.summary()["records"] == 80
    assert numbers(new, name) == [*range(100)]
    assert claims_of(new, topic) == {}


def test_mirror_when_it_is_killed_within_a_transaction_then_only_read_uncommitted_sees_its_records(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    fill(old, topic, 0, 20)
    options = (*exactly_once(topic), *static(topic))
    with mirror(address(old, topic), address(new), *options, *RARELY) as running:
        await_open_transaction(running, old, new, topic)
        running.kill()
    assert numbers(new, topic, isolation="read_uncommitted") == [*range(100)]
    ((_, _, killed),) = claims_of(new, topic)
    with mirror(address(old, topic), address(new), *options, "--once") as running:
        summary = running.summary()
    assert (summary["records"], summary["possibly_doubled"]) == (80, 0)
    assert numbers(new, topic) == [*range(100)]
    assert numbers(new, topic, isolation="read_uncommitted") == [*range(100), *range(20, 100)]
    assert killed.startswith(topic)
    assert claims_of(new, topic) == {}, "the claim of the killed mirror is deleted, too"


def test_mirror_when_it_is_fenced_then_resumes_where_the_map_ends(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    fill(old, topic, 0, 20)
    with mirror(address(old, topic), address(new), *exactly_once(topic), *QUICKER) as running:
        await_open_transaction(running, old, new, topic)
        ((_, _, transactional_id),) = claims_of(new, topic)
        cluster = MirrorCluster(ClusterAddress((new.bootstrap,)), {})
        fence(cluster, transactional_id)
        cluster.close()
        fill(old, topic, 100, 200)
        wait_until(lambda: len(numbers_now(new, topic)) == 200, running)
        summary = running.stop()
    assert "a transaction was given up" in running.said
    assert (summary["records"], summary["stopped"], summary["possibly_doubled"]) == (200, [], 0)
    assert numbers(new, topic) == [*range(200)]


def test_mirror_when_a_batch_is_refused_then_its_partition_stops_before_it_and_the_others_do_not(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """A compacted topic takes no record without a key."""
    old.create_topic(topic, 2)
    new.create_topic(topic, 2, {"cleanup.policy": "compact"})
    fill(old, topic, 0, 50)
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, [feed.orders.order(value=b"50 ", key=None)])
    fill(old, topic, 51, 60)
    fill(old, topic, 0, 100, partition=1)
    with mirror(
        address(old, topic), address(new), "--once", "--use-raw-bytes", *exactly_once(topic)
    ) as running:
        summary = running.summary(status=1)
    (stopped,) = summary["stopped"]
    assert (stopped["partition"], stopped["offset"]) == (0, 50)
    assert "InvalidRecordError" in stopped["message"]
    assert summary["records"] == 150
    assert [numbers(new, topic, partition) for partition in range(2)] == [[*range(50)], [*range(100)]]


def test_mirror_of_a_folder_when_another_begins_then_the_first_ends_and_nothing_is_doubled(
    new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    put_log(tmp_path / "logs" / f"{topic}-0", batches(0, 100))
    options = ("--exactly-once", "--offset-map", f"topic:{topic}-map", "--follow")
    first, second = (mirror(tmp_path / "logs", address(new), *options, *RARELY) for _ in range(2))
    with first:
        wait_until(lambda: end_of(new.broker.log_dir, topic) == 101, first)
        earlier = claims_of(new, topic)
        with second:
            wait_until(lambda: claims_of(new, topic).keys().isdisjoint(earlier), second)
            put_log(tmp_path / "logs" / f"{topic}-0", batches(100, 200))
            first.summary(status=2)
            wait_until(lambda: end_of(new.broker.log_dir, topic) >= 201, second)
            second.stop()
    assert "another mirror or restore of this source was started after this one" in first.tail
    assert values(new, topic) == [b"value-%d" % number for number in range(200)]


def values(cluster: Cluster, topic: str) -> list[bytes | None]:
    with Reader(cluster.bootstrap) as reader:
        return [record.value for record in reader.records(topic, 0, end_of(cluster.broker.log_dir, topic))]


def test_group_when_another_mirror_joins_then_the_transaction_is_committed_before_the_partitions_move(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic, 2)
    arguments = (address(old, topic), address(new), *RARELY, *SHORT, *exactly_once(topic))
    first, second = mirror(*arguments), mirror(*arguments)
    fill_both(old, topic, 0, 20)
    with first:
        wait_until(lambda: ends(new, topic) == [21, 21], first)
        fill_both(old, topic, 20, 40)
        wait_until(lambda: ends(new, topic) == [41, 41], first)
        assert committed(new, topic) == [[*range(20)]] * 2
        with second:
            wait_until(lambda: shares(old, topic) == [1, 1], second)
            wait_until(lambda: [*map(len, committed(new, topic))] == [40, 40], second)
            fill_both(old, topic, 40, 60)
            wait_until(lambda: min(ends(new, topic)) >= 62, second)
            for one in (first, second):
                one.stop()
                assert "a transaction was given up" not in one.said
    assert [numbers(new, topic, partition) for partition in range(2)] == [[*range(60)]] * 2


def committed(cluster: Cluster, topic: str) -> list[list[int]]:
    return [numbers_now(cluster, topic, partition) for partition in range(2)]


def fill_both(cluster: Cluster, topic: str, first: int, stop: int) -> None:
    for partition in range(2):
        fill(cluster, topic, first, stop, partition)


def ends(cluster: Cluster, topic: str) -> list[int]:
    return [end_of(cluster.broker.log_dir, topic, partition) for partition in range(2)]


def test_group_when_a_frozen_mirror_wakes_up_after_another_has_its_partitions_then_nothing_is_doubled(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    partitions = 3
    old.create_topic(topic, partitions)
    arguments = (address(old, topic), address(new), *QUICKLY, *SHORT, *exactly_once(topic))
    first, second = mirror(*arguments), mirror(*arguments)
    with Load(old, topic, partitions) as load, first, second:
        wait_until(lambda: shares(old, topic) == [1, 2], first)
        wait_until(lambda: reached(new, topic, range(partitions)) > 0, first)
        # A mirror that is frozen between two transactions has none to give up: it is frozen again.
        for _ in range(8):
            with first.frozen():
                wait_until(lambda: shares(old, topic) == [partitions], second)
                await_more(new, topic, partitions, second)
            wait_until(lambda: shares(old, topic) == [1, 2], second)
            await_more(new, topic, partitions, first)
            if "a transaction was given up" in first.said:
                break
        else:
            pytest.fail(f"no transaction was given up:\n{first.tail}")
    with mirror(*arguments, "--once") as last:
        last.summary()
    for partition in range(partitions):
        assert numbers(new, topic, partition) == [*range(load.sent)]


def await_more(cluster: Cluster, topic: str, partitions: int, running: Mirror) -> None:
    """Another 500 offsets are at the target, over all partitions."""
    before = reached(cluster, topic, range(partitions))
    wait_until(lambda: reached(cluster, topic, range(partitions)) > before + 500, running)


def reached(cluster: Cluster, topic: str, partitions: Iterable[int]) -> int:
    return sum(end_of(cluster.broker.log_dir, topic, partition) for partition in partitions)
