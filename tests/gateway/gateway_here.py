"""A gateway in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from endpoints.endpoint_here import HOST, SECONDS
from kafkafmt.gateway.broker_ports import BrokerPorts
from kafkafmt.gateway.cluster import Address
from kafkafmt.gateway.endpoint import Gateway
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.server.listener import listen


@asynccontextmanager
async def gateway_to(address: tuple[str, int], **options: Any) -> AsyncIterator[tuple[Gateway, int]]:
    """A gateway, and a port that stands for the only broker of its cluster. `options` are those of GatewayOptions.

    It has ended when this does.
    """
    with listen(HOST, 0) as listener, listen(HOST, 0) as of_broker:
        port = of_broker.getsockname()[1]
        gateway = Gateway(
            GatewayOptions(servers=(Address(*address),), broker_ports=BrokerPorts(port, port), **options),
            listener,
            of_brokers=[of_broker],
        )
        serving = asyncio.create_task(gateway.serve())
        try:
            yield gateway, port
        finally:
            gateway.drain()
            await asyncio.wait_for(serving, SECONDS)
