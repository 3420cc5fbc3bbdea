"""Mirrors in both directions between two brokers: none sends back what came from the other side.

MirrorMaker 2 avoids such loops with the names of its DefaultReplicationPolicy (KIP-382, "Remote Topics"). This mirror
has the provenance of each topic in its offset map, so names may stay.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client.cluster import Cluster
from mirror.reading import end_of
from mirror.running import QUICKLY, Mirror, address, wait_until
from mirror.scenarios import Feed

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]
RECORDS = 20


def send(cluster: Cluster, topic: str, count: int = RECORDS) -> None:
    feed = Feed(cluster)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(count))


def test_mirror_when_its_topic_came_from_the_target_then_is_refused_in_one_line(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic)
    send(old, topic)
    with mirror(address(old, topic), address(new), "--once") as forth:
        assert forth.summary()["records"] == RECORDS
    with mirror(address(new, topic), address(old), "--once") as back:
        summary = back.summary(status=1)
    assert (summary["records"], summary["stopped"][0]["topic"]) == (0, topic)
    (line,) = [line for line in back.said.splitlines() if "not mirrored" in line]
    assert f"topic {topic} of cluster {cluster_id(new)} has records of topic {topic} of cluster" in line
    assert cluster_id(old) in line
    with mirror(address(new, f"{topic}.*"), address(old), "--once") as back:
        summary = back.summary()
    assert (summary["records"], summary["stopped"]) == (0, [])
    assert summary["left_out_topics"].keys() == {topic}
    assert end_of(old.broker.log_dir, topic) == RECORDS


def test_mirrors_when_both_have_prefixes_then_each_sends_what_the_other_has_not_sent(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """As with MirrorMaker 2's DefaultReplicationPolicy, both sides have a topic of the same name and a remote one."""
    for cluster in (old, new):
        cluster.create_topic(topic)
    send(old, topic)
    send(new, topic, RECORDS + 1)
    pattern = rf"(.*\.)?{topic}"
    for _ in range(2):
        with mirror(address(old, pattern), address(new), "--once", "--topic-prefix", "old.") as forth:
            forth.summary()
        with mirror(address(new, pattern), address(old), "--once", "--topic-prefix", "new.") as back:
            summary = back.summary()
        assert summary["left_out_topics"].keys() == {f"old.{topic}"}
        assert summary["topics"] == {topic: f"new.{topic}"}
    assert end_of(new.broker.log_dir, f"old.{topic}") == RECORDS
    assert end_of(old.broker.log_dir, f"new.{topic}") == RECORDS + 1
    for cluster, name in ((old, f"new.old.{topic}"), (new, f"old.new.{topic}")):
        assert end_of(cluster.broker.log_dir, name) == -1


@pytest.mark.full
def test_mirrors_when_they_follow_in_both_directions_then_records_do_not_go_round(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """The second one goes on with its other topics, and finds those that come later."""
    for cluster, name in ((old, topic), (new, f"{topic}.later"), (new, f"{topic}.own")):
        cluster.create_topic(name)
    send(old, topic)
    send(new, f"{topic}.own")
    with mirror(address(old, topic), address(new), *QUICKLY) as forth:
        wait_until(lambda: end_of(new.broker.log_dir, topic) == RECORDS, forth)
        with mirror(address(new, f"{topic}.*"), address(old), *QUICKLY) as back:
            wait_until(lambda: end_of(old.broker.log_dir, f"{topic}.own") == RECORDS, back)
            send(old, topic)
            send(new, f"{topic}.later")
            wait_until(lambda: end_of(new.broker.log_dir, topic) == 2 * RECORDS, forth)
            wait_until(lambda: end_of(old.broker.log_dir, f"{topic}.later") == RECORDS, back)
            assert back.stop()["left_out_topics"].keys() == {topic}
        assert forth.stop()["records"] == 2 * RECORDS
    assert end_of(old.broker.log_dir, topic) == 2 * RECORDS


def cluster_id(cluster: Cluster) -> str:
    (line,) = [
        line
        for line in (cluster.broker.log_dir / "meta.properties").read_text().splitlines()
        if line.startswith("cluster.id=")
    ]
    return line.partition("=")[2]
