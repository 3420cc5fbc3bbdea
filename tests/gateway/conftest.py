"""A gateway to the real broker of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from endpoints.endpoint_process import EndpointProcess, gateway_process
from gateway.several_brokers import Several, several_brokers

if TYPE_CHECKING:
    from broker.broker import Broker


@pytest.fixture(scope="session")
def gateway(broker: Broker) -> Iterator[EndpointProcess]:
    """A running gateway to the broker of Kafka 4: `.address`."""
    with gateway_process(broker.bootstrap) as running:
        yield running


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """A cluster of three brokers of Kafka 4, and a gateway to it."""
    with several_brokers(tmp_path_factory.mktemp("several")) as running:
        yield running
