"""The addresses in responses: those of brokers become those of the gateway. Node ids stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kafka.protocol.api_key import ApiKey

from kafkafmt.gateway.cluster import Address
from kafkafmt.server.request import Message

# Returns the address at which clients reach a broker.
Advertised = Callable[[int], Address]

_NO_NODE = -1
_SCHEME = "kafka://"
_SERVER = re.compile(r"(?:\[([^\]\s]+)\]|([^\s:\[\],/]+)):(\d{1,5})")


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


def parse_servers(text: str) -> tuple[Address, ...]:
    """Parse `kafka://HOST:PORT[,HOST:PORT]`. Raises ValueError, which says what is wrong with the text."""
    if "@" in text:  # the text has a password, so it is not shown
        raise ValueError(
            f"expected {_SCHEME}HOST:PORT[,HOST:PORT] without a user: --cluster-config-file has names and passwords"
        )
    if not text.startswith(_SCHEME):
        raise ValueError(f"{text}: expected {_SCHEME}HOST:PORT[,HOST:PORT]")
    servers = []
    for server in text.removeprefix(_SCHEME).rstrip("/").split(","):
        match = _SERVER.fullmatch(server)
        if match is None or not 0 < int(match[3]) <= 65535:
            raise ValueError(f"{text}: expected HOST:PORT with a port from 1 to 65535, found {server!r}")
        servers.append(Address(match[1] or match[2], int(match[3])))
    return tuple(servers)
