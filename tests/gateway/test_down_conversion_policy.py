"""KIP-283, "Public Interfaces": `message.downconversion.enable` of topics in a cluster that still has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import UnsupportedVersionError
from kafka.protocol.api_key import ApiKey

from endpoints.endpoint_here import connect, serving
from endpoints.fetched import partitions
from endpoints.requests import Wanted, fetch
from gateway.gateway_here import gateway_to
from kafkafmt.gateway.down_conversion import DownConversionPolicy
from log.samples import batches, put_segment
from serve.test_alter_configs import OLD_FETCH, SET, incremental, replaced

ENABLE = "message.downconversion.enable"


class OldCluster:
    """The connection to a broker of Kafka 3: counts how often it is asked."""

    def __init__(self) -> None:
        self.value, self.asked = "true", 0
        self.is_slow = False

    async def any(self) -> OldCluster:
        return self

    def versions(self) -> dict[int, range]:
        return {ApiKey.Fetch: range(17)}

    def version(self, _: int, newest: int) -> int:
        return newest

    async def ask(self, _: Any) -> Any:
        self.asked += 1
        config = SimpleNamespace(name=ENABLE, value=self.value)
        if self.is_slow:
            await asyncio.sleep(0)
        return SimpleNamespace(results=[SimpleNamespace(error_code=0, configs=[config])])


def test_kip_283_public_interfaces_when_a_client_alters_the_configuration_then_the_next_fetch_applies_it() -> (
    None
):
    cluster, policy = OldCluster(), DownConversionPolicy(None, clock=lambda: 0.0)

    def converts() -> bool:
        return asyncio.run(policy.converts("orders", cluster))  # type: ignore[arg-type]

    assert [converts(), converts()] == [True, True]
    assert cluster.asked == 1
    cluster.value = "false"
    assert converts()  # the answer is used for some seconds
    policy.forget_answers()
    assert [converts(), converts()] == [False, False]
    assert cluster.asked == 2


def test_kip_283_public_interfaces_when_the_cluster_answers_during_a_change_then_it_is_asked_again() -> None:
    cluster, policy = OldCluster(), DownConversionPolicy(None, clock=lambda: 0.0)

    async def scenario() -> None:
        cluster.is_slow = True
        asking = asyncio.ensure_future(policy.converts("orders", cluster))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert cluster.asked == 1
        cluster.value = "false"
        policy.forget_answers()
        assert await asking
        assert not await policy.converts("orders", cluster)  # type: ignore[arg-type]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_of_broker", [False, True], ids=["port of the cluster", "port of a broker"])
@pytest.mark.parametrize(
    "altering",
    [replaced("t", (ENABLE, "false")), incremental("t", (ENABLE, SET, "false"))],
    ids=["all", "one"],
)
def test_kip_283_public_interfaces_when_a_client_has_the_answer_to_its_change_then_it_applies(
    tmp_path: Path, altering: Any, is_of_broker: bool
) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 3))

    async def scenario() -> list[int]:
        codes = []
        async with (
            serving(tmp_path, allow_alter_configs=True) as here,
            gateway_to(here.endpoint.address) as (gateway, port),
        ):
            host, port_of_all = gateway.address
            with await connect((host, port if is_of_broker else port_of_all)) as client:
                for alters in (False, True):
                    if alters:
                        (altered,) = (await client.ask(altering, 1)).responses
                        codes.append(altered.error_code)
                    fetched = partitions(await client.ask(fetch(Wanted("t")), OLD_FETCH))["t", 0]
                    codes.append(fetched.error_code)
        return codes

    assert asyncio.run(scenario()) == [0, 0, UnsupportedVersionError.errno]
