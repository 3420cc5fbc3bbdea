"""What the endpoint counts, in Prometheus' form (library: prometheus-client).

`Metrics` takes the events and does nothing, for an endpoint without metrics; `PrometheusMetrics` counts them.
Labels are bounded: APIs, versions, errors and outcomes, never topics or clients.

Several workers keep their values in files of one folder, which whoever serves the metrics adds up. A worker that
takes the place of a dead one goes on with its files, so that counters never go back and files never pile up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from kafka.errors import for_code
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.values import MultiProcessValue

from kafkafmt.serve.options import host_and_port
from kafkafmt.serve.wire import SUPPORTED, api_name

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget

# answered: with a response, error codes included. failed: the connection ended before that.
Outcome: TypeAlias = Literal["answered", "failed"]
# Why a connection is closed: no TLS session, no authentication, a request that has no answer, too many others, memory
# that others wait for.
Refusal: TypeAlias = Literal["tls", "sasl", "request", "limit", "memory"]

_OTHER = "other"
# A chunk takes a millisecond or so; one batch that goes through slow codecs, seconds.
_CONVERSION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The events of an endpoint, counted nowhere."""

    def connection_opened(self) -> None:
        """A connection was accepted; `connection_closed` follows."""

    def connection_closed(self) -> None:
        """A connection that was opened is gone."""

    def connection_refused(self, reason: Refusal) -> None:
        """A client was sent away."""

    def request_served(self, api_key: int, version: int, outcome: Outcome) -> None:
        """A request is dealt with, and its response sent where there is one."""

    def error_sent(self, error_code: int) -> None:
        """A response, or a partition in it, carries an error code other than 0."""

    def fetch_sent(self, version: int, zero_copy_bytes: int, converted_bytes: int) -> None:
        """Records of a fetch response went out: by sendfile, and by conversion with its padding."""

    @contextmanager
    def conversion(self) -> Iterator[None]:
        """Around the conversion of one chunk."""
        yield

    def records_converted(self, count: int) -> None:
        """Records were converted to an older format."""

    def records_appended(self, batches: int, size_bytes: int) -> None:
        """Batches of a producer were appended to the log."""

    def memory_used(self, budget: MemoryBudget) -> None:
        """What is held of a budget has changed, or who waits for some."""

    def memory_held(self, size_bytes: int) -> None:
        """What all chunks that are being sent take together, from now on."""

    def memory_awaited(self, conversions: int) -> None:
        """How many conversions wait for memory, from now on."""


class PrometheusMetrics(Metrics):
    """The events of an endpoint, counted in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._connections = _gauge("connections", "Connections that are open.", registry)
        self._refused = Counter(
            "kafkafmt_connections_refused",
            "Connections closed by the endpoint, by reason.",
            ["reason"],
            registry=registry,
        )
        self._requests = Counter(
            "kafkafmt_requests",
            "Requests by API, version and outcome: fetches by version are those of the API Fetch.",
            ["api", "version", "outcome"],
            registry=registry,
        )
        self._errors = Counter(
            "kafkafmt_errors", "Error codes sent, by Kafka's names for them.", ["error"], registry=registry
        )
        self._sent = Counter(
            "kafkafmt_fetch_sent_bytes",
            "Bytes of records sent, by the version of Fetch and by the way: zero_copy, or conversion.",
            ["version", "way"],
            registry=registry,
        )
        self._in_progress = _gauge("conversions_in_progress", "Chunks that are being converted.", registry)
        self._seconds = Histogram(
            "kafkafmt_conversion_seconds",
            "Time that the conversion of a chunk took.",
            buckets=_CONVERSION_SECONDS,
            registry=registry,
        )
        self._records = Counter(
            "kafkafmt_converted_records", "Records converted to an older format.", registry=registry
        )
        self._produced_batches = Counter(
            "kafkafmt_produced_batches", "Batches of producers appended.", registry=registry
        )
        self._produced_bytes = Counter(
            "kafkafmt_produced_bytes", "Bytes of producers' batches appended.", registry=registry
        )
        held, peak = "Memory that is held of a budget, by its name.", "The most that ever was."
        self._held = _gauge("memory_held_bytes", held, registry, ["budget"])
        self._peak = _gauge("memory_peak_bytes", peak, registry, ["budget"])
        self._memory = _gauge("downconversion_memory_bytes", "Memory that converted chunks hold.", registry)
        self._awaited = _gauge("downconversion_waiting", "Conversions that wait for memory.", registry)

    def connection_opened(self) -> None:
        self._connections.inc()

    def connection_closed(self) -> None:
        self._connections.dec()

    def connection_refused(self, reason: Refusal) -> None:
        self._refused.labels(reason).inc()

    def request_served(self, api_key: int, version: int, outcome: Outcome) -> None:
        versions = SUPPORTED.get(api_key)
        api = _OTHER if versions is None else api_name(api_key)
        self._requests.labels(api, version if versions and version in versions else _OTHER, outcome).inc()

    def error_sent(self, error_code: int) -> None:
        self._errors.labels(for_code(error_code).message).inc()

    def fetch_sent(self, version: int, zero_copy_bytes: int, converted_bytes: int) -> None:
        if zero_copy_bytes:
            self._sent.labels(version, "zero_copy").inc(zero_copy_bytes)
        if converted_bytes:
            self._sent.labels(version, "conversion").inc(converted_bytes)

    @contextmanager
    def conversion(self) -> Iterator[None]:
        start = perf_counter()
        self._in_progress.inc()
        try:
            yield
        finally:
            self._in_progress.dec()
            self._seconds.observe(perf_counter() - start)

    def records_converted(self, count: int) -> None:
        self._records.inc(count)

    def records_appended(self, batches: int, size_bytes: int) -> None:
        self._produced_batches.inc(batches)
        self._produced_bytes.inc(size_bytes)

    def memory_used(self, budget: MemoryBudget) -> None:
        self._held.labels(budget.name).set(budget.held_bytes)
        self._peak.labels(budget.name).set(budget.peak_bytes)

    def memory_held(self, size_bytes: int) -> None:
        self._memory.set(size_bytes)

    def memory_awaited(self, conversions: int) -> None:
        self._awaited.set(conversions)


def _gauge(name: str, documentation: str, registry: CollectorRegistry, labels: Sequence[str] = ()) -> Gauge:
    """A gauge that is the sum over the workers that live."""
    return Gauge(f"kafkafmt_{name}", documentation, labels, registry=registry, multiprocess_mode="livesum")


def keep_metrics_in(folder: Path, worker: int) -> None:
    """Have this process keep its metrics in files of the folder, as the worker of this number: before any is made."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def forget_worker(folder: Path, worker: int) -> None:
    """Drop what a dead worker had open or held; what it counted stays."""
    mark_process_dead(worker, str(folder))  # type: ignore[no-untyped-call]


def workers_registry(folder: Path) -> CollectorRegistry:
    """The metrics of all workers that keep theirs in the folder, added up whenever they are asked for."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return registry


@contextmanager
def metrics_server(
    registry: CollectorRegistry, host: str, port: int, request_timeout: float
) -> Iterator[int]:
    """Serve metrics over HTTP, from threads, until the block is left; gives the port. Raises OSError.

    request_timeout: how long a client may take for its request, in seconds: a thread waits for it.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise OSError(error.errno, error.strerror, host_and_port(host, port)) from None
    handler = type("_Handler", (server.RequestHandlerClass,), {"timeout": request_timeout})  # type: ignore[arg-type]
    server.RequestHandlerClass = handler
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
