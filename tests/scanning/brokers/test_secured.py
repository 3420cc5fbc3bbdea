"""Scans of a cluster over TLS and SASL, and what they say if it cannot be reached."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import kafkafmt as kf
from broker.batches import RECORDS, send
from broker.broker import HOST, Broker
from broker.secured import secured_broker
from kafkafmt.scanning.brokers.errors import BrokerError
from scanning.brokers.topics import GIVES_UP_SECONDS
from server.security.certificates import Certificates, make_certificates

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("scan-security")]

TOPIC = "scan-secured"
USER, PASSWORD = "alice", "wonderland-up"
SASL = {"sasl.plain.username": USER, "sasl.plain.password": PASSWORD}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("secured")
    config = {"ssl.client.auth": "none"}
    with secured_broker(folder, certificates, {USER: PASSWORD}, config) as broker:
        broker.create_topic(TOPIC, partitions=2)
        send(broker, TOPIC, range(6), 2)
        yield broker


def settings_of(protocol: str, mechanism: str, certificates: Certificates) -> dict[str, str]:
    settings = {"security.protocol": protocol}
    if protocol.endswith("SSL"):
        settings["ssl.truststore.location"] = str(certificates.server_ca)
        settings["ssl.truststore.type"] = "PEM"
    return settings | ({"sasl.mechanism": mechanism, **SASL} if protocol.startswith("SASL") else {})


def scan(broker: Broker, protocol: str, options: Mapping[str, str]) -> kf.Scan:
    return kf.scan(f"kafka://{HOST}:{broker.ports[protocol]}/{TOPIC}", options=options)


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SSL", ""),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ],
)
def test_scan_when_the_cluster_is_secured_then_has_its_rows_also_in_another_process(
    secured: Broker, certificates: Certificates, protocol: str, mechanism: str
) -> None:
    # The first handshakes of a new broker may take long on a busy machine.
    patient = {"bootstrap.timeout.ms": "60000"}
    found = scan(secured, protocol, {**settings_of(protocol, mechanism, certificates), **patient})
    stored = kf.scan(secured.log_dir, topics=TOPIC).to_arrow().combine_chunks()
    assert stored.num_rows == 6 * RECORDS
    assert found.to_arrow().combine_chunks() == stored
    tasks = pickle.loads(pickle.dumps(found.tasks()))
    rows = pa.Table.from_batches((rows for task in tasks for rows in task.read()), found.schema)
    assert rows.combine_chunks() == stored
    assert PASSWORD not in f"{found!r} {found.tasks()!r}"


def refused(broker: Broker, protocol: str, options: Mapping[str, str]) -> str:
    """The error of a scan, which comes in time and in one line."""
    started = time.monotonic()
    with pytest.raises(BrokerError) as raised:
        scan(broker, protocol, options).ranges()
    assert time.monotonic() - started < GIVES_UP_SECONDS
    message = str(raised.value)
    assert message.startswith(f"{HOST}:{broker.ports[protocol]}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_scan_when_the_password_is_wrong_then_the_error_says_so_without_it(
    secured: Broker, certificates: Certificates, mechanism: str
) -> None:
    wrong = f"{PASSWORD}-wrong"
    settings = {**settings_of("SASL_SSL", mechanism, certificates), "sasl.plain.password": wrong}
    message = refused(secured, "SASL_SSL", settings)
    assert "Authentication failed" in message or "do not accept a user, a password" in message
    assert PASSWORD not in message


def test_scan_when_the_protocol_is_another_then_the_error_names_what_the_client_met(
    secured: Broker, certificates: Certificates
) -> None:
    tls = {"security.protocol": "SSL", "ssl.truststore.location": str(certificates.server_ca)}
    assert "andshake" in refused(secured, "SASL_PLAINTEXT", {**tls, "ssl.truststore.type": "PEM"})
    assert "(" in refused(secured, "SSL", {})  # the broker closes the connection
    assert "certificate verify failed" in refused(secured, "SSL", {"security.protocol": "SSL"})
