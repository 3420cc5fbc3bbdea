"""What any server needs around its event loop: signals that end it, and a port for metrics."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from kafkafmt._util.addresses import host_and_port
from kafkafmt.server.clients_page import client_pages
from kafkafmt.server.pages import Pages
from kafkafmt.server.prometheus import ServedMetrics, metrics_server

_log = structlog.get_logger()


def serve_metrics(
    stack: ExitStack,
    metrics: ServedMetrics,
    address: tuple[str, int],
    request_timeout: float,
    pages: Pages | None = None,
) -> None:
    """Serve metrics, the page of legacy clients, and other pages at their paths, until the stack is closed."""
    host, port = address
    all_pages = {**client_pages(metrics.clients), **(pages or {})}
    port = stack.enter_context(metrics_server(metrics.registry, host, port, request_timeout, all_pages))
    _log.info("metrics are served", address=host_and_port(host, port))


@contextmanager
def metrics_folder() -> Iterator[Path]:
    """Yield a new folder in which workers write their metrics. Raises OSError, which says what the folder is for."""
    try:
        folder = TemporaryDirectory(prefix="kafkafmt-metrics-")
    except OSError as error:
        raise OSError(
            error.errno,
            f"the metrics of workers need a writable folder for temporary files: {error.strerror}",
        ) from None
    with folder as path:
        yield Path(path)


@contextmanager
def ended_by_signals(drain: Iterable[Callable[[], None]], end: Callable[[], object]) -> Iterator[None]:
    """Call all functions of `drain` at the first SIGTERM or SIGINT, and `end` at each later one."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)
    is_draining = False

    def on_signal() -> None:
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
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
