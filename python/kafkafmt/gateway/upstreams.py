"""The connections of one client of a gateway to the brokers of the cluster.

Each client has connections of its own, under its own identity. So brokers see its principal and apply its quotas, and
what one client does not read holds back no other.

A broker that cannot be reached is reported at once, not waited for: clients have their own times of retrying.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from kafka import errors
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.gateway.cluster import KEY_TYPES, Address, ClusterView
from kafkafmt.gateway.errors import (
    UpstreamAuthenticationError,
    UpstreamError,
    UpstreamTimeoutError,
)
from kafkafmt.gateway.routes import Broker
from kafkafmt.gateway.upstream import REFUSALS, Upstream, upstream_error
from kafkafmt.server.stream import keep_alive

if TYPE_CHECKING:
    from kafkafmt.client.broker_connection import BrokerConnection
    from kafkafmt.client.io_thread import IoLoop
    from kafkafmt.server.request_memory import RequestLease

# Nodes of the addresses that a gateway starts with: -1, -2 and so on, as in Kafka's clients.
_FIRST_BOOTSTRAP = -1
# Later versions of FindCoordinator have an array of keys (KIP-699).
_COORDINATOR_VERSIONS = range(1, 4)
_METADATA_VERSIONS = range(1, 13)
# Each client has connections of its own, so each takes little memory.
_RECEIVE_BYTES = 4 * 1024
# A connection to one of the first addresses is closed if it is idle after this time, and another one is open.
_FIRST_IDLE_S = 5.0
# If any broker will do, the next one is tried as well after this time.
_NEXT_BROKER_S = 1.0

_Part = TypeVar("_Part")


class ByLeader(NamedTuple, Generic[_Part]):
    """Parts of a request by the broker that leads their partitions. refused: with the error codes of the others."""

    parts: list[tuple[Upstream, list[_Part]]]
    refused: list[tuple[_Part, int]]


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
        """Do nothing: the next request refreshes what it needs."""

    async def open_socket(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        problem: OSError = ConnectionError(f"no address of {host}")
        # The time of the whole connection, so that an address that does not answer leaves some for the others.
        seconds = self.config["socket_connection_setup_timeout_ms"] / 1000 / max(len(found), 1)
        for family, kind, protocol, _, address in found:
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(opened)
                await asyncio.wait_for(loop.sock_connect(opened, address), seconds)
            except asyncio.TimeoutError:
                opened.close()
                problem = ConnectionError(f"{address[0]}: not connected within {seconds:g} s")
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
    own_of: returns the node of the client's listener among those of the cluster; None if the listener stands for all.
    own: that node, once `find_own` was called.
    is_identified: whether the identity is the one for all requests; if not, brokers may want authentication first.
    """

    def __init__(
        self,
        io: IoLoop,
        view: ClusterView,
        bootstrap: Sequence[Address],
        config: Mapping[str, Any],
    ) -> None:
        self.view = view
        self.own: int | None = None
        self.is_identified = True
        self.own_of: Callable[[Iterable[int]], int | None] | None = None
        self._io = io
        self._bootstrap = bootstrap
        self._timeout_s = config["request_timeout_ms"] / 1000
        self._brokers = _ClusterBrokers(view, bootstrap, config)
        self._connections = BrokerConnections(io, self._brokers, self._changed, _RECEIVE_BYTES)
        self._addresses: dict[int, tuple[str, int]] = {}  # of the connections
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def identify(self, config: Mapping[str, Any]) -> None:
        """Connect with these options from now on. Closes the connections that were made before."""
        self._connections.close()
        self.is_identified = True
        self._brokers.config = config
        self._addresses.clear()
        self._connections = BrokerConnections(self._io, self._brokers, self._changed, _RECEIVE_BYTES)

    async def wait_sent(self) -> None:
        """Wait until the system has all bytes of the requests that were sent. Raises UpstreamError."""
        for connection in self._connections.all():
            if connection.has_unsent:
                await self._upstream(connection).send([])

    async def find_own(self) -> None:
        """Find the broker that the client's listener stands for. Raises UpstreamError if there is none."""
        if self.own_of is None or self.own is not None:
            return
        self.own = self.own_of(self.view.brokers)
        if self.own is None:
            await self.refresh([])
            self.own = self.own_of(self.view.brokers)
        if self.own is None:
            raise UpstreamError("the port stands for no broker of the cluster")

    async def any(self) -> Upstream:
        """Return a connection to any broker. Raises UpstreamError if none can be reached."""
        ready = [one for one in self._connections.all() if one.is_ready]
        if ready:
            return self._upstream(min(ready, key=lambda one: one.in_flight_count))
        known = random.sample(list(self.view.brokers), len(self.view.brokers))
        first = range(_FIRST_BOOTSTRAP, _FIRST_BOOTSTRAP - len(self._bootstrap), -1)
        return await self._first_of([*known, *random.sample(first, len(first))])

    async def node(self, node_id: int) -> Upstream:
        """Return a connection to a broker. Raises UpstreamError if it cannot be reached."""
        if node_id >= 0 and node_id not in self.view.brokers:
            await self.refresh([])
            if node_id not in self.view.brokers:
                raise UpstreamError(f"the cluster has no broker {node_id}")
        return await self._first_of([node_id])

    async def controller(self) -> Upstream:
        """Return a connection to the controller, or to a broker that passes requests on to it."""
        if self.view.controller_id is None:
            await self.refresh([])
        return await self._node_or_any(self.view.controller_id)

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
        node_id = await self.coordinator_node(broker, key)
        return await (self.any() if node_id is None else self.node(node_id))

    async def coordinator_node(self, broker: Broker, key: str) -> int | None:
        """Return the node of the coordinator of a group or transactional id; None if none is found."""
        node_id = self.view.coordinator(broker, key)
        if node_id is None:
            upstream = await self.any()
            version = upstream.version(FindCoordinatorRequest.API_KEY, _COORDINATOR_VERSIONS[-1])
            request = FindCoordinatorRequest(version=version, key=key, key_type=KEY_TYPES[broker])
            self.view.learn(request, await upstream.ask(request))
            node_id = self.view.coordinator(broker, key)
        return node_id

    async def by_leader(
        self,
        parts: Iterable[_Part],
        partition_of: Callable[[_Part], tuple[str, int]],
        memory: RequestLease | None = None,
    ) -> ByLeader[_Part]:
        """Return parts of a request by the connection to the broker that leads their partitions.

        Parts whose leader is not known, or cannot be reached, are refused, so that the client asks for metadata.
        memory: that of the request.
        """
        found = [(part, *partition_of(part)) for part in parts]
        # The view may forget topics that are known when it learns others.
        known = {(topic, number): self.view.leader(topic, number) for _, topic, number in found}
        unknown = {topic for (topic, _), node_id in known.items() if node_id is None}
        codes: dict[str, int] = {}
        if unknown:
            try:
                codes = await self.refresh(sorted(unknown), memory)
            except UpstreamAuthenticationError:
                raise
            except UpstreamError:
                codes = dict.fromkeys(unknown, errors.NotLeaderForPartitionError.errno)
        by_node: dict[int, list[_Part]] = {}
        refused: list[tuple[_Part, int]] = []
        for part, topic, partition in found:
            node_id = known[topic, partition]
            if node_id is None:
                node_id = self.view.leader(topic, partition)
            if node_id is None:
                refused.append((part, codes.get(topic) or self.view.missing_leader_code(topic, partition)))
            else:
                by_node.setdefault(node_id, []).append(part)
        reached: list[tuple[Upstream, list[_Part]]] = []
        upstreams = await asyncio.gather(*map(self.node, by_node), return_exceptions=True)
        for upstream, of_one in zip(upstreams, by_node.values(), strict=True):
            if isinstance(upstream, Upstream):
                reached.append((upstream, of_one))
            elif isinstance(upstream, UpstreamError) and not isinstance(
                upstream, UpstreamAuthenticationError
            ):
                refused += ((part, errors.NotLeaderForPartitionError.errno) for part in of_one)
            else:
                raise upstream
        return ByLeader(reached, refused)

    async def refresh(
        self, topics: Sequence[str | UUID], memory: RequestLease | None = None
    ) -> dict[str, int]:
        """Ask for the brokers, and for the leaders of these topics. Raises UpstreamError.

        Returns the error codes of topics that have one.
        """
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
        held = 0 if memory is None else memory.taken_bytes
        try:
            response = await upstream.ask(request, memory=memory)
        finally:
            if memory is not None:
                memory.keep(held)
        self.view.learn(request, response)
        return {one.name: one.error_code for one in response.topics if one.name and one.error_code}

    def _upstream(self, connection: BrokerConnection) -> Upstream:
        return Upstream(connection, self._can_send, self._timeout_s)

    async def _node_or_any(self, node_id: int | None) -> Upstream:
        if node_id is not None:
            try:
                return await self.node(node_id)
            except UpstreamAuthenticationError:
                raise
            except UpstreamError:  # another broker passes the request on, or names the controller
                pass
        return await self.any()

    def _open(self, node_id: int) -> BrokerConnection | None:
        """Return the connection to a node at the address that it has now; None if it was unreachable just before."""
        address = self._brokers.address_of(node_id)
        if address is None:
            return None
        if self._addresses.get(node_id, address) != address:
            for one in self._connections.all():
                if one.node_id == node_id:
                    if one.in_flight_count:
                        return one
                    one.close()
        self._addresses[node_id] = address
        return self._connections.get(node_id)

    async def _first_of(self, nodes: Sequence[int]) -> Upstream:
        """Return the first of these connections that is ready. Further ones are tried if the first is slow or fails."""
        tried: list[BrokerConnection] = []
        for node_id in nodes:
            connection = self._open(node_id)
            if connection is None:
                continue
            tried.append(connection)
            wait_s = _NEXT_BROKER_S if node_id != nodes[-1] else self._timeout_s
            await self._until(partial(_is_decided, tried, connection), wait_s)
            ready = next((one for one in tried if one.is_ready), None)
            if ready is not None:
                return self._upstream(ready)
            if isinstance(connection.error, REFUSALS):
                raise upstream_error(connection, connection.error)
        await self._until(lambda: _has_ready(tried) or all(one.is_closed for one in tried), self._timeout_s)
        for one in tried:
            if one.is_ready:
                return self._upstream(one)
        why = next((f": {one.error}" for one in reversed(tried) if one.error is not None), "")
        raise UpstreamError(f"no connection to {self._described(nodes)}{why}")

    async def _can_send(self, connection: BrokerConnection) -> None:
        if not connection.can_send:
            is_over = await self._until(lambda: connection.can_send or connection.is_closed, self._timeout_s)
            if not is_over:
                raise UpstreamTimeoutError(f"{connection} takes no request within {self._timeout_s:g} s")
        if connection.is_closed:
            raise upstream_error(connection, connection.error)

    async def _until(self, is_met: Callable[[], bool], seconds: float) -> bool:
        """Wait until a change of a connection has met a condition. Returns whether it is met in time."""
        if is_met():
            return True
        waiter = self._loop.create_future()
        entry = is_met, waiter
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(waiter, seconds)
        except asyncio.TimeoutError:
            return False
        finally:
            self._waiting.remove(entry)
        return True

    def _changed(self, connection: BrokerConnection | None) -> None:
        error = None if connection is None else connection.error
        if connection is not None and error is not None and not isinstance(error, REFUSALS):
            self.view.suspect(connection.node_id)
        if connection is not None and connection.is_ready and connection.node_id < 0:
            self._io.call_later(_FIRST_IDLE_S, self._close_first, connection)
        for is_met, waiter in list(self._waiting):
            if not waiter.done() and is_met():
                waiter.set_result(None)

    def _close_first(self, connection: BrokerConnection) -> None:
        """Close a connection to one of the first addresses once it is not needed any more."""
        if connection.is_closed:
            return
        if not connection.in_flight_count and any(one.node_id >= 0 for one in self._connections.all()):
            connection.close()
        else:
            self._io.call_later(_FIRST_IDLE_S, self._close_first, connection)

    def _described(self, nodes: Sequence[int]) -> str:
        addresses = (self._brokers.address_of(node) for node in nodes)
        return ", ".join(f"{host}:{port}" for host, port in filter(None, addresses)) or "a broker"


def _is_decided(tried: Sequence[BrokerConnection], last: BrokerConnection) -> bool:
    return last.is_closed or _has_ready(tried)


def _has_ready(tried: Sequence[BrokerConnection]) -> bool:
    return any(one.is_ready for one in tried)
