"""Kafka's own clients of Kafka 4 use three brokers through one address, and through one address for each broker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.broker import KAFKA_4
from broker.three_brokers import NODES
from endpoints.endpoint_process import EndpointProcess, gateway_process, lasting_ports
from gateway.several_brokers import Several

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("several_brokers")]
PROGRAM = Path(__file__).with_name("Clients.java")
SECONDS = 240
PORTS = len(NODES)
VALUES = 30


def java(command: str, address: str, topic: str) -> dict[str, str]:
    """What a command of the program found, by name."""
    done = subprocess.run(
        [*KAFKA_4.java("quiet.properties"), str(PROGRAM), command, address, topic],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "workers"])
def per_broker(
    several: Several, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EndpointProcess]:
    """A gateway with a port for each broker."""
    ports = f"{(first := lasting_ports(PORTS))}-{first + PORTS - 1}"
    log = tmp_path_factory.mktemp("per-broker") / "gateway.log"
    options = ("--listener-per-broker", ports, "--workers", str(request.param))
    with gateway_process(several.brokers.bootstrap, *options, log=log) as running:
        yield running


def assert_administered(found: dict[str, str], ports: int) -> None:
    assert found.pop("ports") == str(ports)
    assert found.pop("quorum") == "1"
    assert found == {
        "nodes": "[1, 2, 3]",
        "leaders": "[1, 2, 3]",
        "end": str(VALUES),
        "groups": "[java-a, java-b, java-c]",
        "described": "[java-a, java-b, java-c]",
        "offsets": "[1, 1, 1]",
        "configs": "[1=1, 2=2, 3=3]",
        "producers": "3",
        "start": "15",
        "transactions": "true",
        "features": "false",
        "elected": "true",
        "reassignments": "0",
        "quotas": "true",
        "resources": "true",
    }


def test_java_admin_when_through_one_address_then_every_answer_is_of_all_brokers(several: Several) -> None:
    topic = several.brokers.create_topic("java-admin", NODES)
    assert_administered(java("admin", several.gateway.address, topic), 1)


def test_java_admin_when_through_one_address_then_log_directories_are_refused(several: Several) -> None:
    assert java("log-dirs", several.gateway.address, "none") == {"refused": "UnsupportedVersionException"}


def test_java_share_group_when_through_one_address_then_it_reads_all(several: Several) -> None:
    topic = several.brokers.create_topic("java-shared", NODES)
    found = java("share", several.gateway.address, topic)
    assert found == {"values": str(VALUES), "state": "Empty", "offsets": "3"}


def test_java_consumer_group_of_kip_848_when_through_one_address_then_it_reads_all(several: Several) -> None:
    topic = several.brokers.create_topic("java-group", NODES)
    found = java("group", several.gateway.address, topic)
    assert found == {"values": str(VALUES), "type": "Consumer"}


def test_java_transactions_when_through_one_address_then_only_committed_records_are_read(
    several: Several,
) -> None:
    topic = several.brokers.create_topic("java-transactions", NODES)
    found = java("transactions", several.gateway.address, topic)
    assert found == {"committed": "12", "aborted": "0", "offset": "7", "listed": "4", "described": "4"}


def test_java_clients_when_each_broker_has_a_port_then_each_port_is_of_one_broker(
    several: Several, per_broker: EndpointProcess, request: pytest.FixtureRequest
) -> None:
    workers = request.node.callspec.params["per_broker"]
    topic = several.brokers.create_topic(f"java-ports-{workers}", NODES)

    assert_administered(java("admin", per_broker.address, topic), PORTS)

    found = java("log-dirs", per_broker.address, topic)
    assert found == {
        f"log-dirs-{node}": f"[{broker.log_dir}]" for node, broker in several.brokers.nodes.items()
    }


def test_java_share_group_when_each_broker_has_a_port_then_it_reads_all(
    several: Several, per_broker: EndpointProcess, request: pytest.FixtureRequest
) -> None:
    workers = request.node.callspec.params["per_broker"]
    topic = several.brokers.create_topic(f"java-shared-ports-{workers}", NODES)
    found = java("share", per_broker.address, topic)
    assert found == {"values": str(VALUES), "state": "Empty", "offsets": "3"}
