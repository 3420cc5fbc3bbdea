"""Metrics of producers before Produce v3: clients do not choose which topics are in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from endpoints.endpoint_process import GATEWAY, HOST, EndpointProcess
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.scraping import scrape
from log.samples import batches, put_segment
from serve.produced import batch, error_code, produce

pytestmark = pytest.mark.slow

OLD, UNKNOWN_TOPIC = 2, 3
CONVERTED = "kafka_server_brokertopicmetrics_producemessageconversions_total"


def test_conversions_when_a_topic_does_not_exist_then_are_not_counted(tmp_path: Path) -> None:
    put_segment(tmp_path / "t-0", 0, batches(0, 1))
    records = batch(3, magic=1)
    with (
        EndpointProcess(tmp_path, "--allow-produce") as upstream,
        LoggedEndpoint(
            f"kafka://{upstream.address}",  # type: ignore[arg-type]
            "--metrics",
            f"{HOST}:0",
            command=GATEWAY,
        ) as gateway,
        RawClient((gateway.host, gateway.port)) as client,
    ):
        metrics = gateway.event("metrics are served")["address"]
        assert error_code(client, produce(records, topic="chosen-by-a-client"), OLD) == UNKNOWN_TOPIC
        assert error_code(client, produce(records), OLD) == 0
        found = {one.labels["topic"]: one.value for one in scrape(metrics) if one.name == CONVERTED}
    assert found == {"t": 3}
