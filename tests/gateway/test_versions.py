"""The versions that a gateway offers are those that it passes on or translates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.protocol.metadata import ApiVersionsRequest

from endpoints.endpoint_process import EndpointProcess, gateway_process
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch
from log.samples import batches, put_segment

pytestmark = pytest.mark.slow

NEWEST_OF_2_0 = 8  # of Fetch


@pytest.fixture
def client(tmp_path: Path) -> Iterator[RawClient]:
    put_segment(tmp_path / "t-0", 0, batches(0, 1))
    with (
        EndpointProcess(tmp_path) as upstream,
        gateway_process(upstream.address, "--cluster-config", "api.version=2.0") as gateway,
        RawClient((gateway.host, gateway.port)) as client,
    ):
        yield client


def test_versions_when_the_cluster_counts_as_an_older_one_then_those_of_it_are_offered(
    client: RawClient,
) -> None:
    offered = {one.api_key: one for one in client.ask(ApiVersionsRequest(), 2).api_keys}
    assert (offered[ApiKey.Fetch].min_version, offered[ApiKey.Fetch].max_version) == (0, NEWEST_OF_2_0)
    answer = client.ask(fetch(Wanted("t")), offered[ApiKey.Fetch].max_version)
    assert answer.responses[0].partitions[0].error_code == 0
