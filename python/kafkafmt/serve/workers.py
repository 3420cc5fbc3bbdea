"""Several processes that take connections from one listening socket, and the one that looks after them.

The supervisor holds the socket, so that connections which wait to be taken outlive a worker; starts a worker again
that died; answers what has one answer for all of them, through a relay; and adds up their metrics. It takes no
connections itself. A worker ends when the supervisor is gone, for whatever reason: its end of their socket tells.
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
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from time import monotonic

import structlog

from kafkafmt.memory.process import bound_process
from kafkafmt.serve.endpoint import Endpoint
from kafkafmt.serve.logs import configure_logs
from kafkafmt.serve.metrics import Metrics, PrometheusMetrics, forget_worker, keep_metrics_in
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.relay import Relay, RelayedRequests
from kafkafmt.serve.reloading import Reloading
from kafkafmt.serve.request import Handler
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.turns import freeze_start

# How long the place of a dead worker stays empty, in seconds: longer each time, unless it lived for long.
_FIRST_DELAY, _MOST_DELAY, _LONG_LIFE = 0.1, 10.0, 60.0
# What workers may take beyond the time they have to end, before they are killed.
_GRACE = 1.0

_spawn = multiprocessing.get_context("spawn")
_log = structlog.get_logger()


class WorkerError(Exception):
    """A worker that could not begin to serve."""


@dataclass(frozen=True)
class _Job:
    """What a worker is to do, as it is handed to its process."""

    number: int
    options: ServeOptions
    listener: socket.socket
    relayed: tuple[int, ...]
    metrics: Path | None


class Supervisor:
    """Workers for `options.workers` places. `handlers` answer for all of them, where a worker is asked.

    metrics: the folder in which workers keep theirs; None: there are none.
    """

    def __init__(
        self,
        options: ServeOptions,
        listener: socket.socket,
        handlers: Mapping[int, Handler],
        metrics: Path | None,
    ) -> None:
        self._options = options
        self._job = _Job(0, _share(options), listener, tuple(handlers), metrics)
        self._handlers = handlers
        self._processes: dict[int, SpawnProcess] = {}
        self._ending = asyncio.Event()
        self._workers: dict[int, RelayedRequests] = {}

    def read_again(self, options: ServeOptions) -> None:
        """Have all workers, those of later too, go by options whose files of topics and users were read again."""
        self._job = replace(self._job, options=_share(options))
        for worker in self._workers.values():
            worker.tell(pickle.dumps(self._job.options))

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until `drain`. `on_ready` is called once every worker takes connections; raises WorkerError where one
        never did."""
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
        """Have all workers finish what is under way; what is not done in time is cut off."""
        self._ending.set()
        for process in self._processes.values():
            process.terminate()
        asyncio.get_running_loop().call_later(self._options.shutdown_timeout + _GRACE, self.end)

    def end(self) -> None:
        """End all workers at once."""
        self._ending.set()
        for process in self._processes.values():
            process.kill()

    async def _fill(self, number: int, ready: asyncio.Event) -> None:
        """Keep a worker in this place, until the end."""
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
            delay = _FIRST_DELAY if monotonic() - started > _LONG_LIFE else min(2 * delay, _MOST_DELAY)
            _log.error("a worker died", worker=number, end=_end(process), starts_again_in_seconds=delay)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), delay)

    @contextlib.asynccontextmanager
    async def _worker(self, number: int, ready: asyncio.Event) -> AsyncIterator[SpawnProcess]:
        """A worker's process, whose requests are answered while the block is not left."""
        ours, theirs = socket.socketpair()
        process = _spawn.Process(
            target=_work,
            args=(replace(self._job, number=number), theirs),
            name=f"worker-{number}",
            daemon=True,
        )
        with theirs:
            process.start()
        self._processes[number] = process
        _log.info("worker started", worker=number, pid=process.pid)
        requests = RelayedRequests(*await asyncio.open_unix_connection(sock=ours), self._handlers, ready)
        self._workers[number] = requests
        answering = asyncio.create_task(requests.run())
        try:
            yield process
        finally:
            del self._workers[number]
            answering.cancel()
            await asyncio.wait({answering})


def _share(options: ServeOptions) -> ServeOptions:
    """What one of the workers is told: its part of what is for all of them."""
    return replace(
        options,
        workers=1,
        max_downconversion_bytes=max(options.max_downconversion_bytes // options.workers, 1),
    )


async def _exit(process: SpawnProcess) -> None:
    """Wait until a process is gone."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()


def _end(process: SpawnProcess) -> str:
    """How a process ended, in words."""
    status = process.exitcode or 0
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _work(job: _Job, channel: socket.socket) -> None:
    """A worker's process."""
    # A terminal sends SIGINT and SIGHUP to all processes; a worker is told by its supervisor.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if job.options.memory_bytes is not None:
        bound_process()
    freeze_start()
    configure_logs(job.options.log_format, job.options.log_level)
    structlog.contextvars.bind_contextvars(worker=job.number)
    metrics = Metrics()
    if job.metrics is not None:
        keep_metrics_in(job.metrics, job.number)
        metrics = PrometheusMetrics()
    try:
        asyncio.run(_serve(job, channel, metrics))
    except Exception:
        _log.exception("the worker failed")
        sys.exit(1)


async def _serve(job: _Job, channel: socket.socket, metrics: Metrics) -> None:
    reloading = Reloading(lambda told: endpoint.read_again(pickle.loads(told)))
    relay = Relay(*await asyncio.open_unix_connection(sock=channel), on_told=reloading.ask)
    handlers = relay.handlers(job.relayed)
    configs = TopicConfigs(job.options)
    await configs.refresh()  # the supervisor has refused what is malformed at the start; later it is logged
    endpoint = Endpoint(job.options, job.listener, handlers=handlers, configs=configs, metrics=metrics)
    serving, supervised = asyncio.create_task(endpoint.serve()), asyncio.create_task(relay.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, endpoint.drain)
    relay.announce()
    async with reloading.running():
        await asyncio.wait({serving, supervised}, return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        os._exit(1)  # the supervisor is gone: who starts it again needs the port
    await serving
