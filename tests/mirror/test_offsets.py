"""Where a group stands on the other side: `kafkafmt mirror offsets`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition

from client.cluster import Cluster
from mirror.reading import Reader
from mirror.running import KAFKAFMT, SECONDS, Mirror, address
from mirror.scenarios import Direction, Feed

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
LOOKED_UP = [("codecs", 3), ("compacted", 0), ("transactions", 0), ("append-time", 0), ("tiny", 0)]


class Position(NamedTuple):
    """Of a group in a partition, at both sides."""

    topic: str
    partition: int
    source_offset: int
    target_topic: str
    target_offset: int | None


def look_up(source: str, target: str, group: str, *options: str) -> list[Position]:
    command = [KAFKAFMT, "mirror", "offsets", source, target, "--group", group, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return sorted(Position(**json.loads(line)) for line in done.stdout.splitlines())


def consumer_of(cluster: Cluster, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False})


def commit(cluster: Cluster, group: str, offsets: list[TopicPartition]) -> None:
    consumer = consumer_of(cluster, group)
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def committed(cluster: Cluster, group: str, partitions: list[TopicPartition]) -> dict[tuple[str, int], int]:
    consumer = consumer_of(cluster, group)
    found = consumer.committed(partitions, timeout=SECONDS)
    consumer.close()
    return {(each.topic, each.partition): each.offset for each in found}


def assert_same_place(source: Reader, target: Reader, position: Position) -> None:
    """What a group has read is the same at both sides, and what comes next."""
    topic, partition, source_offset, _, target_offset = position
    assert target_offset is not None
    before, after = source.by_offset(topic, partition), target.by_offset(topic, partition)
    assert sum(offset < target_offset for offset in after) == sum(offset < source_offset for offset in before)
    assert target_offset <= target.end_offset(topic, partition)


@pytest.mark.parametrize("part", [0.0, 0.37, 1.0], ids=["start", "within", "end"])
def test_offsets_when_a_group_stands_anywhere_then_the_target_has_that_place(
    direction: Direction, mirrored: dict[str, Any], part: float
) -> None:
    group = f"{direction.prefix}-{part}"
    with Reader(direction.source.bootstrap) as source, Reader(direction.target.bootstrap) as target:
        wanted = [
            TopicPartition(
                direction.topic(scenario),
                number,
                int(part * source.end_offset(direction.topic(scenario), number)),
            )
            for scenario, number in LOOKED_UP
        ]
        commit(direction.source, group, wanted)
        positions = look_up(
            address(direction.source, direction.pattern), address(direction.target), group, "--commit"
        )
        assert [p[:3] for p in positions] == sorted((w.topic, w.partition, w.offset) for w in wanted)
        for position in positions:
            assert_same_place(source, target, position)
    on_the_other_side = committed(direction.target, group, wanted)
    assert on_the_other_side == {(p.topic, p.partition): p.target_offset for p in positions}


def test_offsets_when_the_map_is_a_file_then_it_says_the_same(
    old: Cluster, new: Cluster, topic: str, tmp_path: Path, mirror: MakeMirror
) -> None:
    """In a target whose topic has records of its own, so that no offset is as in the source."""
    old.create_topic(topic)
    new.create_topic(topic)
    option = ("--offset-map", str(tmp_path / "offsets.db"))
    for cluster, sizes in ((new, [17]), (old, [10, 1, 30])):
        feed = Feed(cluster)
        with feed.producer("snappy") as producer:
            for size in sizes:
                feed.send(producer, topic, feed.orders.take(size))
    with mirror(address(old, topic), address(new), "--once", "--append", *option) as running:
        running.summary()
    commit(old, topic, [TopicPartition(topic, 0, 25)])
    assert look_up(address(old, topic), address(new), topic, *option) == [Position(topic, 0, 25, topic, 42)]
    commit(old, topic, [TopicPartition(topic, 0, 41)])
    assert look_up(address(old, topic), address(new), topic, *option) == [Position(topic, 0, 41, topic, 58)]


def test_offsets_when_nothing_was_mirrored_then_the_place_is_not_known(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(5))
    commit(old, topic, [TopicPartition(topic, 0, 3)])
    assert look_up(address(old, topic), address(new), topic) == [Position(topic, 0, 3, topic, None)]
