"""Runs an endpoint from start to end: in this process, or in workers that share the port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)

import structlog

from kafkafmt._util.descriptors import raise_limit
from kafkafmt._util.directory_lock import lock_log_directory, lock_surroundings
from kafkafmt.log import LogDirectory
from kafkafmt.memory.process import bound_process
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.endpoint import Endpoint, open_worker_endpoint
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.groups.store import FILE_NAME as OFFSETS_FILE
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.listener import listen
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.node import Node
from kafkafmt.server.prometheus import PrometheusMetrics, workers_metrics
from kafkafmt.server.reloading import reloading_at_sighup
from kafkafmt.server.running import ended_by_signals, metrics_folder, serve_metrics
from kafkafmt.server.security.tls import tls_context
from kafkafmt.server.workers import Supervisor
from kafkafmt.server.yielding import frozen_start

_log = structlog.get_logger()


def run(options: ServeOptions, on_listening: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until responses in flight are sent. A second signal ends it at once.

    SIGHUP, or a change of the topics file, makes it read that file, the users file and certificates again; if one of
    them is invalid, nothing changes.
    on_listening: called with host and port once connections are accepted. Raises OSError if a socket, the directory or
    the folder for offsets is not available, and at the end as `Endpoint.serve`; IniError, OffsetsFileError, TlsError
    and WorkerError.
    """
    raise_limit()
    if options.memory_bytes is not None:
        bound_process()
    with frozen_start(), listen(options.host, options.port) as listener:
        serve = _serve_alone if options.workers == 1 else _serve_by_workers
        host, port = listener.getsockname()[:2]
        asyncio.run(serve(options, listener, lambda: on_listening(host, port)))


async def _serve_alone(options: ServeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    with ExitStack() as stack:
        stack.enter_context(_state_lock(options))
        if options.allow_produce:
            LogDirectory(options.directory)  # raises if it is missing; a writer would create it
            stack.enter_context(lock_log_directory(options.local_directory, exclusive=True))
        metrics = Metrics()
        if options.metrics is not None:
            metrics = PrometheusMetrics()
            serve_metrics(stack, metrics.served, options.metrics, options.request_timeout)
        async with _group_coordinator(options, listener) as coordinator:
            handlers = coordinator.handlers()
            endpoint = Endpoint(options, listener, handlers=handlers, metrics=metrics)
            serving = asyncio.create_task(endpoint.serve())

            async def reload() -> None:
                await endpoint.reload(await asyncio.to_thread(options.reload))

            with ended_by_signals((coordinator.close, endpoint.drain), serving.cancel):
                async with reloading_at_sighup(reload, options.topics_file):
                    coordinator.begin_sessions()
                    on_ready()
                    with suppress(asyncio.CancelledError):
                        await serving


async def _serve_by_workers(
    options: ServeOptions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    _check_files(options)
    with ExitStack() as stack:
        stack.enter_context(_state_lock(options))
        folder = None
        if options.metrics is not None:
            folder = stack.enter_context(metrics_folder())
            serve_metrics(stack, workers_metrics(folder), options.metrics, options.request_timeout)
        async with _group_coordinator(options, listener) as coordinator:
            handlers = coordinator.handlers()
            supervisor = Supervisor(options, open_worker_endpoint, listener, handlers, folder)

            def on_all_ready() -> None:
                coordinator.begin_sessions()
                on_ready()

            async def reload() -> None:
                again = await asyncio.to_thread(options.reload)
                await asyncio.to_thread(_check_files, again)
                supervisor.reload(again)

            with ended_by_signals((coordinator.close, supervisor.drain), supervisor.end):
                async with reloading_at_sighup(reload, options.topics_file):
                    await supervisor.run(on_all_ready)


def _check_files(options: ServeOptions) -> None:
    """Raise IniError, TlsError or OSError for the certificates and `topics.ini`, which every worker reads itself."""
    if options.tls is not None:
        tls_context(options.tls)
    TopicConfigs(options).read()


def _state_lock(options: ServeOptions) -> AbstractContextManager[object]:
    """Return a lock that keeps brokers off the log directory that contains the folder for offsets, if one does."""
    return nullcontext() if options.state is None else lock_surroundings(options.state / OFFSETS_FILE)


@asynccontextmanager
async def _group_coordinator(
    options: ServeOptions, listener: socket.socket
) -> AsyncIterator[GroupCoordinator]:
    """Open the group coordinator, which tells clients the advertised address as its own; close its store at the end."""
    store = OffsetStore(options.state, options.groups)
    try:
        catalog = Catalog(options.directory)
        node = Node.advertised(options, listener, catalog.cluster_id)
        yield GroupCoordinator(store, catalog, node, options.groups)
    finally:
        await store.close()
