"""Users who lack a right at a cluster: nothing is lost silently, and the message names the cluster and the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from kafka.protocol.admin import (
    ACLOperation,
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)

from client.cluster import Cluster
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.admin_client import AdminClient, UnansweredError
from kafkafmt.mirror.clusters import ConfigRefusedError, MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.refusals import IDEMPOTENT_WRITE, RefusedError, Right, naming_refusals
from mirror.folders import KEPT, mirror
from mirror.running import address
from mirror.scenarios import Feed
from mirror.test_clusters import configuration
from mirror.test_unanswered import cluster_with


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
    assert configuration(ConfluentAdmin({"bootstrap.servers": new.bootstrap}), topic) == COMPACTED
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
    assert configuration(ConfluentAdmin({"bootstrap.servers": new.bootstrap}), topic) == KEPT


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
    assert (ended.status, ended.summary["records"]) == (1, 5), ended.errors
    assert "the configuration of a topic was not synced" in ended.errors
    reason = (
        f"kafka://{new.bootstrap}: configuring topic {topic} was refused: "
        f"this user needs the right AlterConfigs on topic {topic}"
    )
    assert reason in ended.errors
    assert ended.summary["unsynced_topics"] == {topic: reason}


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
    assert ended.summary["failed_tasks"] == ["the sync of groups"]


EAST = ClusterAddress(("east:9092",))
GROUP, TOPIC = Right("Describe", "group", "billing"), Right("Describe", "topic")


@pytest.mark.parametrize(
    ("error", "rights", "reason"),
    [
        (kafka_errors.TopicAuthorizationFailedError({"b", "a"}), [GROUP, TOPIC], "Describe on topic a, b"),
        (kafka_errors.TopicAuthorizationFailedError(), [TOPIC], "Describe on a topic"),
        (
            kafka_errors.GroupAuthorizationFailedError("FindCoordinator failed"),
            [GROUP],
            "Describe on group billing",
        ),
        (
            kafka_errors.ClusterAuthorizationFailedError(),
            [TOPIC, IDEMPOTENT_WRITE],
            "IdempotentWrite on the cluster",
        ),
    ],
)
def test_error_when_a_right_is_missing_then_names_the_cluster_and_the_right(
    error: Exception, rights: list[Right], reason: str
) -> None:
    with pytest.raises(RefusedError) as raised, naming_refusals(EAST, "reading", *rights):
        raise error
    assert str(raised.value) == f"kafka://east:9092: reading was refused: this user needs the right {reason}"
    assert isinstance(raised.value, kafka_errors.AuthorizationError)


def test_error_when_it_is_about_another_kind_of_right_then_has_the_text_of_the_broker() -> None:
    error = kafka_errors.TransactionalIdAuthorizationFailedError("not authorized")
    with pytest.raises(RefusedError) as raised, naming_refusals(EAST, "writing", TOPIC, IDEMPOTENT_WRITE):
        raise error
    assert str(raised.value) == f"kafka://east:9092: writing was refused: {error}"


# What brokers answer, without a broker


class Answers(AdminClient):
    """Has the given responses, by the class of their requests; a missing one is a request that brokers do not know."""

    def __init__(self, *responses: Any) -> None:
        self._responses = {type(one).__name__.replace("Response", "Request"): one for one in responses}
        self.requests: list[Any] = []

    def _ask(self, request: Any) -> Any:
        self.requests.append(request)
        try:
            return self._responses[type(request).__name__]
        except KeyError:
            raise kafka_errors.IncompatibleBrokerVersion(type(request).__name__) from None


def cluster_of(*responses: Any) -> MirrorCluster:
    cluster = MirrorCluster.__new__(MirrorCluster)  # its constructor would connect
    cluster.address, cluster._admin, cluster._undescribed = EAST, Answers(*responses), set()
    return cluster


def altered(code: int) -> Any:
    result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        error_code=code, error_message="no", resource_type=2, resource_name="t"
    )
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=[result])


def described(code: int, *configs: Any) -> Any:
    result = DescribeConfigsResponse.DescribeConfigsResult(
        error_code=code, error_message="no", resource_type=2, resource_name="t", configs=list(configs)
    )
    return DescribeConfigsResponse(throttle_time_ms=0, results=[result])


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (kafka_errors.RequestTimedOutError, UnansweredError),
        (kafka_errors.NotControllerError, UnansweredError),
        (kafka_errors.UnknownTopicOrPartitionError, UnansweredError),
        (kafka_errors.UnknownError, ConfigRefusedError),
        (kafka_errors.InvalidConfigurationError, ConfigRefusedError),
        (kafka_errors.PolicyViolationError, ConfigRefusedError),
        (kafka_errors.TopicAuthorizationFailedError, RefusedError),
    ],
)
def test_topic_when_a_broker_answers_a_change_with_an_error_then_its_code_says_whether_it_is_tried_again(
    error: Any, raised: type[MirrorError]
) -> None:
    with pytest.raises(raised, match=r"^kafka://east:9092: ") as found:
        cluster_of(altered(error.errno)).alter_topic("t", {"retention.ms": "1"})
    assert type(found.value) is raised


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (kafka_errors.UnknownTopicOrPartitionError, UnansweredError),
        (kafka_errors.RequestTimedOutError, UnansweredError),
        (kafka_errors.InvalidRequestError, MirrorError),
    ],
)
def test_configuration_when_a_broker_does_not_know_the_topic_yet_then_no_right_is_missing(
    error: Any, raised: type[MirrorError]
) -> None:
    with pytest.raises(raised, match="the configuration of topic t could not be read") as found:
        cluster_of(described(error.errno)).describe_topics({"t": 1})
    assert type(found.value) is raised


def test_configuration_when_the_right_is_missing_then_it_is_not_known() -> None:
    assert (
        cluster_of(described(kafka_errors.TopicAuthorizationFailedError.errno)).describe_topics({"t": 1})
        == {}
    )


def test_right_to_configure_when_it_is_missing_then_names_the_topics() -> None:
    denied = altered(kafka_errors.TopicAuthorizationFailedError.errno)
    with pytest.raises(
        RefusedError, match=r"^kafka://east:9092: this user needs the right AlterConfigs on t$"
    ):
        cluster_of(denied).ensure_alterable(["t"])
    for other in (altered(kafka_errors.UnknownTopicOrPartitionError.errno), altered(0)):
        cluster_of(other).ensure_alterable(["t"])


def test_right_to_configure_when_there_are_no_topics_or_an_old_broker_then_nothing_is_asked() -> None:
    cluster_of().ensure_alterable([])
    cluster_of().ensure_alterable(["t"])


@pytest.mark.parametrize("error", [kafka_errors.NoError, kafka_errors.UnknownTopicOrPartitionError])
def test_right_to_see_topics_when_it_is_missing_then_names_the_topics(error: Any) -> None:
    class Admin:
        def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
            hidden = kafka_errors.TopicAuthorizationFailedError
            return [{"name": one, "error_code": (hidden if one == "t" else error).errno} for one in names]

    cluster = cluster_with(Admin())
    cluster.ensure_describable(["s"])
    with pytest.raises(RefusedError, match=r"^kafka://west:9092: this user needs the right Describe on t$"):
        cluster.ensure_describable(["s", "t"])


def config(name: str, value: str, *, is_default: bool) -> Any:
    return DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult(
        name=name, value=value, read_only=False, is_default=is_default, is_sensitive=False, version=0
    )


def test_configuration_when_the_broker_has_no_sources_then_defaults_are_left_out_and_kept_by_a_change() -> (
    None
):
    """DescribeConfigs 0, and AlterConfigs, which resets what it does not set."""
    found = described(
        0,
        config("retention.ms", "1", is_default=False),
        config("segment.ms", "2", is_default=False),
        config("segment.bytes", "3", is_default=True),
    )
    old = AlterConfigsResponse(throttle_time_ms=0, responses=[])
    cluster = cluster_of(found, old)
    assert cluster.describe_topics({"t": 1}) == {
        "t": TopicConfig(1, {"retention.ms": "1", "segment.ms": "2"})
    }
    cluster.alter_topic("t", {"retention.ms": None, "cleanup.policy": "compact"})
    (changed,) = cluster._admin.requests[-1].resources
    assert [tuple(one)[:2] for one in changed[2]] == [("segment.ms", "2"), ("cleanup.policy", "compact")]
