"""Requests of an administrator that a cluster cannot answer while its brokers restart: a mirror may try them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from uuid import UUID

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
UNKNOWN = kafka_errors.UnknownTopicOrPartitionError


class FailingAdmin:
    """Raises the error for each request."""

    def __init__(self, error: kafka_errors.KafkaError) -> None:
        self._error = error

    def __getattr__(self, _: str) -> Callable[..., Any]:
        def fail(*_: object, **__: object) -> None:
            raise self._error

        return fail


def cluster_of(error: kafka_errors.KafkaError) -> MirrorCluster:
    return cluster_with(FailingAdmin(error))


def cluster_with(admin: Any) -> MirrorCluster:
    cluster = MirrorCluster.__new__(MirrorCluster)  # its constructor would connect
    cluster.address = parse_address("kafka://west:9092")
    cluster._admin = admin
    return cluster


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS.keys())
@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NodeNotReadyError(1),
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


def test_end_offset_when_the_broker_does_not_know_the_partition_then_the_error_may_be_retried() -> None:
    with pytest.raises(UnansweredError, match=r"^kafka://west:9092: partition t-0 is not known"):
        cluster_of(UNKNOWN()).end_offset(PARTITION)


class LaggingAdmin:
    """Brokers of which each has an error for the topic. The first one answers requests to any."""

    def __init__(self, *errors: type[kafka_errors.KafkaError]) -> None:
        self._errors = errors

    def describe_topics(self, names: Iterable[str]) -> list[dict[str, Any]]:
        code = self._errors[0].errno
        return [
            {"name": name, "error_code": code, "partitions": [], "topic_id": UUID(int=0)} for name in names
        ]

    def topic_errors(self, _: str) -> Iterator[type[kafka_errors.KafkaError]]:
        return iter(self._errors)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([kafka_errors.NoError], True),
        ([UNKNOWN, UNKNOWN, kafka_errors.NoError], True),
        ([UNKNOWN, UNKNOWN], False),
        ([UNKNOWN, kafka_errors.LeaderNotAvailableError], True),
        ([kafka_errors.TopicAuthorizationFailedError], False),
    ],
)
def test_topic_when_some_brokers_do_not_know_it_then_it_is_missing_only_if_none_knows_it(
    errors: list[type[kafka_errors.KafkaError]], expected: bool
) -> None:
    assert cluster_with(LaggingAdmin(*errors)).has_topic("t") == expected


@pytest.mark.parametrize(("error", "expected"), [(kafka_errors.NoError, {"t": None}), (UNKNOWN, {})])
def test_topic_ids_when_a_broker_has_no_ids_then_topics_that_it_does_not_know_differ(
    error: type[kafka_errors.KafkaError], expected: dict[str, None]
) -> None:
    assert cluster_with(LaggingAdmin(error)).topic_ids(["t"]) == expected


class SilentAdmin:
    """Knows brokers, and fails in each request."""

    brokers: ClassVar[dict[int, str]] = {7: "inside"}
    error: ClassVar[Exception] = kafka_errors.KafkaConnectionError("111 ECONNREFUSED")

    def __init__(self, kafka_client: Callable[..., Any], **_: Any) -> None:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=9094, rack=None)
            for node_id, host in self.brokers.items()
        ]
        client = kafka_client(bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=60_000)
        client.cluster.brokers = lambda: brokers

    def list_topics(self) -> list[str]:
        raise self.error


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., admin_client.AdminClient]:
    def make(**attributes: object) -> admin_client.AdminClient:
        monkeypatch.setattr(admin_client, "KafkaAdminClient", type("Admin", (SilentAdmin,), attributes))
        return admin_client.AdminClient(parse_address("kafka://west:9092"), {})

    return make


def test_request_when_an_advertised_address_does_not_answer_then_the_error_names_cluster_and_address(
    silent: Callable[..., admin_client.AdminClient],
) -> None:
    with pytest.raises(UnansweredError) as raised:
        silent().list_topics()
    assert str(raised.value) == (
        "kafka://west:9092: no answer of broker 7 at inside:9094, as the cluster advertises: "
        "KafkaConnectionError: 111 ECONNREFUSED"
    )
    with pytest.raises(UnansweredError, match="could not be read: no answer of broker 7 at inside:9094"):
        REQUESTS["bounds"](cluster_of(raised.value))


@pytest.mark.parametrize(
    ("failed", "named"),
    [
        ({8}, "no answer of broker 8 at b:9094, as"),
        (set(), "no answer of one of broker 7 at a:9094, broker 8"),
    ],
    ids=["a connection has failed", "a request has"],
)
def test_request_when_one_of_several_brokers_does_not_answer_then_the_others_are_not_blamed(
    silent: Callable[..., admin_client.AdminClient], failed: set[int], named: str
) -> None:
    admin = silent(brokers={7: "a", 8: "b"})
    for node_id in failed:
        admin._manager.update_backoff(node_id)
    with pytest.raises(UnansweredError, match=named):
        admin.list_topics()


def test_topic_when_asked_for_then_each_broker_is_asked_that_answers(
    silent: Callable[..., admin_client.AdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, codes = silent(brokers={6: "dead", 7: "inside", 8: "outside"}), {7: UNKNOWN.errno, 8: 0}

    def ask(_: object, node_id: int) -> Any:
        if node_id not in codes:
            raise UnansweredError("no answer")
        return SimpleNamespace(topics=[SimpleNamespace(error_code=codes[node_id])])

    monkeypatch.setattr(admin, "_ask", ask)
    assert list(admin.topic_errors("t")) == [UNKNOWN, kafka_errors.NoError]


def test_request_when_its_broker_has_gone_then_the_next_one_looks_for_the_controller_again(
    silent: Callable[..., admin_client.AdminClient],
) -> None:
    """Before, topics were not created until the mirror was started again."""
    gone = kafka_errors.UnknownBrokerIdError(7)
    opened: list[SilentAdmin] = []
    closed: list[SilentAdmin] = []

    def list_topics(admin: SilentAdmin) -> list[str]:
        if admin not in opened:
            opened.append(admin)
        if len(opened) == 1:
            raise gone
        return ["t"]

    admin = silent(list_topics=list_topics, close=lambda one: closed.append(one))
    with pytest.raises(UnansweredError, match="UnknownBrokerIdError: 7"):
        admin.list_topics()
    assert (len(opened), len(closed)) == (1, 0)
    assert admin.list_topics() == admin.list_topics() == ["t"]
    assert (len(opened), closed) == (2, opened[:1])
    admin.close()
    assert closed == opened
