"""Clients that send no request for a while, as those of `kafkafmt serve` may."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpoints.endpoint_process import EndpointProcess, gateway_process
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch
from log.samples import batches, put_segment

pytestmark = pytest.mark.slow

IDLE_SECONDS = 1
PASSED = 11  # a version of Fetch that passes unchanged
END = 3  # of the log


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[EndpointProcess]:
    put_segment(tmp_path / "t-0", 0, batches(0, END))
    with (
        EndpointProcess(tmp_path) as upstream,
        gateway_process(upstream.address, "--idle-timeout", str(IDLE_SECONDS)) as running,
    ):
        yield running


def test_client_when_it_waits_for_a_response_then_is_idle_from_when_it_has_it(
    gateway: EndpointProcess,
) -> None:
    with RawClient((gateway.host, gateway.port)) as client:
        began = time.monotonic()
        answer = client.ask(fetch(Wanted("t", offset=END), max_wait_ms=3500 * IDLE_SECONDS), PASSED)
        assert answer.responses[0].partitions[0].error_code == 0
        assert client.is_closed_by_peer()
        assert time.monotonic() - began > (3.5 + 0.9) * IDLE_SECONDS
