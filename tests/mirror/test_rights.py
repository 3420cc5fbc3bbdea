"""Users who lack a right at a cluster: nothing is lost silently, and the message names the cluster and the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
import pytest
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import ACLOperation

from client.cluster import Cluster
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.refusals import RefusedError, naming_refusals
from mirror.folders import KEPT, mirror
from mirror.running import address
from mirror.scenarios import Feed
from mirror.test_clusters import configuration


def on_brokers(test: Any) -> Any:
    """Mark a test that needs the two clusters."""
    return pytest.mark.broker(pytest.mark.xdist_group("mirror")(test))


COMPACTED = {"cleanup.policy": "compact", "retention.ms": "1000000000"}
HIDDEN = "the configuration of topics is not known: DescribeConfigs was refused"


@on_brokers
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


@on_brokers
def test_configuration_when_the_source_hides_it_then_a_new_topic_deletes_nothing(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, config=COMPACTED)
    old.hide_config(topic)
    ended = mirror(address(old, topic), address(new), "--once")
    assert ended.status == 0, ended.errors
    # Kafka lists cleanup.policy, which has its default value, as it was set.
    assert configuration(AdminClient({"bootstrap.servers": new.bootstrap}), topic) == KEPT


@on_brokers
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


@on_brokers
def test_configuration_when_the_target_refuses_it_then_a_warning_says_why_and_the_mirror_continues(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic, config=COMPACTED)
    new.create_topic(topic)
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(5))
    new.hide_config(topic)
    new.allow_only(topic, ACLOperation.DESCRIBE_CONFIGS)
    ended = mirror(address(old, topic), address(new), "--once", "--sync-topics")
    assert (ended.status, ended.summary["records"]) == (0, 5), ended.errors
    assert "the configuration of a topic was not synced" in ended.errors
    assert f"kafka://{new.bootstrap}: topic {topic} could not be configured" in ended.errors


@on_brokers
def test_records_when_they_may_not_be_read_then_the_error_names_the_cluster_and_the_right(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic)
    feed = Feed(old)
    with feed.producer() as producer:
        feed.send(producer, topic, feed.orders.take(5))
    old.allow_only(topic, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS)
    ended = mirror(address(old, topic), address(new), "--once")
    assert ended.status == 2
    assert ended.errors.endswith(
        f"{address(old, topic)}: reading records was refused: this user needs the right Read on topic {topic}\n"
    )


@on_brokers
def test_group_when_it_is_not_found_at_the_source_then_the_status_is_1(
    old: Cluster, new: Cluster, topic: str
) -> None:
    old.create_topic(topic)
    options = ("--once", "--sync-groups", "--groups", topic)
    ended = mirror(address(old, topic), address(new), *options)
    assert ended.status == 1
    assert "a group was not found at the source" in ended.errors
    assert "the sync of groups failed at the end of the mirror" in ended.errors


EAST = ClusterAddress(("east:9092",))


@pytest.mark.parametrize(
    ("error", "name", "place"),
    [
        (kafka_errors.TopicAuthorizationFailedError({"b", "a"}), None, "topic a, b"),
        (kafka_errors.GroupAuthorizationFailedError("FindCoordinator failed"), "billing", "group billing"),
        (kafka_errors.ClusterAuthorizationFailedError(), None, "the cluster"),
    ],
)
def test_error_when_a_right_is_missing_then_names_the_cluster_and_the_right(
    error: Exception, name: str | None, place: str
) -> None:
    with pytest.raises(RefusedError) as raised, naming_refusals(EAST, "reading", "Read", name):
        raise error
    assert (
        str(raised.value)
        == f"kafka://east:9092: reading was refused: this user needs the right Read on {place}"
    )
    assert isinstance(raised.value, kafka_errors.AuthorizationError)
