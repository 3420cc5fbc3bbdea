"""Who still needs the gateway: what it tells of old clients on its metrics port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from endpoints.endpoint_process import GATEWAY, HOST
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.scraping import legacy_clients_when, metric
from gateway.test_old_and_new import kcat
from kafkafmt.gateway.translations import TRANSLATIONS
from kafkafmt.gateway.versions import FIRST_BATCHES
from kafkafmt.server.legacy_clients import FIRST_VERSIONS

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = pytest.mark.slow


@pytest.mark.broker
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_old_client_when_it_uses_the_gateway_then_is_listed_and_new_ones_are_not(
    broker: Broker, workers: int
) -> None:
    topic = f"who-still-needs-it-{workers}"
    broker.create_topic(topic)
    options = ("--metrics", f"{HOST}:0", "--workers", workers)
    with LoggedEndpoint(f"kafka://{broker.bootstrap}", *options, command=GATEWAY) as gateway:
        metrics = gateway.event("metrics are served")["address"]
        read = ("-C", "-q", "-e", "-t", topic, "-p", "0", "-o", "beginning")
        kcat(gateway.address, None, "-P", "-t", topic, "-p", "0", "-X", "client.id=new", records="one\ntwo\n")
        kcat(gateway.address, None, *read, "-X", "client.id=new")
        old = ("-X", "client.id=<old>")
        kcat(gateway.address, "0.9.0.1", "-P", "-t", topic, "-p", "0", *old, records="three\n")
        kcat(gateway.address, "0.9.0.1", *read, *old)

        (found,) = legacy_clients_when(
            metrics,
            lambda clients: bool(
                clients and clients[0]["fetched_bytes_converted"] and clients[0]["produced_bytes_converted"]
            ),
        )
        assert (found["client_id"], found["address"], found["topics"]) == ("<old>", HOST, [topic])
        assert found["dropped"].keys() >= {"Fetch", "Produce"}
        name = "kafka_server_brokertopicmetrics_{}messageconversions_total"
        assert metric(metrics, name.format("fetch"), topic=topic) >= 3
        assert metric(metrics, name.format("produce"), topic=topic) == 1
        assert metric(metrics, "kafkafmt_requests_total", api="Fetch", outcome="passed") > 0


def test_versions_when_translated_then_make_a_client_a_legacy_one() -> None:
    translated = {int(api): one.versions.stop for api, one in TRANSLATIONS.items()} | {
        int(api): first for api, first in FIRST_BATCHES.items()
    }
    assert translated.items() <= {int(api): first for api, first in FIRST_VERSIONS.items()}.items()
