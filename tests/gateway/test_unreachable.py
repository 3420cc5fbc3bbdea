"""A gateway whose cluster cannot be reached yet, or not any more: clients get errors that they try again for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.protocol.consumer import JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from endpoints.endpoint_process import EndpointProcess, gateway_process, lasting_address
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch, list_offsets, metadata
from log.samples import batches, put_segment
from serve.produced import answered, batch, produce

pytestmark = pytest.mark.slow

LEADER_NOT_AVAILABLE, NOT_LEADER, NO_COORDINATOR = 5, 6, 15
ILLEGAL_SASL_STATE = 34
RECORDS = 3


@pytest.fixture
def upstream(tmp_path: Path) -> EndpointProcess:
    """What is to become the cluster: not yet started."""
    put_segment(tmp_path / "t-0", 0, batches(0, RECORDS))
    return EndpointProcess(tmp_path, "--allow-produce", listen=lasting_address())


@pytest.fixture
def client(upstream: EndpointProcess) -> Iterator[RawClient]:
    with gateway_process(upstream.listens_at) as gateway, RawClient((gateway.host, gateway.port)) as client:
        yield client


def codes(message: Any) -> list[int]:
    """The error codes of the partitions in a response."""
    return [one.error_code for topic in message.topics for one in topic.partitions]


def offset_commit() -> Any:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, commit_timestamp=-1, committed_metadata=""
    )
    return OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[topic(name="t", partitions=[partition])],
    )


def offset_fetch() -> Any:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    return OffsetFetchRequest(group_id="g", topics=[topic(name="t", partition_indexes=[0])])


def join_group() -> Any:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


def assert_answers_errors(client: RawClient) -> None:
    """On one connection: none of the answers ends it. What the cluster takes itself is not among the requests."""
    for version in (0, 1, 9, 12):
        found = client.ask(metadata(["t"]), version)
        assert (found.brokers, [one.error_code for one in found.topics]) == ([], [LEADER_NOT_AVAILABLE])
    for version in (0, 2, 4):
        asked = FindCoordinatorRequest(key="g", key_type=0, coordinator_keys=["g"])
        found = client.ask(asked, version)
        assert [one.error_code for one in (found.coordinators if version == 4 else [found])] == [
            NO_COORDINATOR
        ]
    for version in (0, 2, 3):
        (topic,) = client.ask(fetch(Wanted("t")), version).responses
        assert [one.error_code for one in topic.partitions] == [NOT_LEADER]
    for version in (0, 2):
        (answer,) = answered(client, produce(batch(1, magic=version // 2), topic="t"), version)
        assert answer.error_code == NOT_LEADER


def assert_answers_errors_of_dropped_versions(client: RawClient) -> None:
    assert codes(client.ask(list_offsets(("t", 0, -1)), 0)) == [NOT_LEADER]
    for version in (0, 1):
        assert client.ask(join_group(), version).error_code == NO_COORDINATOR
    # Clients of v0 know no coordinators. kafka-python 1.3.5 tries again for LEADER_NOT_AVAILABLE only.
    for request in (offset_commit(), offset_fetch()):
        assert codes(client.ask(request, 0)) == [LEADER_NOT_AVAILABLE]
    assert codes(client.ask(offset_commit(), 1)) == [NO_COORDINATOR]


def test_cluster_when_it_cannot_be_reached_then_old_clients_get_errors_until_it_can(
    upstream: EndpointProcess, client: RawClient
) -> None:
    assert_answers_errors_of_dropped_versions(client)
    for _ in range(2):  # before its first start, and after it was killed
        assert_answers_errors(client)
        with upstream:
            while not client.ask(metadata(["t"]), 0).brokers:
                pass
            (topic,) = client.ask(fetch(Wanted("t")), 0).responses
            assert (topic.partitions[0].error_code, topic.partitions[0].high_watermark) == (0, RECORDS)


def test_cluster_when_it_cannot_be_reached_then_new_clients_are_told_by_the_end_of_their_connection(
    client: RawClient,
) -> None:
    client.send(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
    assert client.is_closed_by_peer()


def test_sasl_of_clients_then_ends_at_the_gateway_which_asks_no_broker(client: RawClient) -> None:
    """What it would ask, on a connection that it has authenticated itself, is whether the password is its own."""
    assert client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ILLEGAL_SASL_STATE
    assert client.ask(SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 1).error_code == ILLEGAL_SASL_STATE
