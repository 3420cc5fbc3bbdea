"""AlterConfigs and IncrementalAlterConfigs at an endpoint, and edited files: the configuration of topics as it runs.

KIP-283, "Public Interfaces": `message.downconversion.enable` of a topic.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource
from kafka.protocol.admin import AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.metadata import ApiVersionsRequest

from endpoints.endpoint_process import EndpointProcess
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch
from endpoints.served import Served
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from kafkafmt.server.topics_file import TopicsFile
from log.samples import batches, put_segment
from serve.produced import create_topics

if TYPE_CHECKING:
    from broker.broker import Broker

ENABLE = "message.downconversion.enable"
NO_ERROR, UNKNOWN_TOPIC, UNSUPPORTED_VERSION, INVALID_CONFIG, INVALID_REQUEST = 0, 3, 35, 40, 42
STORAGE_ERROR = 56
BROKER, TOPIC = 4, 2
SET, DELETE, APPEND, SUBTRACT = range(4)
OLD_FETCH = 2
SECONDS = 60
Request = Callable[[str, str], Any]


def incremental(
    topic: str, *configs: tuple[str, int, str | None], kind: int = TOPIC, validate_only: bool = False
) -> Any:
    """configs: name, operation and value."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=topic,
                configs=[
                    resource.AlterableConfig(name=name, config_operation=operation, value=value)
                    for name, operation, value in configs
                ],
            )
        ],
        validate_only=validate_only,
    )


def replaced(
    topic: str, *configs: tuple[str, str | None], kind: int = TOPIC, validate_only: bool = False
) -> Any:
    resource = AlterConfigsRequest.AlterConfigsResource
    return AlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=topic,
                configs=[resource.AlterableConfig(name=name, value=value) for name, value in configs],
            )
        ],
        validate_only=validate_only,
    )


def altered(client: RawClient, request: Any, version: int = 1) -> tuple[int, str | None]:
    """The error code and message for the one resource."""
    (one,) = client.ask(request, version).responses
    return one.error_code, one.error_message


def old_fetch_code(client: RawClient, topic: str = "a") -> int:
    (found,) = client.ask(fetch(Wanted(topic)), OLD_FETCH).responses
    (partition,) = found.partitions
    return int(partition.error_code)


def described(client: RawClient, topic: str) -> dict[str, tuple[str, bool]]:
    """The values, and whether they are read-only."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC, resource_name=topic, configuration_keys=None
    )
    (result,) = client.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    return {one.name: (one.value, one.read_only) for one in result.configs}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for topic in ("a", "b"):
        put_segment(tmp_path / "logs" / f"{topic}-0", 0, batches(0, 3))
    return tmp_path / "logs"


@pytest.fixture
def client(logs: Path) -> Iterator[RawClient]:
    with Served(logs, allow_alter_configs=True) as served, RawClient(served.address) as client:
        yield client


@pytest.mark.full
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
@pytest.mark.parametrize(
    "request_for",
    [
        lambda topic, value: replaced(topic, (ENABLE, value)),
        lambda topic, value: incremental(topic, (ENABLE, SET, value)),
    ],
    ids=["AlterConfigs", "IncrementalAlterConfigs"],
)
def test_kip_283_public_interfaces_altered_downconversion_applies_to_the_next_fetch_and_is_kept(
    logs: Path, request_for: Request, options: tuple[str, ...]
) -> None:
    with EndpointProcess(logs, "--allow-alter-configs", *options) as endpoint:
        with (
            RawClient((endpoint.host, endpoint.port)) as admin,
            RawClient((endpoint.host, endpoint.port)) as old,
        ):
            assert old_fetch_code(old) == NO_ERROR
            for value, expected in (
                ("false", UNSUPPORTED_VERSION),
                ("true", NO_ERROR),
                ("false", UNSUPPORTED_VERSION),
            ):
                assert altered(admin, request_for("a", value)) == (NO_ERROR, None)
                assert (old_fetch_code(old), old_fetch_code(old, "b")) == (expected, NO_ERROR)
        endpoint.send_signal(signal.SIGKILL)
        endpoint.wait()
        endpoint.start()
        with RawClient((endpoint.host, endpoint.port)) as old:
            assert (old_fetch_code(old), old_fetch_code(old, "b")) == (UNSUPPORTED_VERSION, NO_ERROR)


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_kip_283_public_interfaces_downconversion_in_an_edited_topics_file_applies(
    logs: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    topics_file = tmp_path / "topics"
    topics_file.write_text(f"[a]\n{ENABLE} = true\n")
    with (
        EndpointProcess(logs, "--topics-file", str(topics_file), *options) as endpoint,
        RawClient((endpoint.host, endpoint.port)) as old,
    ):
        for value, expected in (("false", UNSUPPORTED_VERSION), ("true", NO_ERROR)):
            topics_file.write_text(f"[a]\n{ENABLE} = {value}\n")
            deadline = time.monotonic() + SECONDS
            while old_fetch_code(old) != expected:
                assert time.monotonic() < deadline
            assert old_fetch_code(old, "b") == NO_ERROR


@pytest.mark.clients
def test_admin_clients_alter_and_describe_configurations(logs: Path) -> None:
    from confluent_kafka import admin as confluent

    with Served(logs, allow_alter_configs=True) as served, RawClient(served.address) as client:
        bootstrap = "{}:{}".format(*served.address)
        ours = KafkaAdminClient(bootstrap_servers=bootstrap)
        for is_incremental, value in ((True, "false"), (False, "true")):
            ours.alter_configs([ConfigResource("TOPIC", "a", {ENABLE: value})], incremental=is_incremental)
            assert described(client, "a")[ENABLE] == (value, False)
            # The next fetch applies it.
            assert old_fetch_code(client) == (NO_ERROR if value == "true" else UNSUPPORTED_VERSION)
        ours.close()

        theirs = confluent.AdminClient({"bootstrap.servers": bootstrap})
        entry = confluent.ConfigEntry(
            "cleanup.policy", "compact", incremental_operation=confluent.AlterConfigOpType.APPEND
        )
        resource = confluent.ConfigResource("topic", "a", incremental_configs=[entry])
        for future in theirs.incremental_alter_configs([resource]).values():
            assert future.result(SECONDS) is None
        assert described(client, "a")["cleanup.policy"] == ("delete,compact", False)
        replacing = confluent.ConfigResource("topic", "a", set_config={"retention.ms": "1000"})
        for future in theirs.alter_configs([replacing]).values():
            assert future.result(SECONDS) is None
        assert described(client, "a") == {ENABLE: ("true", False), "retention.ms": ("1000", False)}


def test_change_keeps_partitions_and_the_other_topics(logs: Path, client: RawClient) -> None:
    set_topic_config(logs, "a", TopicConfig(1, {"retention.ms": "1"}))
    set_topic_config(logs, "b", TopicConfig(None, {"retention.ms": "2"}))
    assert altered(client, incremental("a", (ENABLE, SET, "false"), ("retention.ms", DELETE, None)))[0] == 0
    assert read_topic_configs(logs) == {
        "a": TopicConfig(1, {ENABLE: "false"}),
        "b": TopicConfig(None, {"retention.ms": "2"}),
    }
    assert altered(client, replaced("b"))[0] == 0
    assert read_topic_configs(logs)["b"] == TopicConfig(None, {})


def test_change_that_is_only_validated_changes_nothing(logs: Path, client: RawClient) -> None:
    assert altered(client, replaced("a", (ENABLE, "false"), validate_only=True)) == (NO_ERROR, None)
    assert altered(client, replaced("a", (ENABLE, "no"), validate_only=True))[0] == INVALID_CONFIG
    assert not (logs / "topics.ini").exists()
    assert old_fetch_code(client) == NO_ERROR


def test_request_when_a_topic_is_refused_then_changes_the_others(logs: Path, client: RawClient) -> None:
    request = replaced("a", (ENABLE, "false"))
    request.resources += replaced("b", (ENABLE, "maybe")).resources + replaced("none").resources
    request.resources += replaced("c").resources * 2
    found = {one.resource_name: one.error_code for one in client.ask(request, 2).responses}
    assert found == {"a": NO_ERROR, "b": INVALID_CONFIG, "none": UNKNOWN_TOPIC, "c": INVALID_REQUEST}
    assert read_topic_configs(logs) == {"a": TopicConfig(None, {ENABLE: "false"})}


def test_property_that_the_topics_file_sets_is_refused_with_its_reason(logs: Path) -> None:
    above = TopicsFile(Path("topics"), {"a": {ENABLE: "true"}})
    with (
        Served(logs, allow_alter_configs=True, topics_file=above) as served,
        RawClient(served.address) as client,
    ):
        code, message = altered(client, incremental("a", (ENABLE, SET, "false")))
        assert code == INVALID_CONFIG
        assert message == f"the topics file of the endpoint sets {ENABLE} of topic 'a'"
        assert described(client, "a") == {ENABLE: ("true", True)}
        assert altered(client, incremental("b", (ENABLE, SET, "false")))[0] == NO_ERROR


def test_malformed_topics_ini_is_told_and_stays(logs: Path, client: RawClient) -> None:
    (logs / "topics.ini").write_text("no section\n")
    code, message = altered(client, replaced("a", (ENABLE, "false")))
    assert code == STORAGE_ERROR
    assert message is not None
    assert "topics.ini, line 1" in message
    assert (logs / "topics.ini").read_text() == "no section\n"


def test_endpoint_that_does_not_allow_it_neither_tells_nor_serves_it(logs: Path) -> None:
    with Served(logs) as served:
        for request in (replaced("a"), incremental("a")):
            with RawClient(served.address) as client:
                told = {api.api_key for api in client.ask(ApiVersionsRequest(), 0).api_keys}
                assert request.API_KEY not in told
                client.send(request, 0)
                assert client.is_closed_by_peer()
                with RawClient(served.address) as reader:
                    assert described(reader, "a") == {ENABLE: ("true", True)}
    assert not (logs / "topics.ini").exists()


def requests(topic: str) -> list[Any]:
    """What a broker accepts and what it refuses."""
    alike = [
        ("retention.ms", "1000"),
        ("retention.ms", "-2"),
        ("retention.ms", None),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", "keep"),
        ("made.up", "x"),
    ]
    return [
        *(replaced(topic, (name, value), validate_only=True) for name, value in alike),
        *(incremental(topic, (name, SET, value), validate_only=True) for name, value in alike),
        replaced("not.there", ("retention.ms", "1")),
        incremental("not.there", ("retention.ms", SET, "1")),
        replaced(topic, ("retention.ms", "1"), ("retention.ms", "2")),
        incremental(topic, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
        incremental(topic, ("retention.ms", APPEND, "1")),
        incremental(topic, ("retention.ms", SUBTRACT, "1")),
        incremental(topic, ("retention.ms", DELETE, None)),
        incremental(topic, ("cleanup.policy", APPEND, "compact")),
        incremental(topic, ("cleanup.policy", APPEND, "keep")),
        incremental(topic, ("cleanup.policy", SUBTRACT, "delete")),
        replaced("", ("retention.ms", "1")),
    ]


def about(request: Any) -> str:
    (resource,) = request.resources
    return f"{type(request).__name__} {resource.resource_name!r} {[*map(str, resource.configs)]}"


@pytest.mark.broker
@pytest.mark.xdist_group("broker")
def test_changes_are_accepted_and_refused_as_by_a_broker(any_broker: Broker, tmp_path: Path) -> None:
    host, _, port = any_broker.bootstrap.rpartition(":")
    topic = f"altered-{tmp_path.name}".replace("_", "-")

    def told(address: tuple[str, int]) -> list[tuple[str, int]]:
        with RawClient(address) as client:
            client.ask(create_topics(topic), 7)
            return [(about(request), altered(client, request)[0]) for request in requests(topic)]

    with Served(tmp_path, allow_produce=True) as served:
        found = told(served.address)
    expected = told((host, int(port)))
    assert [pair for pair in zip(found, expected, strict=True) if pair[0] != pair[1]] == []
