"""Metrics: what is counted, as it is served, and how those of several workers add up."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from kafka.protocol.consumer import FetchRequest
from prometheus_client import CollectorRegistry

from endpoints.scraping import scrape
from kafkafmt.memory import MemoryBudget
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.prometheus import (
    PrometheusMetrics,
    forget_worker,
    keep_metrics_in,
    metrics_server,
    workers_registry,
)

pytestmark = pytest.mark.slow

FETCH = FetchRequest.API_KEY
SECONDS = 60.0


def served(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    """What a scrape gives: values by a sample's name and labels, in the order of their names."""
    with metrics_server(registry, "127.0.0.1", 0, SECONDS) as port:
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
            for sample in scrape(f"127.0.0.1:{port}")
            if not sample.name.endswith("_created")
        }


def use(metrics: Metrics) -> None:
    """Some of every event."""
    metrics.connection_opened()
    metrics.connection_opened()
    metrics.connection_closed()
    metrics.connection_refused("sasl")
    metrics.request_served(FETCH, 3, "answered")
    metrics.request_served(FETCH, 3, "answered")
    metrics.request_served(12345, 1, "failed")
    metrics.request_served(FETCH, 9999, "failed")
    metrics.error_sent(1)
    metrics.fetch_sent(3, 100, 20)
    metrics.fetch_sent(11, 1000, 0)
    with metrics.conversion():
        pass
    metrics.records_converted(7)
    metrics.records_appended(2, 300)
    metrics.records_appended(1, 30)
    metrics.memory_held(4096)
    metrics.memory_awaited(2)
    budget = MemoryBudget(100, "serve").child("chunks")
    with budget.reserve(60):
        pass
    budget.reserve(20)
    metrics.memory_used(budget)


def test_events_when_counted_then_are_served_by_names_of_the_field() -> None:
    metrics = PrometheusMetrics()
    use(metrics)
    found = served(metrics.registry)
    seconds = {key: value for key, value in found.items() if "seconds" in key[0]}
    assert {key: value for key, value in found.items() if key not in seconds} == {
        ("kafkafmt_connections",): 1,
        ("kafkafmt_connections_refused_total", "sasl"): 1,
        ("kafkafmt_requests_total", "Fetch", "answered", "3"): 2,
        ("kafkafmt_requests_total", "other", "failed", "other"): 1,
        ("kafkafmt_requests_total", "Fetch", "failed", "other"): 1,
        ("kafkafmt_errors_total", "OFFSET_OUT_OF_RANGE"): 1,
        ("kafkafmt_fetch_sent_bytes_total", "3", "zero_copy"): 100,
        ("kafkafmt_fetch_sent_bytes_total", "3", "conversion"): 20,
        ("kafkafmt_fetch_sent_bytes_total", "11", "zero_copy"): 1000,
        ("kafkafmt_conversions_in_progress",): 0,
        ("kafkafmt_converted_records_total",): 7,
        ("kafkafmt_produced_batches_total",): 3,
        ("kafkafmt_produced_bytes_total",): 330,
        ("kafkafmt_downconversion_memory_bytes",): 4096,
        ("kafkafmt_downconversion_waiting",): 2,
        ("kafkafmt_memory_held_bytes", "serve.chunks"): 20,
        ("kafkafmt_memory_peak_bytes", "serve.chunks"): 60,
    }
    assert seconds["kafkafmt_conversion_seconds_count",] == 1


def test_conversion_when_under_way_then_is_in_progress() -> None:
    metrics = PrometheusMetrics()
    with metrics.conversion():
        assert served(metrics.registry)["kafkafmt_conversions_in_progress",] == 1


def test_client_of_metrics_when_it_asks_for_nothing_then_is_let_go() -> None:
    with (
        metrics_server(CollectorRegistry(), "127.0.0.1", 0, 0.1) as port,
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as idle,
    ):
        assert idle.recv(1) == b""


def test_events_when_metrics_are_off_then_are_taken() -> None:
    use(Metrics())


def _worker(folder: Path, number: int, channel: Connection) -> None:
    """A worker that uses its metrics, says so, and lives on."""
    keep_metrics_in(folder, number)
    use(PrometheusMetrics())
    channel.send("used")
    channel.recv()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX")
def test_worker_when_killed_and_replaced_then_counters_go_on_and_gauges_are_of_the_living(
    tmp_path: Path,
) -> None:
    spawn = multiprocessing.get_context("spawn")

    def start(number: int) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_worker, args=(tmp_path, number, theirs))
        process.start()
        theirs.close()
        assert ours.recv() == "used"
        return process, ours

    registry = workers_registry(tmp_path)
    (first, _), (second, second_channel) = start(0), start(1)
    connections, requests = ("kafkafmt_connections",), ("kafkafmt_requests_total", "Fetch", "answered", "3")
    found = served(registry)
    assert (found[connections], found[requests]) == (2, 4)

    first.kill()
    first.join()
    forget_worker(tmp_path, 0)
    found = served(registry)
    assert (found[connections], found[requests]) == (1, 4)
    files = set(tmp_path.iterdir())

    third, third_channel = start(0)
    found = served(registry)
    assert (found[connections], found[requests]) == (2, 6)
    assert len(set(tmp_path.iterdir()) - files) == 1  # the gauges', which had gone
    for process, channel in ((second, second_channel), (third, third_channel)):
        channel.send("end")
        process.join()
