"""A gateway: a Kafka server that answers from a cluster."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

from kafka.net.manager import KafkaConnectionManager

from kafkafmt.client.io_thread import IoLoop
from kafkafmt.client.tls import ssl_context
from kafkafmt.gateway.cluster import Address, ClusterView
from kafkafmt.gateway.fetching import FetchOptions, TranslatedFetch
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.gateway.producing import TranslatedProduce
from kafkafmt.gateway.session import ClientSession
from kafkafmt.gateway.upstreams import Upstreams
from kafkafmt.server.batch_work import BatchWork
from kafkafmt.server.connection import Service
from kafkafmt.server.listener import Server
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.node import Node
from kafkafmt.server.request import Handler
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.stream import Stream

# A response that passes is never held, so its size is limited by nothing but Kafka's protocol.
_MAX_FRAME_BYTES = 2**31 - 1
# So many requests of a client may be on their way to a broker. The client limits them itself.
_MAX_IN_FLIGHT = 1000
# A client of a gateway has its own backoff, so that of the gateway is short.
_MAX_BACKOFF_MS = 1000


class Gateway:
    """Offers a cluster on a listening socket, which the caller closes. Raises TlsError."""

    def __init__(
        self, options: GatewayOptions, listener: socket.socket, metrics: Metrics | None = None
    ) -> None:
        metrics = Metrics() if metrics is None else metrics
        tls = None if options.tls is None else tls_context(options.tls)
        self._options = options
        self._work = BatchWork(options.max_decompressed_bytes, metrics)
        self._view = ClusterView()
        self._io = IoLoop(asyncio.get_running_loop())
        self._config = {
            **KafkaConnectionManager.DEFAULT_CONFIG,
            "reconnect_backoff_max_ms": _MAX_BACKOFF_MS,
            **options.client_config,
            "receive_message_max_bytes": _MAX_FRAME_BYTES,
            "max_in_flight_requests_per_connection": _MAX_IN_FLIGHT,
        }
        self._config["ssl_context"] = ssl_context(self._config)
        node = Node.advertised(options, listener, "")
        self._address = Address(node.host, node.port)
        service = Service.within(options, {}, None, self._work, metrics)
        self.server = Server(listener, replace(service, open_session=self._open_session), tls)

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
        """Apply the users file and certificates as they are now. Open connections are not affected."""
        tls = None if options.tls is None else await asyncio.to_thread(tls_context, options.tls)
        self.server.apply(options, tls)

    def drain(self) -> None:
        """Accept no more connections, close idle ones, and close the others after their current response."""
        self.server.drain()

    def _open_session(self, stream: Stream, on_end: Callable[[Exception], None]) -> ClientSession:
        options = self._options
        upstreams = Upstreams(self._io, self._view, options.servers, self._config)
        fetch = FetchOptions(
            options.max_fetch_bytes,
            options.chunk_bytes,
            options.is_committed,
            options.zstd_fallback,
            options.max_decompressed_bytes,
        )
        return ClientSession(
            stream,
            upstreams,
            lambda _: self._address,
            TranslatedProduce(upstreams, self._work, options.max_decompressed_bytes),
            TranslatedFetch(upstreams, self._work, fetch),
            options.write_timeout,
            on_end,
        )


async def open_worker_gateway(
    options: GatewayOptions, listener: socket.socket, handlers: Mapping[int, Handler], metrics: Metrics
) -> Gateway:
    """Open the gateway of one worker, which shares nothing with the others."""
    return Gateway(options, listener, metrics)
