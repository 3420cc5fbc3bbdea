"""Requests of an administrator that a cluster cannot answer while its brokers restart: a mirror may try them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.metadata import MetadataResponse

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror import admin_client
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.clusters import ConfigRefusedError, MirrorCluster
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.types import TopicPartition

PARTITION = TopicPartition("t", 0)
REQUESTS: dict[str, Callable[[MirrorCluster], object]] = {
    "create_topic": lambda cluster: cluster.create_topic("t", TopicConfig(1, {})),
    "add_partitions": lambda cluster: cluster.add_partitions("t", 2),
    "alter_topic": lambda cluster: cluster.alter_topic("t", {"retention.ms": "1"}),
    "bounds": lambda cluster: cluster.bounds([PARTITION]),
    "offsets_at": lambda cluster: cluster.offsets_at([PARTITION], 0),
}


class FailingAdmin:
    """Raises the error for each request."""

    def __init__(self, error: kafka_errors.KafkaError) -> None:
        self._error = error

    def __getattr__(self, _: str) -> Callable[..., Any]:
        def fail(*_: object, **__: object) -> None:
            raise self._error

        return fail


def cluster_of(error: kafka_errors.KafkaError) -> MirrorCluster:
    cluster = MirrorCluster.__new__(MirrorCluster)  # its constructor would connect
    cluster.address = parse_address("kafka://west:9092")
    cluster._admin = FailingAdmin(error)
    return cluster


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NodeNotReadyError(1),
        kafka_errors.UnknownBrokerIdError(1),  # a broker has gone that is still the leader in the metadata
        kafka_errors.KafkaTimeoutError("Topics not ready"),
        kafka_errors.KafkaConnectionError("refused"),
        kafka_errors.NotControllerError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_request_when_the_cluster_cannot_answer_now_then_the_error_may_be_retried(
    request_of: Callable[[MirrorCluster], object], error: kafka_errors.KafkaError
) -> None:
    with pytest.raises(UnansweredError, match=r"^kafka://west:9092: ") as raised:
        request_of(cluster_of(error))
    assert isinstance(raised.value, kafka_errors.RetriableError)
    assert isinstance(raised.value, MirrorError)


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
def test_request_when_the_cluster_refuses_it_then_the_error_is_final(
    request_of: Callable[[MirrorCluster], object],
) -> None:
    with pytest.raises(MirrorError) as raised:
        request_of(cluster_of(kafka_errors.PolicyViolationError("no")))
    assert not isinstance(raised.value, kafka_errors.RetriableError)


def test_create_topic_when_its_configuration_is_refused_then_that_is_told() -> None:
    with pytest.raises(ConfigRefusedError):
        REQUESTS["create_topic"](cluster_of(kafka_errors.InvalidConfigurationError("no")))


@pytest.mark.parametrize(
    ("request_name", "right"),
    [("create_topic", "Create"), ("add_partitions", "Alter"), ("alter_topic", "AlterConfigs")],
)
def test_request_when_a_right_is_missing_then_the_error_names_it(request_name: str, right: str) -> None:
    with pytest.raises(RefusedError, match=f": this user needs the right {right} on topic t$"):
        REQUESTS[request_name](cluster_of(kafka_errors.TopicAuthorizationFailedError()))


class SilentBroker:
    """Knows a broker, whose address does not answer."""

    def __init__(self, kafka_client: Callable[..., Any], **_: Any) -> None:
        broker = MetadataResponse.MetadataResponseBroker(node_id=7, host="inside", port=9094, rack=None)
        kafka_client(bootstrap_servers="127.0.0.1:1").cluster.brokers = lambda: [broker]

    def list_topics(self) -> list[str]:
        raise kafka_errors.KafkaConnectionError("111 ECONNREFUSED")


def test_request_when_an_advertised_address_does_not_answer_then_the_error_names_cluster_and_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admin_client, "KafkaAdminClient", SilentBroker)
    admin = admin_client.AdminClient(parse_address("kafka://west:9092"), {})
    with pytest.raises(UnansweredError) as raised:
        admin.list_topics()
    assert str(raised.value) == (
        "kafka://west:9092: no answer of broker 7 at inside:9094, as the cluster advertises: "
        "KafkaConnectionError: 111 ECONNREFUSED"
    )
    with pytest.raises(UnansweredError, match="could not be read: no answer of broker 7 at inside:9094"):
        REQUESTS["bounds"](cluster_of(raised.value))
