"""`--sync-topics` and partition counts, as with MM2's `sync.topic.configs.enabled` and `refresh.topics.enabled`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from client.cluster import Cluster
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from mirror.folders import mirror as mirror_in_process
from mirror.reading import end_of
from mirror.running import QUICKLY, Mirror, address, wait_until
from mirror.scenarios import Feed
from mirror.test_clusters import configuration, partition_count

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

MakeMirror = Callable[..., Mirror]


def test_topic_when_it_changes_at_the_source_then_the_target_follows_and_its_own_settings_win(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    """Set, changed and reset properties; partitions that are added, with their records."""
    name = f"copy.{topic}"
    old.create_topic(topic, config={"retention.ms": "1000000000", "min.insync.replicas": "1"})
    new.create_topic(
        name, config={"retention.ms": "2", "max.message.bytes": "5000", "min.insync.replicas": "1"}
    )
    admin = AdminClient({"bootstrap.servers": new.bootstrap})
    options = ("--sync-topics", "--sync-interval", 0.3, "--topic-prefix", "copy.")
    own = ("--topic-config", f"{name}:segment.bytes=1048576")
    with mirror(address(old, topic), address(new), *QUICKLY, *options, *own) as running:
        expected = {"retention.ms": "1000000000", "min.insync.replicas": "1", "segment.bytes": "1048576"}
        wait_until(lambda: configuration(admin, name) == expected, running)
        old.alter_topic(
            topic, {"retention.ms": "3000000000", "segment.bytes": "2097152", "segment.ms": "60000"}
        )
        expected |= {"retention.ms": "3000000000", "segment.ms": "60000"}
        wait_until(lambda: configuration(admin, name) == expected, running)
        old.add_partitions(topic, 3)
        wait_until(lambda: end_of(old.broker.log_dir, topic, 2) == 0)
        feed = Feed(old)
        with feed.producer() as producer:
            feed.send(producer, topic, feed.orders.take(7, partition=2))
        wait_until(lambda: end_of(new.broker.log_dir, name, 2) == 7, running)
        summary = running.stop()
    assert partition_count(admin, name) == 3
    assert summary["stopped"] == []


def test_topic_when_it_is_not_synced_then_keeps_its_configuration(
    old: Cluster, new: Cluster, topic: str, mirror: MakeMirror
) -> None:
    old.create_topic(topic, config={"retention.ms": "1000000000"})
    new.create_topic(topic, config={"retention.ms": "2000000000"})
    with mirror(address(old, topic), address(new), "--once") as once:
        once.summary()
    admin = AdminClient({"bootstrap.servers": new.bootstrap})
    assert configuration(admin, topic) == {"retention.ms": "2000000000"}
    with mirror(address(old, topic), address(new), "--once", "--sync-topics") as once:
        once.summary()
    assert configuration(admin, topic) == {"retention.ms": "1000000000"}


def test_topic_when_it_changes_at_the_source_then_a_folder_has_it_with_the_next_run(
    old: Cluster, topic: str, tmp_path: Path
) -> None:
    """Names of both sides, from a cluster into a folder and back."""
    old.create_topic(topic, config={"retention.ms": "1000000000"})
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(5))
    for retention in ("1000000000", "4000000000"):
        old.alter_topic(topic, {"retention.ms": retention})
        ended = mirror_in_process(
            address(old, topic), tmp_path / "backup", "--once", "--topic-prefix", "kept."
        )
        assert ended.status == 0, ended.errors
        expected = {f"kept.{topic}": TopicConfig(1, {"retention.ms": retention})}
        assert read_topic_configs(tmp_path / "backup") == expected
    back = mirror_in_process(tmp_path / "backup", address(old), "--rename", f"kept.{topic}={topic}.restored")
    assert (back.status, back.summary["records"]) == (0, 5), back.errors
    assert end_of(old.broker.log_dir, f"{topic}.restored") == 5
