"""A gateway: a Kafka server that answers from a cluster."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from kafkafmt._util.descriptors import max_connections
from kafkafmt.client.io_thread import IoLoop
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.down_conversion import DownConversionPolicy
from kafkafmt.gateway.fetching import TranslatedFetch
from kafkafmt.gateway.identities import ClientIdentity
from kafkafmt.gateway.leader_fetch import FetchOptions
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.gateway.producing import TranslatedProduce
from kafkafmt.gateway.session import ClientSession
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.listener import Server
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.service import Service
from kafkafmt.server.stream import Stream

# A client takes a descriptor of its own, and one for each broker that it uses: seldom more than two at a time.
_DESCRIPTORS = 3


def max_clients(options: GatewayOptions) -> int:
    """Return the most clients of a process."""
    return options.max_connections or max(max_connections() // _DESCRIPTORS, 1)


class Gateway:
    """Offers a cluster on a listening socket, which the caller closes. Raises TlsError.

    of_brokers: the listening sockets of `broker_ports`.
    """

    def __init__(
        self,
        options: GatewayOptions,
        listener: socket.socket,
        metrics: Metrics | None = None,
        of_brokers: Sequence[socket.socket] = (),
    ) -> None:
        options = replace(options, max_connections=max_clients(options))
        metrics = Metrics() if metrics is None else metrics
        tls = None if options.tls is None else tls_context(options.tls)
        self._options = options
        self._work = BatchWork(options.max_decompressed_bytes, metrics)
        self._view = ClusterView()
        self._io = IoLoop(asyncio.get_running_loop())
        self._policy = DownConversionPolicy(options.topics_file)
        self._config = cluster_config(options.client_config)
        node = Node.advertised(options, listener, "")
        self._address = Address(node.host, node.port)
        service = Service.within(options, {}, None, self._work, metrics)
        service = replace(service, open_session=self._open_session, accept=self._accept)
        self.server = Server(listener, service, tls, of_brokers)

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that the gateway listens on."""
        return self.server.address

    async def serve(self) -> None:
        """Serve until `drain` was called and the responses in flight are sent, or `shutdown_timeout` is over."""
        try:
            await self.server.serve()
        finally:
            self._work.close()

    async def reload(self, options: GatewayOptions) -> None:
        """Apply the files of users, identities, topics and certificates as they are now. Nothing, if one is invalid.

        options: the gateway's options with files read again (`GatewayOptions.reload`). What is said of topics applies
        to open connections, too. Raises TlsError and OSError.
        """
        tls = None if options.tls is None else await asyncio.to_thread(tls_context, options.tls)
        config = await asyncio.to_thread(cluster_config, options.client_config)
        self._options, self._config = options, config
        self._policy.apply(options.topics_file)
        self.server.apply(options, tls)

    def drain(self) -> None:
        """Accept no more connections, close idle ones, and close the others after their current response."""
        self.server.drain()

    def _open_session(self, stream: Stream, on_end: Callable[[Exception], None]) -> ClientSession:
        options = self._options
        identity = self._identity()
        upstreams = Upstreams(self._io, self._view, options.servers, identity.first)
        upstreams.is_identified = identity.is_shared
        upstreams.own_of = self._own_of(stream)
        fetch = FetchOptions(
            options.max_fetch_bytes,
            options.chunk_bytes,
            self._policy,
            options.is_committed,
            options.zstd_fallback,
            options.max_decompressed_bytes,
            options.downconversion_codec,
            options.kept_bytes,
        )
        session = ClientSession(
            stream,
            upstreams,
            self._advertised,
            lambda passed: TranslatedProduce(upstreams, passed, self._work, options.max_decompressed_bytes),
            TranslatedFetch(upstreams, self._work, fetch),
            options.write_timeout,
            on_end,
        )
        session.is_authenticated = options.users is None
        return session

    def _own_of(self, stream: Stream) -> Callable[[Iterable[int]], int | None] | None:
        """Return what finds the broker of a client's listener among all brokers; None if it stands for all of them."""
        ports = self._options.broker_ports
        if ports is None:
            return None
        port: int = stream.socket.getsockname()[1]
        return partial(ports.node, port) if port in ports.all else None

    def _advertised(self, node_id: int) -> Address:
        """Return the address at which clients reach a broker."""
        ports = self._options.broker_ports
        port = None if ports is None else ports.port(node_id, self._view.brokers)
        return self._address if port is None else Address(self._address.host, port)

    def _identity(self) -> ClientIdentity:
        options = self._options
        return ClientIdentity(self._config, options.identities, passes=options.passes_credentials)

    async def _accept(self, session: Any, user: str, password: str | None) -> None:
        """Let a client that SASL has authenticated reach the cluster. Raises AuthenticationError, UpstreamError."""
        await self._identity().accept(session.upstreams, user, password)
        session.is_authenticated = True


async def open_worker_gateway(
    of_brokers: Sequence[socket.socket],
    options: GatewayOptions,
    listener: socket.socket,
    handlers: Mapping[int, Handler],
    metrics: Metrics,
) -> Gateway:
    """Open the gateway of one worker, which shares nothing with the others."""
    return Gateway(options, listener, metrics, of_brokers)
