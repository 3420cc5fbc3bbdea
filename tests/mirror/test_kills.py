"""Mirrors and brokers that are killed, and a full disk: nothing is lost, and no more is doubled than is counted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription

from client.cluster import Cluster
from mirror.load import Load, doubled, numbers_of
from mirror.reading import Reader, batches_of, end_of, log_of
from mirror.running import SECONDS, Mirror, address, wait_until
from mirror.scenarios import Feed

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.slow, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
PARTITIONS = 3
MIRROR_KILLS = 3  # of each mirror, in any order; each broker is killed once among them
# A killed mirror is out of its group soon; a broker that comes back is seen soon, also by a mirror that just starts.
QUICKLY = (
    *("--commit-interval", 0.5),
    *("--source-config", "session_timeout_ms=6000", "--source-config", "heartbeat_interval_ms=1000"),
    *("--source-config", "reconnect_backoff_max_ms=200", "--target-config", "reconnect_backoff_max_ms=200"),
    *("--source-config", "bootstrap_timeout_ms=60000", "--target-config", "bootstrap_timeout_ms=60000"),
)


def assert_all_arrived(cluster: Cluster, load: Load) -> int:
    """Returns how many records came again."""
    with Reader(cluster.bootstrap) as reader:
        return sum(
            doubled(numbers_of([r.value for r in reader.records(load.topic, partition)]), load.sent)
            for partition in range(load.partitions)
        )


def assert_same_log(source: Cluster, folder: Path, load: Load) -> None:
    for partition in range(load.partitions):
        wanted = log_of(source.broker.log_dir, load.topic, partition)
        assert log_of(folder, load.topic, partition) == wanted


def test_mirrors_when_they_and_their_brokers_are_killed_then_nothing_is_lost(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror, seed: int
) -> None:
    """One into a cluster, one into a folder. Each is killed after it has copied something since its last start."""
    old.create_topic(topic, PARTITIONS)
    chance = random.Random(seed)
    folder = tmp_path / "logs"
    to_cluster = mirror(address(old, topic), address(new), *QUICKLY, "--group", f"{topic}-1")
    static = ("--source-config", f"group_instance_id={topic}")  # it has its partitions again at once
    to_folder = mirror(address(old, topic), folder, *QUICKLY, "--group", f"{topic}-2", *static)
    targets = {to_cluster: new.broker.log_dir, to_folder: folder}
    killed_in_turn: list[Mirror | Cluster] = MIRROR_KILLS * [to_cluster, to_folder] + [new, old]
    chance.shuffle(killed_in_turn)
    with Load(old, topic, PARTITIONS) as load, to_cluster, to_folder:
        for killed in killed_in_turn:
            mirrors = targets if isinstance(killed, Cluster) else [killed]
            for running in mirrors:
                wait_until_it_copies(running, targets[running], topic)
            killed.kill()
            killed.start()
    # Who was killed has its share of the partitions until it is given up.
    wait_until(lambda: is_empty(old, f"{topic}-1"))
    for killed in (to_cluster, to_folder):
        killed.start("--once")
        killed.summary()
    assert_same_log(old, folder, load)
    assert assert_all_arrived(new, load) <= counted_doubles(to_cluster.said)


def wait_until_it_copies(running: Mirror, target: Path, topic: str) -> None:
    def copied() -> int:
        return sum(end_of(target, topic, partition) for partition in range(PARTITIONS))

    before = copied()
    wait_until(lambda: copied() > before, running)


def counted_doubles(said: str) -> int:
    """What mirrors said, each time they began a partition, of records that may come again."""
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return sum(line["records"] for line in lines if line["event"] == "records may be there twice")


@pytest.mark.parametrize("to", ["cluster", "folder"])
def test_group_when_one_of_two_mirrors_is_killed_then_the_other_takes_its_partitions(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror, to: str
) -> None:
    old.create_topic(topic, PARTITIONS)
    folder = tmp_path / "logs"
    arguments = (address(old, topic), folder if to == "folder" else address(new), *QUICKLY, "--group", topic)
    first, second = mirror(*arguments), mirror(*arguments)
    with Load(old, topic, PARTITIONS) as load, first:
        wait_until(lambda: shares(old, topic) == [PARTITIONS], first)
        with second:
            wait_until(lambda: shares(old, topic) == [1, 2], first)
            first.kill()
            wait_until(lambda: shares(old, topic) == [PARTITIONS], second)
            first.start()
            wait_until(lambda: shares(old, topic) == [1, 2], second)
            second.stop()
            first.stop()
    second.start("--once")
    second.summary()
    if to == "folder":
        assert_same_log(old, folder, load)
    else:
        counted = counted_doubles(first.said) + counted_doubles(second.said)
        assert assert_all_arrived(new, load) <= counted


def shares(cluster: Cluster, group: str) -> list[int]:
    """How many partitions each member of a group has, sorted; empty while it is rebalancing, or nobody knows it."""
    described = described_group(cluster, group)
    if described is None or described.state != ConsumerGroupState.STABLE:
        return []
    return sorted(len(member.assignment.topic_partitions) for member in described.members)


def is_empty(cluster: Cluster, group: str) -> bool:
    """Has the group no member, nor one that was killed and is not given up?"""
    described = described_group(cluster, group)
    return described is not None and described.state == ConsumerGroupState.EMPTY


def described_group(cluster: Cluster, group: str) -> ConsumerGroupDescription | None:
    """None where the group has no coordinator: its broker has just come, or loads what it knows of groups."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    try:
        return admin.describe_consumer_groups([group])[group].result(SECONDS)
    except KafkaException:
        return None


def test_backup_when_the_disk_is_full_then_says_so_and_the_next_run_goes_on(
    old: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    feed = Feed(old)
    folder = tmp_path / "logs"

    def send(batches: int) -> None:
        with feed.producer("lz4") as producer:
            for _ in range(batches):
                feed.send(producer, topic, [feed.orders.noise(50_000)])

    send(5)
    with mirror(address(old, topic), folder, "--once", max_file_bytes=330_000) as running:
        running.summary()
        send(5)
        running.start()
        running.summary(status=1)
    assert "Traceback" not in running.said
    assert str(folder) in running.said.splitlines()[-1]
    whole = log_of(old.broker.log_dir, topic, 0)
    part = log_of(folder, topic, 0)
    assert 250_000 < len(part) <= 330_000
    assert whole.startswith(part)
    assert sum(batch.size_in_bytes for batch in batches_of(folder, topic)) == len(part)
    with mirror(address(old, topic), folder, "--once") as running:
        running.summary()
    assert log_of(folder, topic, 0) == whole
