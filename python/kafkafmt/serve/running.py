"""Runs the endpoint, from its socket to its end: in this process, or in workers that share the port."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.endpoint import Endpoint, listen
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.metrics import Metrics, PrometheusMetrics, metrics_server, workers_registry
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.workers import Supervisor


def run(options: ServeOptions, on_listening: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until responses in flight are sent; a second one ends it at once.

    `on_listening` is called with host and port once connections are taken. Raises OSError where a socket, the
    directory or the folder for offsets is not to be had, OffsetsFileError, TlsError and WorkerError.
    """
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{options.host}:{options.port}") from None
    with listener:
        serve = _serve_alone if options.workers == 1 else _serve_by_workers
        host, port = listener.getsockname()[:2]
        asyncio.run(serve(options, listener, lambda: on_listening(host, port)))


async def _serve_alone(options: ServeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    with ExitStack() as stack:
        metrics = Metrics()
        if options.metrics is not None:
            metrics = PrometheusMetrics()
            stack.enter_context(metrics_server(metrics.registry, *options.metrics))
        async with _group_coordinator(options, listener) as coordinator:
            handlers = coordinator.handlers()
            endpoint = Endpoint(options, listener, handlers=lambda _: handlers, metrics=metrics)
            serving = asyncio.create_task(endpoint.serve())
            with _told_to_end(lambda: (coordinator.close(), endpoint.drain()), serving.cancel):
                on_ready()
                with suppress(asyncio.CancelledError):
                    await serving


async def _serve_by_workers(
    options: ServeOptions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    with ExitStack() as stack:
        folder = None
        if options.metrics is not None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="kafkafmt-metrics-")))
            stack.enter_context(metrics_server(workers_registry(folder), *options.metrics))
        async with _group_coordinator(options, listener) as coordinator:
            supervisor = Supervisor(options, listener, coordinator.handlers(), folder)
            with _told_to_end(lambda: (coordinator.close(), supervisor.drain()), supervisor.end):
                await supervisor.run(on_ready)


@asynccontextmanager
async def _group_coordinator(
    options: ServeOptions, listener: socket.socket
) -> AsyncIterator[GroupCoordinator]:
    """The coordinator of this endpoint, which finds itself where clients are told to connect to."""
    host, port = options.advertised or listener.getsockname()[:2]
    store = OffsetStore(options.state, options.groups.max_offsets_bytes)
    try:
        catalog = Catalog(options.directory)
        yield GroupCoordinator(store, catalog, Node(host, port, catalog.cluster_id), options.groups)
    finally:
        await store.close()


@contextmanager
def _told_to_end(first: Callable[[], object], second: Callable[[], object]) -> Iterator[None]:
    """Call `first` when SIGTERM or SIGINT comes, and `second` when it comes again."""
    loop = asyncio.get_running_loop()
    calls = itertools.chain([first], itertools.repeat(second))
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, lambda: next(calls)())
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
