"""Runs a gateway from start to end: in this process, or in workers that share the port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kafkafmt._util.descriptors import raise_limit
from kafkafmt.gateway.endpoint import Gateway, open_worker_gateway
from kafkafmt.gateway.options import GatewayOptions
from kafkafmt.memory.process import bound_process
from kafkafmt.server.listener import listen
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.prometheus import PrometheusMetrics, workers_metrics
from kafkafmt.server.running import ended_by_signals, serve_metrics
from kafkafmt.server.workers import Supervisor
from kafkafmt.server.yielding import freeze_start


def run(options: GatewayOptions, on_listening: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until responses in flight are sent. A second signal ends it at once.

    on_listening: called with host and port once connections are accepted. Raises OSError if a socket is not available,
    TlsError and WorkerError.
    """
    raise_limit()
    if options.memory_bytes is not None:
        bound_process()
    freeze_start()
    with listen(options.host, options.port) as listener:
        serve = _serve_alone if options.workers == 1 else _serve_by_workers
        host, port = listener.getsockname()[:2]
        asyncio.run(serve(options, listener, lambda: on_listening(host, port)))


async def _serve_alone(
    options: GatewayOptions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    with ExitStack() as stack:
        metrics = Metrics()
        if options.metrics is not None:
            metrics = PrometheusMetrics()
            serve_metrics(stack, metrics.served, options.metrics, options.request_timeout)
        gateway = Gateway(options, listener, metrics)
        serving = asyncio.create_task(gateway.serve())
        with ended_by_signals((gateway.drain,), serving.cancel):
            on_ready()
            with suppress(asyncio.CancelledError):
                await serving


async def _serve_by_workers(
    options: GatewayOptions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    with ExitStack() as stack:
        folder = None
        if options.metrics is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="kafkafmt-metrics-")))
            serve_metrics(stack, workers_metrics(folder), options.metrics, options.request_timeout)
        supervisor = Supervisor(options, open_worker_gateway, listener, {}, folder)
        with ended_by_signals((supervisor.drain,), supervisor.end):
            await supervisor.run(on_ready)
