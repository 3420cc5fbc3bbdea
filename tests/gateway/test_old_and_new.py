"""kcat, told which broker it speaks to, and as it is, through a gateway to Kafka 4."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from broker.broker import Broker
    from endpoints.endpoint_process import EndpointProcess

SECONDS = 60


def kcat(address: str, version: str | None, *arguments: str, records: str | None = None) -> str:
    told = (
        ()
        if version is None
        else ("-X", "api.version.request=false", "-X", f"broker.version.fallback={version}")
    )
    command = ["kcat", "-b", address, *told, *arguments]
    done = subprocess.run(
        command, input=records, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.broker
@pytest.mark.parametrize("version", ["0.8.2.2", "0.9.0.1", "0.10.0.1", None])
def test_kcat_when_through_a_gateway_then_reads_what_it_produced(
    broker: Broker, gateway: EndpointProcess, version: str | None
) -> None:
    topic = f"kcat-{version}"
    broker.create_topic(topic)

    kcat(gateway.address, version, "-P", "-t", topic, "-p", "0", "-z", "gzip", records="one\ntwo\n")

    read = ("-C", "-q", "-e", "-t", topic, "-p", "0", "-o")
    assert kcat(gateway.address, version, *read, "beginning") == "one\ntwo\n"
    assert kcat(gateway.address, version, *read, "1") == "two\n"
