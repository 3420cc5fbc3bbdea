"""kafka-python's part of a client: metadata, and requests without records, over its connections.

Its event loop runs in a thread of its own. Bootstrap, versions, SASL, TLS and reconnects of these connections are
kafka-python's, through its public classes.
"""

from __future__ import annotations

import asyncio
import copy
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from kafkafmt.client.client_config import PASSWORD_MECHANISMS, check_security
from kafkafmt.client.credentials import find_refusal
from kafkafmt.client.handshake import uses_sasl
from kafkafmt.client.kafka_python import kafka_python_config
from kafkafmt.client.tls import ssl_context

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata
    from kafka.future import Future
    from kafka.metrics import Metrics
    from kafka.protocol.broker_version_data import BrokerVersionData

    from kafkafmt.client.io_thread import IoThread

# How long `close` waits for the thread.
_CLOSE_SECONDS = 10.0


class ControlPlane:
    """The metadata of a cluster, and requests to its brokers. Any thread may call it.

    config: the options of a client of kafka-python.
    metrics: kafka-python's registry; None to keep no metrics.

    config: these options, with the SSL context that the ssl_ options describe.
    client: kafka-python's client, for its coordinators.
    cluster: the metadata.

    Raises ValueError for options of security without an effect, and as `ssl_context`.
    """

    def __init__(self, config: Mapping[str, Any], metrics: Metrics | None = None) -> None:
        check_security(config, {**KafkaConnectionManager.DEFAULT_CONFIG, "ssl_ciphers": None})
        self.config = {**KafkaConnectionManager.DEFAULT_CONFIG, **config, "ssl_context": ssl_context(config)}
        self._socket_options = [*self.config["socket_options"], *_buffer_sizes(self.config)]
        self._net = NetworkSelector(**self.config)
        self._manager = KafkaConnectionManager(
            self._net, **{**kafka_python_config(self.config), "metrics": metrics}
        )
        self.client = KafkaNetClient(net=self._net, manager=self._manager)
        self.cluster: ClusterMetadata = self._manager.cluster
        # The manager passes neither option on.
        metadata_config = self.cluster.config
        if "allow_auto_create_topics" in self.config:
            metadata_config["allow_auto_create_topics"] = self.config["allow_auto_create_topics"]
        # A client asks for topics just after the bootstrap, and waits that long: no longer than kafka-python's 100 ms.
        metadata_config["retry_backoff_ms"] = min(
            metadata_config["retry_backoff_ms"], self.config["retry_backoff_ms"]
        )
        # The manager takes the deprecated option socks5_proxy for it.
        self.config["proxy_url"] = self._manager.config["proxy_url"]

    def start(self, timeout_ms: float | None = None) -> None:
        """Start the thread. Wait up to `timeout_ms` for the metadata of the cluster, unless `api_version` is set.

        Raises KafkaTimeoutError if no broker of `bootstrap_servers` answers, and the errors of authentication. The
        thread has ended then.
        """
        self._net.start()
        ends_at = time.monotonic() + (float("inf") if timeout_ms is None else timeout_ms / 1000)
        try:
            if self._manager.broker_version_data is None:
                self._ensure_accepted(ends_at)
                left_ms = None if timeout_ms is None else max(ends_at - time.monotonic(), 0) * 1000
                self._manager.bootstrap(left_ms)
        except BaseException:
            self.close()
            raise

    def _ensure_accepted(self, ends_at: float = float("inf")) -> None:
        # A provider of tokens is not asked twice.
        if uses_sasl(self.config) and self.config["sasl_mechanism"] in PASSWORD_MECHANISMS:
            servers = [(one.host, one.port) for one in self.cluster.bootstrap_brokers()]
            error = find_refusal(servers, self.config, self.open_socket, ends_at - time.monotonic())
            if error is not None:
                raise error

    def bootstrap(self, timeout_ms: float | None = None, *, refresh: bool = False) -> None:
        """Wait up to `timeout_ms` for the metadata of the cluster. refresh: request it again.

        Raises KafkaTimeoutError if no broker of `bootstrap_servers` answers.
        """
        self._manager.bootstrap(timeout_ms=timeout_ms, refresh=refresh)

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The version of the bootstrap broker, or the option `api_version`."""
        version: tuple[int, ...] = self._manager.broker_version
        return version

    @property
    def versions(self) -> BrokerVersionData:
        """The versions of APIs that the bootstrap broker knows, or that the option `api_version` stands for."""
        return self._manager.broker_version_data

    def send(self, request: Any, node_id: int | str | None = None, timeout_ms: float | None = None) -> Future:
        """Send a message of kafka-python. Return the future of the response, whose callbacks run in its thread.

        node_id: None for the node with the fewest requests in flight.
        timeout_ms: None for the option `request_timeout_ms`.
        """
        return self._manager.call_soon(partial(self._send, request, node_id, timeout_ms))

    def _send(self, request: Any, node_id: int | str | None, timeout_ms: float | None) -> Future:
        """Send a message in kafka-python's thread. Raises the error of one that cannot be encoded.

        If kafka-python opens a connection for such a message, it closes that, and never ends the message's future.
        """
        encoded = copy.copy(request)
        if encoded.API_VERSION is None:
            with suppress(kafka_errors.IncompatibleBrokerVersion):  # another broker may know a version
                encoded.API_VERSION = self.versions.api_version(request)
        if encoded.API_VERSION is not None:
            encoded.encode()
        return self._manager.send(request, node_id=node_id, request_timeout_ms=timeout_ms)

    def ask(
        self, request: Any, io: IoThread, on_done: Callable[[Any], object], node_id: int | str | None = None
    ) -> None:
        """Send a message of kafka-python. Call `on_done` in the thread of `io` with the response, or with an error."""

        def call_back(result: Any) -> None:
            with suppress(kafka_errors.KafkaConnectionError):  # that thread has ended
                io.call_soon(on_done, result)

        try:
            self.send(request, node_id).add_both(call_back)
        except RuntimeError as error:  # this thread has ended
            call_back(kafka_errors.KafkaConnectionError(str(error)))

    def wait(self, future: Future, timeout_ms: float | None = None) -> Any:
        """Return the value of a future, or raise its error. Raises KafkaTimeoutError after `timeout_ms`."""
        return self._net.run(self._manager.wait_for, future, timeout_ms)

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Return the host and port of a broker; None if the metadata does not have it."""
        node = self.cluster.broker_metadata(node_id)
        return None if node is None else (node.host, node.port)

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it, unless it is asked for already."""
        if not self.cluster.need_update:
            self.cluster.request_update()

    async def open_socket(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected as the options say, a proxy included. Any event loop may call this."""
        timeout_at = time.monotonic() + self.config["socket_connection_setup_timeout_ms"] / 1000
        opened = self._manager.call_soon(
            partial(
                create_connection,
                self._net,
                host,
                port,
                self._socket_options,
                proxy_url=self.config["proxy_url"],
                timeout_at=timeout_at,
            )
        )
        loop = asyncio.get_running_loop()
        result: asyncio.Future[socket.socket] = loop.create_future()

        def pass_on() -> None:
            if result.done():
                if opened.succeeded():
                    opened.value.close()
            elif opened.succeeded():
                result.set_result(opened.value)
            else:
                result.set_exception(opened.exception)

        def call_loop(_: object) -> None:
            try:
                loop.call_soon_threadsafe(pass_on)
            except RuntimeError:  # the loop is closed
                if opened.succeeded():
                    opened.value.close()

        opened.add_both(call_loop)
        return await result

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Close the connections, and end the thread. A name look-up may block it: wait up to `timeout` seconds."""
        is_closed = threading.Event()
        try:
            self._manager.call_soon(self._manager.close).add_both(lambda _: is_closed.set())
        except RuntimeError:  # it was closed before
            return
        if is_closed.wait(timeout):
            self._net.close()
        else:
            with suppress(RuntimeError):  # this is the thread
                self._net.stop(timeout_ms=0)


def check_credentials(config: Mapping[str, Any]) -> None:
    """Raise the error of a broker of `bootstrap_servers` that refuses the credentials, if `config` has some."""
    if uses_sasl(config):
        control = ControlPlane(config)
        control._net.start()
        try:
            control._ensure_accepted()
        finally:
            control.close()


def _buffer_sizes(config: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield the socket options for `receive_buffer_bytes` and `send_buffer_bytes`, which kafka-python ignores."""
    for name, option in (("receive_buffer_bytes", socket.SO_RCVBUF), ("send_buffer_bytes", socket.SO_SNDBUF)):
        if config.get(name) is not None:
            yield socket.SOL_SOCKET, option, config[name]
