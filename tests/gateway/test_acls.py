"""ACLs at version 0, through a gateway to Kafka 4 and at Kafka 3.9 itself. Both have an authorizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka.protocol import admin

from broker.broker import HOST, KAFKA_3, KAFKA_4, Broker
from endpoints.endpoint_process import gateway_process
from endpoints.raw_client import RawClient, plain

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("acls")]

AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ANY, TOPIC, READ, ALLOW = 1, 2, 3, 3
LITERAL, PREFIXED = 3, 4
ALICE = {"principal": "User:alice", "host": "*", "operation": READ, "permission_type": ALLOW}


@pytest.fixture(scope="module", params=["gateway", "3.9"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    folder, kafka = tmp_path_factory.mktemp("authorized"), KAFKA_3 if request.param == "3.9" else KAFKA_4
    with Broker(folder, AUTHORIZED, kafka=kafka) as broker:
        if kafka is KAFKA_3:
            with RawClient((HOST, broker.port)) as client:
                yield client
            return
        with (
            gateway_process(broker.bootstrap) as gateway,
            RawClient((gateway.host, gateway.port)) as client,
        ):
            yield client


def created(client: RawClient, name: str, version: int, pattern_type: int = LITERAL) -> list[int]:
    creation = admin.CreateAclsRequest.AclCreation(
        resource_type=TOPIC, resource_name=name, resource_pattern_type=pattern_type, **ALICE
    )
    answer = client.ask(admin.CreateAclsRequest(creations=[creation]), version)
    return [one.error_code for one in answer.results]


def described(client: RawClient, name: str | None) -> list[tuple[str, list[dict[str, Any]]]]:
    request = admin.DescribeAclsRequest(
        resource_type_filter=TOPIC,
        resource_name_filter=name,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    answer = plain(client.ask(request, 0))
    assert answer["error_code"] == 0
    return sorted((one["resource_name"], one["acls"]) for one in answer["resources"])


def deleted(client: RawClient, name: str) -> list[str]:
    acl_filter = admin.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter=name,
        principal_filter=None,
        host_filter=None,
        operation=ANY,
        permission_type=ANY,
    )
    (found,) = plain(client.ask(admin.DeleteAclsRequest(filters=[acl_filter]), 0))["filter_results"]
    assert found["error_code"] == 0
    return [one["resource_name"] for one in found["matching_acls"]]


def test_acls_when_they_are_v0_then_they_are_made_told_and_deleted(client: RawClient) -> None:
    assert created(client, "orders", 0) == [0]
    assert described(client, "orders") == [("orders", [ALICE])]
    assert deleted(client, "orders") == ["orders"]
    assert described(client, "orders") == []


def test_acls_when_they_are_of_prefixes_then_v0_leaves_them_alone(client: RawClient) -> None:
    assert created(client, "orders", 1, PREFIXED) == [0]
    assert created(client, "views", 0) == [0]
    assert described(client, None) == [("views", [ALICE])]
    assert deleted(client, "orders") == []
