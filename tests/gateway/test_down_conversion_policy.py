"""KIP-283, "Public Interfaces": `message.downconversion.enable` of topics in a cluster that still has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import TopicAuthorizationFailedError, UnsupportedVersionError
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
        self.error_code = 0

    async def any(self) -> OldCluster:
        return self

    def versions(self) -> dict[int, range]:
        return {ApiKey.Fetch: range(17)}

    def version(self, _: int, newest: int) -> int:
        return newest

    async def ask(self, _: Any) -> Any:
        self.asked += 1
        config = SimpleNamespace(name=ENABLE, value=None if self.error_code else self.value)
        if self.is_slow:
            await asyncio.sleep(0)
        return SimpleNamespace(results=[SimpleNamespace(error_code=self.error_code, configs=[config])])


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


def test_topic_when_the_cluster_does_not_describe_it_then_this_client_asks_again_after_ten_seconds() -> None:
    now = 0.0
    policy = DownConversionPolicy(None, clock=lambda: now)
    refused, allowed = OldCluster(), OldCluster()
    refused.error_code = TopicAuthorizationFailedError.errno
    allowed.value = "false"

    def converts(cluster: OldCluster, topic: str) -> bool:
        return asyncio.run(policy.converts(topic, cluster))  # type: ignore[arg-type]

    assert [converts(refused, topic) for topic in ("orders", "orders", "bills", "orders")] == [True] * 4
    assert refused.asked == 2
    assert not converts(allowed, "orders")  # another client may ask
    assert not converts(refused, "orders")  # what one client knows holds for all
    now = 10.0
    assert converts(refused, "bills")
    assert refused.asked == 3


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
