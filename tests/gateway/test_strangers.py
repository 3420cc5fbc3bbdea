"""Clients that have not authenticated: what they get takes no connections of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from endpoints.endpoint_process import HOST, EndpointProcess, gateway_process, lasting_address
from endpoints.raw_client import RawClient
from endpoints.requests import metadata
from endpoints.scraping import metric
from kafkafmt.gateway.broker_versions import BrokerVersions, VersionsForStrangers
from log.samples import batches, put_segment

STRANGERS = 20


@pytest.fixture
def metrics() -> str:
    return lasting_address()


@pytest.fixture
def gateway(tmp_path: Path, metrics: str) -> Iterator[EndpointProcess]:
    put_segment(tmp_path / "logs" / "t-0", 0, batches(0, 1))
    users = tmp_path / "users.ini"
    users.write_text("[alice]\npassword = wonderland\n")
    with (
        EndpointProcess(tmp_path / "logs", "--metrics", metrics) as upstream,
        gateway_process(upstream.address, "--sasl-users", str(users)) as running,
    ):
        yield running


@pytest.mark.slow
def test_strangers_when_they_are_many_then_get_the_versions_and_few_connections_of_the_cluster(
    gateway: EndpointProcess, metrics: str
) -> None:
    with ExitStack() as stack:
        for _ in range(STRANGERS):
            client = stack.enter_context(RawClient((gateway.host, gateway.port)))
            assert len(client.ask(ApiVersionsRequest(), 3).api_keys) > 10
        # One of a stranger, and those that the gateway made at its start.
        assert metric(metrics, "kafkafmt_connections") < STRANGERS / 4
        client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        assert not client.ask(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wonderland"), 2).error_code
        assert [topic.name for topic in client.ask(metadata(["t"]), 4).topics] == ["t"]


def test_versions_for_strangers_when_a_broker_was_asked_then_are_used_for_ten_seconds() -> None:
    now, asked = 100.0, 0

    async def ask() -> BrokerVersions:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if asked == 2:
            raise ConnectionError(HOST)
        return BrokerVersions(asked, None, {})

    async def scenario() -> None:
        nonlocal now
        strangers = VersionsForStrangers(lambda: now)
        told = await asyncio.gather(*(strangers.get(ask) for _ in range(STRANGERS)))
        assert {one.newest for one in told} == {1}
        now += 10
        found = await asyncio.gather(*(strangers.get(ask) for _ in range(3)), return_exceptions=True)
        assert isinstance(found[0], ConnectionError)
        assert found[1:] == [BrokerVersions(3, None, {})] * 2

    asyncio.run(scenario())
