"""The connections of one client of a gateway to the brokers of the cluster.

Each client has connections of its own, under its own identity. So brokers see its principal and apply its quotas, and
what one client does not read holds back no other.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kafka import errors
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.held import HeldResponse
from kafkafmt.gateway.routes import Broker
from kafkafmt.server.errors import RequestError
from kafkafmt.server.wire import api_name, decode_response, encode_request_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.client.io_thread import IoLoop
    from kafkafmt.server.request import Message
    from kafkafmt.server.request_memory import RequestLease

# Nodes of the addresses that a gateway starts with: -1, -2 and so on, as in Kafka's clients.
_FIRST_BOOTSTRAP = -1
_KEY_TYPES = {Broker.GROUP: 0, Broker.TRANSACTION: 1}
# From this version of FindCoordinator on keys are in an array (KIP-699).
_COORDINATOR_VERSIONS = range(1, 4)
_METADATA_VERSIONS = range(1, 13)

_Part = TypeVar("_Part")


class UpstreamError(RequestError):
    """The cluster cannot be reached, or a broker has closed the connection: the client's is closed, too."""


class UnsupportedUpstreamError(RequestError):
    """The broker does not take any version of an API that a request could be translated to."""


class ByLeader(NamedTuple, Generic[_Part]):
    """Parts of a request by the broker that leads their partitions. refused: with the error codes of the others."""

    parts: list[tuple[Upstream, list[_Part]]]
    refused: list[tuple[_Part, int]]


class Upstream:
    """A connection to one broker that is ready. Callbacks and tasks of the event loop use it."""

    def __init__(
        self, connection: BrokerConnection, can_send: Callable[[BrokerConnection], Awaitable[None]]
    ) -> None:
        self.connection = connection
        self._can_send = can_send

    def version(self, api_key: int, newest: int) -> int:
        """Return the newest version of an API that the broker takes, up to `newest`.

        Raises UnsupportedUpstreamError.
        """
        versions = self.connection.versions
        assert versions is not None
        least, most = versions.api_versions.get(api_key, (0, -1))
        if not least <= min(most, newest):
            raise UnsupportedUpstreamError(
                f"{api_name(api_key)}: expected a broker that takes version {newest} or less, found {least} to {most}"
            )
        return int(min(most, newest))

    def versions(self) -> dict[int, range]:
        """Return the versions of each API that the broker takes. Kafka 4 tells Produce 0 to 2, and refuses them."""
        assert self.connection.versions is not None
        return {
            key: range(least, most + 1)
            for key, (least, most) in self.connection.versions.api_versions.items()
        }

    async def wait_free(self) -> None:
        """Wait until the connection takes a request. Raises UpstreamError."""
        await self._can_send(self.connection)

    def next_correlation_id(self) -> int:
        """Return the correlation id of the next request that the gateway makes."""
        return self.connection.next_correlation_id()

    async def request(self, pieces: Sequence[Buffer], correlation_id: int) -> memoryview:
        """Send a request, and return its response without the size. Raises KafkaError."""
        await self._can_send(self.connection)
        answered: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

        def on_response(response: memoryview | None, error: Exception | None) -> None:
            if answered.done():
                return
            if response is None:
                answered.set_exception(error or errors.KafkaConnectionError("closed"))
            else:
                answered.set_result(response)

        self.connection.send(pieces, correlation_id, on_response)
        return await answered

    async def request_held(
        self, pieces: Sequence[Buffer], correlation_id: int, memory: RequestLease
    ) -> memoryview:
        """Send a request, and return its response, which is read once there is memory for it. Raises KafkaError."""
        await self._can_send(self.connection)
        response = HeldResponse(self.connection, memory)
        self.connection.send_passing(pieces, correlation_id, response)
        return await response.wait()

    async def send(self, pieces: Sequence[Buffer]) -> None:
        """Send a request that has no response. Raises KafkaError."""
        await self._can_send(self.connection)
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_sent(error: Exception | None) -> None:
            if not sent.done():
                sent.set_exception(error) if error is not None else sent.set_result(None)

        self.connection.send_unanswered(pieces, on_sent)
        await sent

    async def ask(self, message: Message, client_id: str | None = None) -> Message:
        """Send a message of kafka-python, and return the response. Raises KafkaError."""
        correlation_id = self.next_correlation_id()
        frame = encode_request_frame(message, correlation_id, client_id)
        response = await self.request([frame], correlation_id)
        return decode_response(response, message.API_KEY, message.API_VERSION)


class _ClusterBrokers:
    """The brokers of a cluster for `BrokerConnections`: those that are known, and the addresses given at first."""

    def __init__(self, view: ClusterView, bootstrap: Sequence[Address], config: Mapping[str, Any]) -> None:
        self.config = config
        self._view = view
        self._bootstrap = bootstrap

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        if node_id < 0:
            return self._bootstrap[_FIRST_BOOTSTRAP - node_id]
        return self._view.brokers.get(node_id)

    def request_metadata(self) -> None:
        """Do nothing: who needs metadata waits for it."""

    async def open_socket(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        problem: OSError = ConnectionError(f"no address of {host}")
        for family, kind, protocol, _, address in found:
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.sock_connect(opened, address)
            except OSError as error:
                opened.close()
                problem = error
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise problem


class Upstreams:
    """The connections of one client, made when they are first needed.

    view: what is known of the cluster. config: the options of a client of kafka-python, with the client's identity.
    """

    def __init__(
        self, io: IoLoop, view: ClusterView, bootstrap: Sequence[Address], config: Mapping[str, Any]
    ) -> None:
        self.view = view
        self._bootstrap = bootstrap
        self._timeout_s = config["request_timeout_ms"] / 1000
        self._brokers = _ClusterBrokers(view, bootstrap, config)
        self._connections = BrokerConnections(io, self._brokers, self._changed)
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    async def any(self) -> Upstream:
        """Return a connection to any broker. Raises UpstreamError if none answers in time."""
        nodes = [*self.view.brokers, *range(_FIRST_BOOTSTRAP, _FIRST_BOOTSTRAP - len(self._bootstrap), -1)]
        open_nodes = [one.node_id for one in self._connections.all() if one.is_ready]
        return await self._first_of(open_nodes or nodes)

    async def node(self, node_id: int) -> Upstream:
        """Return a connection to a broker. Raises UpstreamError if it cannot be reached in time."""
        return await self._first_of([node_id])

    async def controller(self) -> Upstream:
        """Return a connection to the controller, or to a broker that passes requests on to it."""
        if self.view.controller_id is None:
            await self.refresh([])
        known = self.view.controller_id
        return await (self.any() if known is None else self.node(known))

    async def leader(self, topic: str | UUID | None, partition: int) -> Upstream:
        """Return a connection to the leader of a partition; to any broker if it has none, which says so."""
        if topic is None:
            return await self.any()
        node_id = self.view.leader(topic, partition)
        if node_id is None:
            await self.refresh([topic])
            node_id = self.view.leader(topic, partition)
        return await (self.any() if node_id is None else self.node(node_id))

    async def coordinator(self, broker: Broker, key: str) -> Upstream:
        """Return a connection to the coordinator of a group or transactional id; to any broker if none is found."""
        node_id = self.view.coordinator(broker, key)
        if node_id is None:
            upstream = await self.any()
            version = upstream.version(FindCoordinatorRequest.API_KEY, _COORDINATOR_VERSIONS[-1])
            request = FindCoordinatorRequest(version=version, key=key, key_type=_KEY_TYPES[broker])
            self.view.learn(request, await upstream.ask(request))
            node_id = self.view.coordinator(broker, key)
        return await (self.any() if node_id is None else self.node(node_id))

    async def by_leader(
        self, parts: Iterable[_Part], api_key: int, partition_of: Callable[[_Part], tuple[str, int]]
    ) -> ByLeader[_Part]:
        """Return parts of a request by the connection to the broker that leads their partitions."""
        found = list(parts)
        unknown = {partition_of(part)[0] for part in found if self.view.leader(*partition_of(part)) is None}
        if unknown:
            await self.refresh(sorted(unknown))
        by_node: dict[int, list[_Part]] = {}
        refused: list[tuple[_Part, int]] = []
        for part in found:
            node_id = self.view.leader(*partition_of(part))
            if node_id is None:
                refused.append((part, errors.UnknownTopicOrPartitionError.errno))
            else:
                by_node.setdefault(node_id, []).append(part)
        return ByLeader([(await self.node(node_id), of_one) for node_id, of_one in by_node.items()], refused)

    async def refresh(self, topics: Sequence[str | UUID]) -> None:
        """Ask for the brokers, and for the leaders of these topics. Raises UpstreamError and KafkaError."""
        upstream = await self.any()
        version = upstream.version(MetadataRequest.API_KEY, _METADATA_VERSIONS[-1])
        request = MetadataRequest(
            version=version,
            topics=[
                MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic)
                if isinstance(topic, UUID)
                else MetadataRequest.MetadataRequestTopic(name=topic)
                for topic in topics
            ],
            allow_auto_topic_creation=False,
        )
        self.view.learn(request, await upstream.ask(request))

    async def _first_of(self, nodes: Sequence[int]) -> Upstream:
        """Return the first of these connections that is ready."""
        found: list[BrokerConnection] = []

        def is_found() -> bool:
            found[:] = [one for node in nodes if (one := self._connections.get(node)) and one.is_ready]
            return bool(found)

        await self._until(is_found, f"no connection to {self._described(nodes)}")
        return Upstream(found[0], self._can_send)

    async def _can_send(self, connection: BrokerConnection) -> None:
        def is_free() -> bool:
            return connection.can_send or connection.is_closed

        await self._until(is_free, f"{connection} takes no request")
        if connection.is_closed:
            raise UpstreamError(str(connection.error or f"{connection}: closed"))

    async def _until(self, is_met: Callable[[], bool], problem: str) -> None:
        """Wait until a condition is met, which a change of a connection may do."""
        if is_met():
            return
        waiter = self._loop.create_future()
        entry = is_met, waiter
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(waiter, self._timeout_s)
        except asyncio.TimeoutError:
            raise UpstreamError(f"{problem} within {self._timeout_s:g} s") from None
        finally:
            self._waiting.remove(entry)

    def _changed(self, _: BrokerConnection | None) -> None:
        for is_met, waiter in list(self._waiting):
            if not waiter.done() and is_met():
                waiter.set_result(None)

    def _described(self, nodes: Sequence[int]) -> str:
        addresses = (self._brokers.address_of(node) for node in nodes)
        return ", ".join(f"{host}:{port}" for host, port in filter(None, addresses)) or "a broker"
