"""The addresses in responses: those of brokers become those of the gateway. Node ids stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.cluster import Address
from kafkafmt.server.request import Message

# Returns the address at which clients reach a broker.
Advertised = Callable[[int], Address]

_NO_NODE = -1


def _metadata(response: Message, advertised: Advertised) -> None:
    for broker in response.brokers:
        broker.host, broker.port = advertised(broker.node_id)


def _coordinators(response: Message, advertised: Advertised) -> None:
    for found in response.coordinators if response.API_VERSION >= 4 else [response]:
        if found.node_id != _NO_NODE and not found.error_code:
            found.host, found.port = advertised(found.node_id)


def _cluster(response: Message, advertised: Advertised) -> None:
    for broker in response.brokers:
        broker.host, broker.port = advertised(broker.broker_id)


_REPLACED: Mapping[int, Callable[[Message, Advertised], None]] = {
    ApiKey.Metadata: _metadata,
    ApiKey.FindCoordinator: _coordinators,
    ApiKey.DescribeCluster: _cluster,
}
# The APIs whose responses name addresses of brokers, beside those of Produce and Fetch.
NAMING_APIS = frozenset(_REPLACED)


def replace_addresses(response: Message, advertised: Advertised) -> None:
    """Replace the addresses of brokers in a response of one of `NAMING_APIS`."""
    _REPLACED[response.API_KEY](response, advertised)
