"""Users who lack a right at a cluster: nothing is lost silently, and the message names the cluster and the right."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from client.cluster import Cluster
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from mirror.folders import KEPT, mirror
from mirror.running import address
from mirror.test_clusters import configuration

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("mirror")]

COMPACTED = {"cleanup.policy": "compact", "retention.ms": "1000000000"}
HIDDEN = "the configuration of topics is not known: DescribeConfigs was refused"


def test_configuration_when_the_source_hides_it_then_that_of_the_target_stays(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, config=COMPACTED)
    new.create_topic(topic, config=COMPACTED)
    old.hide_config(topic)
    ended = mirror(address(old, topic), address(new), "--once", "--sync-topics")
    assert ended.status == 0, ended.errors
    assert configuration(AdminClient({"bootstrap.servers": new.bootstrap}), topic) == COMPACTED
    assert ended.errors.count(HIDDEN) == 1
    assert old.bootstrap in ended.errors
    assert topic in ended.errors


def test_configuration_when_the_source_hides_it_then_a_new_topic_deletes_nothing(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, config=COMPACTED)
    old.hide_config(topic)
    ended = mirror(address(old, topic), address(new), "--once")
    assert ended.status == 0, ended.errors
    # Kafka lists cleanup.policy, which has its default value, as it was set.
    assert configuration(AdminClient({"bootstrap.servers": new.bootstrap}), topic) == KEPT


def test_configuration_when_the_source_hides_it_then_a_folder_keeps_that_of_earlier_runs(
    old: Cluster, topic: str, tmp_path: Path
) -> None:
    old.create_topic(topic, config=COMPACTED)
    assert mirror(address(old, topic), tmp_path / "copy", "--once").status == 0
    old.hide_config(topic)
    ended = mirror(address(old, topic), tmp_path / "copy", "--once")
    assert ended.status == 0, ended.errors
    assert read_topic_configs(tmp_path / "copy") == {topic: TopicConfig(1, COMPACTED)}
    assert HIDDEN in ended.errors
