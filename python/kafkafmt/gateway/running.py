"""Runs a gateway from start to end: in this process, or in workers that share the port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from kafkafmt._util.descriptors import raise_limit
from kafkafmt.gateway.cluster_config import cluster_config
from kafkafmt.gateway.endpoint import Gateway, open_worker_gateway
from kafkafmt.gateway.health import Health
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.memory.process import bound_process
from kafkafmt.server.listener import listen
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.prometheus import PrometheusMetrics, workers_metrics
from kafkafmt.server.reloading import reloading_at_sighup
from kafkafmt.server.running import ended_by_signals, metrics_folder, serve_metrics
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.workers import Supervisor
from kafkafmt.server.yielding import frozen_start


def run(options: GatewayOptions, on_listening: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until responses in flight are sent. A second signal ends it at once.

    SIGHUP reads the files of topics, users, identities and certificates again; so does a change to the topics file. If
    one of them is invalid, nothing changes.
    on_listening: called with host and port once connections are accepted. Raises OSError if a socket is not available,
    IniError, TlsError and WorkerError.
    """
    raise_limit()
    if options.memory_bytes is not None:
        bound_process()
    with ExitStack() as stack:
        stack.enter_context(frozen_start())
        listener = stack.enter_context(listen(options.host, options.port))
        ports = () if options.broker_ports is None else options.broker_ports.all
        of_brokers = [stack.enter_context(listen(options.host, port)) for port in ports]
        serve = _serve_alone if options.workers == 1 else _serve_by_workers
        host, port = listener.getsockname()[:2]
        asyncio.run(serve(options, listener, of_brokers, lambda: on_listening(host, port)))


async def _serve_alone(
    options: GatewayOptions,
    listener: socket.socket,
    of_brokers: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    with ExitStack() as stack:
        metrics, health = Metrics(), Health(options)
        if options.metrics is not None:
            metrics = PrometheusMetrics()
            serve_metrics(stack, metrics.served, options.metrics, options.request_timeout, health.pages())
        gateway = Gateway(options, listener, metrics, of_brokers)
        serving = asyncio.create_task(gateway.serve())

        async def reload() -> None:
            again = await asyncio.to_thread(options.reload)
            await gateway.reload(again)
            health.apply(again)

        with ended_by_signals((health.drain, gateway.drain), serving.cancel):
            async with reloading_at_sighup(reload, options.topics_file):
                on_ready()
                asking = asyncio.create_task(health.log_cluster())
                with suppress(asyncio.CancelledError):
                    await serving
                asking.cancel()


async def _serve_by_workers(
    options: GatewayOptions,
    listener: socket.socket,
    of_brokers: Sequence[socket.socket],
    on_ready: Callable[[], None],
) -> None:
    _check_files(options)
    with ExitStack() as stack:
        folder, health = None, Health(options)
        if options.metrics is not None:
            folder = stack.enter_context(metrics_folder())
            served = workers_metrics(folder)
            serve_metrics(stack, served, options.metrics, options.request_timeout, health.pages())
        open_worker = partial(open_worker_gateway, of_brokers)
        supervisor = Supervisor(options, open_worker, listener, {}, folder)

        async def reload() -> None:
            again = await asyncio.to_thread(options.reload)
            await asyncio.to_thread(_check_files, again)
            health.apply(again)
            supervisor.reload(again)

        with ended_by_signals((health.drain, supervisor.drain), supervisor.end):
            async with reloading_at_sighup(reload, options.topics_file):
                asking = asyncio.create_task(health.log_cluster())
                await supervisor.run(on_ready)
                asking.cancel()


def _check_files(options: GatewayOptions) -> None:
    """Raise TlsError or OSError for certificates, which every worker reads itself."""
    if options.tls is not None:
        tls_context(options.tls)
    cluster_config(options.client_config)
