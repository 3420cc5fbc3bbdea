"""Who still needs conversion: what the metrics port of an endpoint tells of old clients, and Kafka's own metrics of it.

The metrics are those of KIP-188. They measure the costs of down-conversion that KIP-283, "Motivation", is about.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.logs import write_log
from endpoints.endpoint_process import HOST
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import CLIENT_ID, RawClient
from endpoints.requests import Wanted, fetch
from endpoints.scraping import legacy_clients, legacy_clients_when, metric
from serve.produced import batch, produce

pytestmark = pytest.mark.slow

METRICS = ("--metrics", f"{HOST}:0")
RECORDS = 120
CONVERSIONS = "kafka_server_brokertopicmetrics_{}messageconversions_total"
REQUESTS = "kafka_network_requestmetrics_{}"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for topic in ("orders", "invoices"):
        write_log(tmp_path / "logs" / f"{topic}-0", segment_bytes=1_000_000)
    return tmp_path / "logs"


def test_consumer_when_old_then_is_listed_and_its_conversions_are_in_kafkas_metrics(logs: Path) -> None:
    with LoggedEndpoint(logs, *METRICS) as served:
        metrics = served.event("metrics are served")["address"]
        with RawClient((served.host, served.port)) as client:
            client.ask(fetch(Wanted("orders"), Wanted("invoices")), 11)
            assert legacy_clients(metrics) == {"clients": [], "left_out": 0}
            client.ask(fetch(Wanted("orders"), Wanted("invoices", 0, 110)), 2)
            client.ask(fetch(Wanted("orders", 0, 60)), 3)
            (found,) = legacy_clients_when(
                metrics, lambda clients: clients[0]["fetched_bytes_converted"] > RECORDS * 50 * 1.5
            )
        assert {name: found[name] for name in ("client_id", "address", "software_name", "requests")} == {
            "client_id": CLIENT_ID,
            "address": HOST,
            "software_name": None,
            "requests": 2,
        }
        assert (found["lowest_versions"], found["dropped"]) == ({"Fetch": 2}, {"Fetch": 4})
        assert found["topics"] == ["invoices", "orders"]

        name = CONVERSIONS.format("fetch")
        assert metric(metrics, name, topic="orders") == RECORDS + RECORDS / 2
        assert metric(metrics, name, topic="invoices") == 10
        for histogram in ("temporarymemorybytes", "messageconversionstimems"):
            assert metric(metrics, REQUESTS.format(histogram) + "_count", request="Fetch") == 2
            assert metric(metrics, REQUESTS.format(histogram) + "_sum", request="Fetch") > 0
        assert metric(metrics, REQUESTS.format("temporarymemorybytes") + "_count", request="Produce") == 0


def test_producer_when_old_then_is_listed_and_its_conversions_are_in_kafkas_metrics(logs: Path) -> None:
    with LoggedEndpoint(logs, *METRICS, "--allow-produce") as served:
        metrics = served.event("metrics are served")["address"]
        old, packed = batch(4, magic=1), batch(5, magic=1, codec="gzip")
        with RawClient((served.host, served.port)) as client:
            client.ask(produce(batch(3), topic="orders"), 3)
            client.ask(produce(old, topic="orders"), 2)
            client.ask(produce(packed, topic="orders"), 2)
        (found,) = legacy_clients_when(
            metrics, lambda clients: bool(clients and clients[0]["produced_bytes_converted"] > len(old))
        )
        assert found["produced_bytes_converted"] == len(old) + len(packed)
        assert (found["dropped"], found["topics"]) == ({"Produce": 3}, ["orders"])
        assert metric(metrics, CONVERSIONS.format("produce"), topic="orders") == 9
        assert metric(metrics, REQUESTS.format("messageconversionstimems") + "_count", request="Produce") == 2
        # The decompressed wrapper, and twice the records before compression.
        assert metric(metrics, REQUESTS.format("temporarymemorybytes") + "_sum", request="Produce") > 2 * len(
            old
        )


@pytest.mark.slow
def test_clients_when_at_several_workers_then_are_in_one_list(logs: Path) -> None:
    with LoggedEndpoint(logs, *METRICS, "--workers", 2) as served:
        metrics = served.event("metrics are served")["address"]
        for _ in range(8):
            with RawClient((served.host, served.port)) as client:
                client.ask(fetch(Wanted("orders", 0, 110)), 1)
        (found,) = legacy_clients_when(metrics, lambda clients: bool(clients and clients[0]["requests"] == 8))
        assert found["lowest_versions"] == {"Fetch": 1}
        assert metric(metrics, CONVERSIONS.format("fetch"), topic="orders") == 80
