"""A gateway to the real broker of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from endpoints.endpoint_process import EndpointProcess, gateway_process

if TYPE_CHECKING:
    from broker.broker import Broker


@pytest.fixture(scope="session")
def gateway(broker: Broker) -> Iterator[EndpointProcess]:
    """A running gateway to the broker of Kafka 4: `.address`."""
    with gateway_process(broker.bootstrap) as running:
        yield running
