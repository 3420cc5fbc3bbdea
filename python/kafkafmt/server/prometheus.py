"""Metrics in Prometheus' format (library: prometheus-client).

Labels are bounded: APIs, versions, errors and outcomes, never clients, and `_MAX_TOPICS` topics at most. Metrics of
conversions have the names that the JMX exporter of Prometheus, by its example for brokers, gives to Kafka's own.

Workers keep their values in files of one folder; the supervisor adds them up. A worker that replaces a dead one
continues its files, so that counters never decrease and files do not accumulate.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from kafka.errors import for_code
from kafka.protocol.api_key import ApiKey
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, values
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.values import MultiProcessValue

from kafkafmt._util.addresses import host_and_port
from kafkafmt._util.sizes import KIB
from kafkafmt.server.legacy_clients import ClientList, LegacyClients, TrackedClient, workers_clients
from kafkafmt.server.metrics import ClientEvents, Conversions, Metrics, Outcome, Refusal
from kafkafmt.server.page_server import PageServer
from kafkafmt.server.pages import Application, Pages, with_pages
from kafkafmt.server.wire import SUPPORTED, api_name

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget

_OTHER = "other"
_MAX_TOPICS = 1000
_OTHER_TOPICS = "(other)"  # no topic can have this name
# A chunk takes about a millisecond; a batch with slow codecs takes seconds.
_CONVERSION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
# A request converts from one record to many chunks.
_REQUEST_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
_REQUEST_BYTES = tuple(KIB * 4**power for power in range(11))
_BROKER_TOPIC, _REQUEST = "kafka_server_brokertopicmetrics", "kafka_network_requestmetrics"


class ServedMetrics(NamedTuple):
    """The pages of the metrics port: metrics of a server, and its legacy clients."""

    registry: CollectorRegistry
    clients: Callable[[], ClientList]


class PrometheusMetrics(Metrics):
    """The events of a server, counted in a registry of their own. clients: collects the legacy clients."""

    def __init__(self, clients: LegacyClients | None = None) -> None:
        self.clients = LegacyClients() if clients is None else clients
        self.registry = registry = CollectorRegistry()
        self._connections = _gauge("connections", "Connections that are open.", registry)
        counter = partial(Counter, registry=registry)
        self._refused = counter(
            "kafkafmt_connections_refused", "Connections closed by the endpoint, by reason.", ["reason"]
        )
        self._requests = counter(
            "kafkafmt_requests",
            "Requests by API, version and outcome: fetches by version are those of the API Fetch.",
            ["api", "version", "outcome"],
        )
        self._errors = counter("kafkafmt_errors", "Error codes sent, by Kafka's names for them.", ["error"])
        self._sent = counter(
            "kafkafmt_fetch_sent_bytes",
            "Bytes of records sent, by version of Fetch, and by zero_copy or conversion.",
            ["version", "way"],
        )
        self._in_progress = _gauge("conversions_in_progress", "Chunks that are being converted.", registry)
        self._seconds = Histogram(
            "kafkafmt_conversion_seconds",
            "Time that the conversion of a chunk took.",
            buckets=_CONVERSION_SECONDS,
            registry=registry,
        )
        self._records = counter("kafkafmt_converted_records", "Records converted to an older format.")
        self._produced_batches = counter("kafkafmt_produced_batches", "Batches of producers appended.")
        self._produced_bytes = counter("kafkafmt_produced_bytes", "Bytes of producers' batches appended.")
        held, peak = "Bytes that are held of a budget, by its name.", "The most bytes that were ever held."
        self._held = _gauge("memory_held_bytes", held, registry, ["budget"])
        self._peak = _gauge("memory_peak_bytes", peak, registry, ["budget"])
        self._memory = _gauge("downconversion_memory_bytes", "Bytes that converted chunks hold.", registry)
        self._awaited = _gauge("downconversion_waiting", "Conversions that wait for memory.", registry)
        self._topics: set[str] = set()
        self._messages = {
            api: counter(
                f"{_BROKER_TOPIC}_{api.name.lower()}messageconversions",
                f"kafka.server:type=BrokerTopicMetrics,name={api.name}MessageConversionsPerSec,topic=: "
                "records whose format was converted.",
                ["topic"],
            )
            for api in (ApiKey.Fetch, ApiKey.Produce)
        }
        histogram = partial(Histogram, labelnames=["request"], registry=registry)
        self._temporary = histogram(
            f"{_REQUEST}_temporarymemorybytes",
            "kafka.network:type=RequestMetrics,name=TemporaryMemoryBytes,request=: "
            "temporary memory for conversions and decompression, of a request that converts.",
            buckets=_REQUEST_BYTES,
        )
        self._milliseconds = histogram(
            f"{_REQUEST}_messageconversionstimems",
            "kafka.network:type=RequestMetrics,name=MessageConversionsTimeMs,request=: "
            "the time of conversions, of a request that converts.",
            buckets=_REQUEST_MS,
        )

    @property
    def served(self) -> ServedMetrics:
        """Return what is served of them."""
        return ServedMetrics(self.registry, self.clients.known)

    def client(self, address: str) -> ClientEvents:
        return TrackedClient(self.clients, self, address)

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

    def messages_converted(self, api_key: int, conversions: Conversions) -> None:
        request = api_name(api_key)
        for topic, count in conversions.records.items():
            self._messages[ApiKey(api_key)].labels(self._topic_label(topic)).inc(count)
        self._temporary.labels(request).observe(conversions.stats.temporary_memory_bytes)
        self._milliseconds.labels(request).observe(1000 * conversions.stats.seconds)

    def _topic_label(self, topic: str) -> str:
        if topic not in self._topics:
            if len(self._topics) >= _MAX_TOPICS:
                return _OTHER_TOPICS
            self._topics.add(topic)
        return topic

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
    """Return a gauge that is the sum over the running workers."""
    return Gauge(f"kafkafmt_{name}", documentation, labels, registry=registry, multiprocess_mode="livesum")


def keep_metrics_in(folder: Path, worker: int) -> None:
    """Keep the metrics of this process in files of the folder, as this worker's. Call it before creating metrics."""
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    values.ValueClass = MultiProcessValue(lambda: worker)  # type: ignore[no-untyped-call]


def forget_worker(folder: Path, worker: int) -> None:
    """Remove the gauges of a dead worker; its counters stay."""
    mark_process_dead(worker, str(folder))  # type: ignore[no-untyped-call]


def workers_registry(folder: Path) -> CollectorRegistry:
    """Return the metrics of all workers in the folder, which are added up at each request."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    return registry


def workers_metrics(folder: Path) -> ServedMetrics:
    """Return what is served of all workers in the folder."""
    return ServedMetrics(workers_registry(folder), partial(workers_clients, folder))


@contextmanager
def metrics_server(
    registry: CollectorRegistry, host: str, port: int, request_timeout: float, pages: Pages | None = None
) -> Iterator[int]:
    """Serve metrics over HTTP, from threads, within the block. Yields the port. Raises OSError.

    request_timeout: the longest time that a request and its response may take, in seconds.
    pages: paths that answer with something else than metrics.
    """
    application: Application = with_pages(pages or {}, make_wsgi_app(registry))
    try:
        server = PageServer(host, port, application, request_timeout)
    except OSError as error:
        raise OSError(error.errno, error.strerror, host_and_port(host, port)) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
