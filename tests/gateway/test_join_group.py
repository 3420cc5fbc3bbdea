"""JoinGroup v0 and v1 through a gateway to Kafka 4.0.0, the one release that has dropped them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from broker.broker import HOST, KAFKA_4_0, Broker
from endpoints import group_requests
from endpoints.endpoint_process import gateway_process
from endpoints.raw_client import RawClient

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("kafka-4.0")]

UNKNOWN_MEMBER_ID = 25


@pytest.fixture(scope="module")
def broker_4_0(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("broker-4.0")
    with Broker(folder, kafka=KAFKA_4_0) as broker:
        broker.wait_for_coordinator()
        yield broker


@pytest.fixture
def client(broker_4_0: Broker) -> Iterator[RawClient]:
    with (
        gateway_process(broker_4_0.bootstrap) as gateway,
        RawClient((gateway.host, gateway.port)) as client,
    ):
        yield client


def join_versions(client: RawClient) -> tuple[int, int]:
    answer = client.ask(ApiVersionsRequest(), 0)
    (found,) = [api for api in answer.api_keys if api.api_key == ApiKey.JoinGroup]
    return found.min_version, found.max_version


@pytest.mark.parametrize("version", [0, 1])
def test_join_group_when_it_is_old_then_the_group_goes_round(client: RawClient, version: int) -> None:
    group = f"joined-{version}"
    joined = client.ask(group_requests.join(version=version, group=group), version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert [(one.member_id, one.metadata) for one in joined.members] == [
        (joined.member_id, group_requests.SUBSCRIPTION)
    ]
    member, generation = joined.member_id, joined.generation_id
    synced = client.ask(group_requests.sync(member, generation, {member: b"a part"}, 0, group), 0)
    assert (synced.error_code, synced.assignment) == (0, b"a part")
    assert client.ask(group_requests.heartbeat(member, generation, 0, group), 0).error_code == 0
    assert client.ask(group_requests.leave(member, 0, group=group), 0).error_code == 0


@pytest.mark.parametrize("version", [0, 1])
def test_join_group_when_the_member_is_unknown_then_an_error(client: RawClient, version: int) -> None:
    joined = client.ask(group_requests.join("a stranger", version, "of strangers"), version)
    assert joined.error_code == UNKNOWN_MEMBER_ID


def test_join_group_when_versions_are_asked_for_then_old_and_new_are_offered(
    client: RawClient, broker_4_0: Broker
) -> None:
    with RawClient((HOST, broker_4_0.port)) as direct:
        least, newest = join_versions(direct)
        direct.send(group_requests.join(version=1), 1)
        assert direct.is_closed_by_peer()
    assert least == 2
    assert join_versions(client) == (0, newest)
