"""Runs the endpoint, from its socket to its end: in this process, or in workers that share the port."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from prometheus_client import CollectorRegistry

from kafkafmt._util.directory_lock import lock_log_directory, lock_surroundings
from kafkafmt.log import LogDirectory
from kafkafmt.memory.process import bound_process
from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.descriptors import raise_limit
from kafkafmt.serve.endpoint import Endpoint, listen
from kafkafmt.serve.groups import GroupCoordinator, OffsetStore
from kafkafmt.serve.groups.store import FILE_NAME as OFFSETS_FILE
from kafkafmt.serve.metrics import Metrics, PrometheusMetrics, metrics_server, workers_registry
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions, host_and_port
from kafkafmt.serve.reloading import reloading_at_sighup
from kafkafmt.serve.security.tls import tls_context
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.turns import freeze_start
from kafkafmt.serve.workers import Supervisor

_log = structlog.get_logger()


def run(options: ServeOptions, on_listening: Callable[[str, int], None]) -> None:
    """Serve until SIGTERM or SIGINT, and then until responses in flight are sent; a second one ends it at once.

    SIGHUP reads the files of topics, users and certificates again; if one of them is wrong, all stays as it was.
    `on_listening` is called with host and port once connections are taken. Raises OSError where a socket, the
    directory or the folder for offsets is not to be had, IniError, OffsetsFileError, TlsError and WorkerError.
    """
    raise_limit()
    if options.memory_bytes is not None:
        bound_process()
    freeze_start()
    with listen(options.host, options.port) as listener:
        serve = _serve_alone if options.workers == 1 else _serve_by_workers
        host, port = listener.getsockname()[:2]
        asyncio.run(serve(options, listener, lambda: on_listening(host, port)))


async def _serve_alone(options: ServeOptions, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    with ExitStack() as stack:
        stack.enter_context(_state_lock(options))
        if options.allow_produce:
            LogDirectory(options.directory)  # raises if there is none, which a writer would make
            stack.enter_context(lock_log_directory(options.directory, exclusive=True))
        metrics = Metrics()
        if options.metrics is not None:
            metrics = PrometheusMetrics()
            _serve_metrics(stack, metrics.registry, options.metrics, options.request_timeout)
        async with _group_coordinator(options, listener) as coordinator:
            handlers = coordinator.handlers()
            endpoint = Endpoint(options, listener, handlers=handlers, metrics=metrics)
            serving = asyncio.create_task(endpoint.serve())

            async def read_again() -> None:
                await endpoint.read_again(await asyncio.to_thread(options.read_again))

            with _told_to_end((coordinator.close, endpoint.drain), serving.cancel):
                async with reloading_at_sighup(read_again):
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
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="kafkafmt-metrics-")))
            _serve_metrics(stack, workers_registry(folder), options.metrics, options.request_timeout)
        async with _group_coordinator(options, listener) as coordinator:
            supervisor = Supervisor(options, listener, coordinator.handlers(), folder)

            def on_all_ready() -> None:
                coordinator.begin_sessions()
                on_ready()

            async def read_again() -> None:
                again = await asyncio.to_thread(options.read_again)
                await asyncio.to_thread(_check_files, again)
                supervisor.read_again(again)

            with _told_to_end((coordinator.close, supervisor.drain), supervisor.end):
                async with reloading_at_sighup(read_again):
                    await supervisor.run(on_all_ready)


def _check_files(options: ServeOptions) -> None:
    """Raise IniError, TlsError or OSError for files that every worker reads by itself."""
    if options.tls is not None:
        tls_context(options.tls)
    TopicConfigs(options).read()


def _state_lock(options: ServeOptions) -> AbstractContextManager[object]:
    """Keep brokers off the log directory that offsets are committed in, if they are in one."""
    return nullcontext() if options.state is None else lock_surroundings(options.state / OFFSETS_FILE)


def _serve_metrics(
    stack: ExitStack, registry: CollectorRegistry, address: tuple[str, int], request_timeout: float
) -> None:
    """Serve metrics until the stack is left."""
    host, port = address
    port = stack.enter_context(metrics_server(registry, host, port, request_timeout))
    _log.info("metrics are served", address=host_and_port(host, port))


@asynccontextmanager
async def _group_coordinator(
    options: ServeOptions, listener: socket.socket
) -> AsyncIterator[GroupCoordinator]:
    """The coordinator of this endpoint, which finds itself where clients are told to connect to."""
    store = OffsetStore(options.state, options.groups)
    try:
        catalog = Catalog(options.directory)
        node = Node.advertised(options, listener, catalog.cluster_id)
        yield GroupCoordinator(store, catalog, node, options.groups)
    finally:
        await store.close()


@contextmanager
def _told_to_end(drain: Iterable[Callable[[], None]], end: Callable[[], object]) -> Iterator[None]:
    """Call all of `drain` when SIGTERM or SIGINT comes, and `end` when one comes again."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    is_draining = False

    def told() -> None:
        nonlocal is_draining
        if is_draining:
            _log.info("ending at once")
            end()
            return
        is_draining = True
        _log.info("draining")
        for call in drain:
            call()

    for number in signals:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
