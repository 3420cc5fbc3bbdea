"""Worker processes that accept connections from one listening socket, and their supervisor.

The supervisor keeps the socket open, so that connections in its backlog outlive a worker. It restarts workers that
died, answers the requests that need one answer for all workers, through a relay, and adds up their metrics. It accepts
no connections itself. A worker ends when the supervisor has ended, for any reason: their shared socket closes then.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeAlias

import structlog

from kafkafmt._util.user_errors import UserError
from kafkafmt.memory import MemoryBudget
from kafkafmt.memory.process import bound_process
from kafkafmt.server.legacy_clients import SavedClients, clients_file
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.options import ServerOptions
from kafkafmt.server.prometheus import PrometheusMetrics, forget_worker, keep_metrics_in
from kafkafmt.server.relay import Relay, RelayedRequests, RelayMemory
from kafkafmt.server.reloading import Reloader
from kafkafmt.server.request import Handler
from kafkafmt.server.request_memory import REQUEST_COPIES
from kafkafmt.server.structured_logging import configure_logs
from kafkafmt.server.yielding import frozen_start

# Seconds before a dead worker is replaced: first, at most (the delay doubles), and the life that resets the delay.
_FIRST_DELAY, _MAX_DELAY, _LONG_LIFE = 0.1, 10.0, 60.0
# Seconds that workers get in addition to `shutdown_timeout` before they are killed.
_GRACE = 1.0

_spawn = multiprocessing.get_context("spawn")
_log = structlog.get_logger()


class WorkerError(UserError):
    """A worker ended before it accepted connections."""


class WorkerEndpoint(Protocol):
    """The endpoint of a worker process."""

    async def serve(self) -> None:
        """Serve until `drain` was called and the responses in flight are sent."""

    def drain(self) -> None:
        """Accept no more connections, and close the open ones after their current response."""

    async def reload(self, options: Any, /) -> None:
        """Apply options whose files were read again."""


# Opens the endpoint of a worker from its options, the socket, the handlers of relayed requests, and its metrics. The
# worker's process gets it by name (pickle), so it must be a function of a module.
OpenEndpoint: TypeAlias = Callable[
    [Any, socket.socket, Mapping[int, Handler], Metrics], Awaitable[WorkerEndpoint]
]


@dataclass(frozen=True)
class _Job:
    """The arguments of a worker's process. relayed: keys of the APIs that the supervisor answers."""

    number: int
    options: ServerOptions
    open_endpoint: OpenEndpoint
    listener: socket.socket
    relayed: tuple[int, ...]
    metrics: Path | None


class Supervisor:
    """Runs `options.workers` workers. handlers: by API key, those that answer for all workers.

    open_endpoint: opens the endpoint of each worker, from options of any class. metrics: the folder in which workers
    keep their metrics; None: no metrics.
    """

    def __init__(
        self,
        options: ServerOptions,
        open_endpoint: OpenEndpoint,
        listener: socket.socket,
        handlers: Mapping[int, Handler],
        metrics: Path | None,
    ) -> None:
        self._options = options
        self._job = _Job(0, _share(options), open_endpoint, listener, tuple(handlers), metrics)
        self._handlers = handlers
        self._processes: dict[int, SpawnProcess] = {}
        self._ending = asyncio.Event()
        self._workers: dict[int, RelayedRequests] = {}
        requests = options.max_produce_memory_bytes
        self._memory = RelayMemory(
            MemoryBudget(requests, "relayed"),
            max_bytes=max(requests, REQUEST_COPIES * options.largest_request_bytes),
            seconds=options.request_timeout,
        )

    def reload(self, options: ServerOptions) -> None:
        """Apply options whose topics file and users file were read again, to all workers now and later."""
        self._job = replace(self._job, options=_share(options))
        for worker in self._workers.values():
            worker.notify(pickle.dumps(self._job.options))

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Run the workers until `drain`. on_ready: called once every worker accepts connections.

        Raises WorkerError if one ends before it does.
        """
        ready = [asyncio.Event() for _ in range(self._options.workers)]
        places = asyncio.gather(*(self._fill(number, event) for number, event in enumerate(ready)))
        all_ready = asyncio.gather(*(event.wait() for event in ready))
        try:
            await asyncio.wait((places, all_ready), return_when=asyncio.FIRST_COMPLETED)
            if all_ready.done():
                on_ready()
            await places
        finally:
            all_ready.cancel()
            self.end()
            for process in self._processes.values():
                process.join()

    def drain(self) -> None:
        """Let all workers send the responses in flight. Kill those that take longer than `shutdown_timeout`."""
        self._ending.set()
        for process in self._processes.values():
            process.terminate()
        asyncio.get_running_loop().call_later(self._options.shutdown_timeout + _GRACE, self.end)

    def end(self) -> None:
        """Kill all workers."""
        self._ending.set()
        for process in self._processes.values():
            process.kill()

    async def _fill(self, number: int, ready: asyncio.Event) -> None:
        """Start the worker of this number, and restart it when it dies, until the end. Raises WorkerError."""
        delay = _FIRST_DELAY
        while not self._ending.is_set():
            started = monotonic()
            async with self._worker(number, ready) as process:
                await _exit(process)
            if self._job.metrics is not None:
                forget_worker(self._job.metrics, number)
            if self._ending.is_set():
                return
            if not ready.is_set():
                raise WorkerError(f"worker {number} ended before it took connections: {_end(process)}")
            delay = _FIRST_DELAY if monotonic() - started > _LONG_LIFE else min(2 * delay, _MAX_DELAY)
            _log.error("a worker died", worker=number, end=_end(process), starts_again_in_seconds=delay)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay)

    @contextlib.asynccontextmanager
    async def _worker(self, number: int, ready: asyncio.Event) -> AsyncIterator[SpawnProcess]:
        """Start a worker process, and answer its requests within the block."""
        ours, theirs = socket.socketpair()
        job = replace(self._job, number=number)
        process = _spawn.Process(target=_work, args=(job, theirs), name=f"worker-{number}", daemon=True)
        with theirs:
            process.start()
        self._processes[number] = process
        _log.info("worker started", worker=number, pid=process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        requests = RelayedRequests(reader, writer, self._handlers, ready, self._memory)
        self._workers[number] = requests
        if self._job.options is not job.options:  # they were read again while the process was started
            requests.notify(pickle.dumps(self._job.options))
        answering = asyncio.create_task(requests.run())
        try:
            yield process
        finally:
            del self._workers[number]
            answering.cancel()
            await asyncio.wait({answering})


def _share(options: ServerOptions) -> ServerOptions:
    """Return the options of one worker, with its share of limits that are for all workers."""
    return replace(
        options,
        workers=1,
        max_downconversion_bytes=max(options.max_downconversion_bytes // options.workers, 1),
    )


async def _exit(process: SpawnProcess) -> None:
    """Wait until a process has ended."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


def _end(process: SpawnProcess) -> str:
    """Return how a process ended: the name of a signal, or its exit status."""
    status = process.exitcode or 0
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _work(job: _Job, channel: socket.socket) -> None:
    """Run a worker: the main function of its process."""
    # A terminal sends SIGINT and SIGHUP to all processes. Workers ignore them: the supervisor tells them what to do.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if job.options.memory_bytes is not None:
        bound_process()
    configure_logs(job.options.log_format, job.options.log_level)
    structlog.contextvars.bind_contextvars(worker=job.number)
    metrics, clients = Metrics(), None
    if job.metrics is not None:
        keep_metrics_in(job.metrics, job.number)
        clients = SavedClients(clients_file(job.metrics, job.number))
        metrics = PrometheusMetrics(clients)
    try:
        with frozen_start():
            asyncio.run(_serve(job, channel, metrics))
    except Exception:
        _log.exception("the worker failed")
        sys.exit(1)
    finally:
        if clients is not None:
            clients.save()


async def _serve(job: _Job, channel: socket.socket, metrics: Metrics) -> None:
    reloading = Reloader(lambda message: endpoint.reload(pickle.loads(message)))
    relay = Relay(*await asyncio.open_unix_connection(sock=channel), on_notice=reloading.ask)
    endpoint = await job.open_endpoint(job.options, job.listener, relay.handlers(job.relayed), metrics)
    serving, supervised = asyncio.create_task(endpoint.serve()), asyncio.create_task(relay.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, endpoint.drain)
    relay.announce()
    async with reloading.running():
        await asyncio.wait({serving, supervised}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        os._exit(1)  # the supervisor has ended, and its next start needs the port
    await serving
