"""Real clients over TLS and SASL: those who may read all records, and the others nothing."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer
from kafka.errors import KafkaError as PythonKafkaError
from kafka.structs import TopicPartition

from cli.logs import write_log
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.scraping import metric
from server.security.certificates import Certificates, make_certificates

pytestmark = [pytest.mark.clients, pytest.mark.slow]

RECORDS = 120
SECONDS = 60
SOON_MS = 3000
PASSWORD = "won der=land,1"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class RefusedError(Exception):
    """The client was told that it may not connect, or could not."""


@dataclass(frozen=True)
class Access:
    """How a client connects. mechanism: None without SASL; before: as to a broker of the time before
    SaslAuthenticate, which kafka-python alone can be told of; gives_up_ms: when kafka-python and kcat try no more."""

    mechanism: str | None = None
    password: str = PASSWORD
    ca: Path | None = None
    certificate: tuple[Path, Path] | None = None
    before: bool = False
    gives_up_ms: int = 30_000

    @property
    def protocol(self) -> str:
        transport = "PLAINTEXT" if self.ca is None else "SSL"
        return transport if self.mechanism is None else f"SASL_{transport}"

    def context(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(*self.certificate)
        return context


def kafka_python(served: LoggedEndpoint, access: Access) -> list[int]:
    try:
        consumer = KafkaConsumer(
            bootstrap_servers=served.address,
            security_protocol=access.protocol,
            ssl_context=access.context(),
            sasl_mechanism=access.mechanism,
            sasl_plain_username="alice" if access.mechanism else None,
            sasl_plain_password=access.password if access.mechanism else None,
            api_version=(0, 10, 2) if access.before else None,
            bootstrap_timeout_ms=access.gives_up_ms,
            auto_offset_reset="earliest",
        )
        consumer.assign([TopicPartition("orders", 0)])
        offsets: list[int] = []
        deadline = time.monotonic() + SECONDS
        while len(offsets) < RECORDS and time.monotonic() < deadline:
            offsets += [record.offset for records in consumer.poll(500).values() for record in records]
        consumer.close()
    except PythonKafkaError as error:
        raise RefusedError(str(error)) from error
    return offsets


def librdkafka_settings(served: LoggedEndpoint, access: Access) -> dict[str, str]:
    settings = {"bootstrap.servers": served.address, "security.protocol": access.protocol}
    if access.mechanism is not None:
        settings |= {
            "sasl.mechanism": access.mechanism,
            "sasl.username": "alice",
            "sasl.password": access.password,
        }
    if access.ca is not None:
        settings["ssl.ca.location"] = str(access.ca)
    if access.certificate is not None:
        certificate, key = access.certificate
        settings |= {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
    return settings


def kcat(served: LoggedEndpoint, access: Access) -> list[int]:
    """On Debian 12 its librdkafka is of the time before 2.6.1, which says its own part of the SCRAM nonce twice."""
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not there")
    settings = [f"-X{name}={value}" for name, value in librdkafka_settings(served, access).items()]
    gives_up = ["-m", str(access.gives_up_ms // 1000)]
    command = ["kcat", "-C", "-e", *gives_up, *settings, "-t", "orders", "-p", "0", "-f", r"%o\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RefusedError(done.stderr)
    return [int(line) for line in done.stdout.splitlines()]


def confluent(served: LoggedEndpoint, access: Access) -> list[int]:
    errors: list[KafkaError] = []
    settings = {
        "group.id": "none",
        "auto.offset.reset": "earliest",
        "error_cb": errors.append,
        "log_level": 0,
    }
    consumer = Consumer(settings | librdkafka_settings(served, access))
    consumer.assign([ConfluentTopicPartition("orders", 0, 0)])
    offsets: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(offsets) < RECORDS and time.monotonic() < deadline and not errors:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            offsets.append(message.offset())
    consumer.close()
    if not offsets and errors:
        raise RefusedError(errors[0].str())
    return offsets


def aiokafka(served: LoggedEndpoint, access: Access) -> list[int]:
    async def consume() -> list[int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=served.address,
            security_protocol=access.protocol,
            ssl_context=access.context(),
            sasl_mechanism=access.mechanism or "PLAIN",
            sasl_plain_username="alice" if access.mechanism else None,
            sasl_plain_password=access.password if access.mechanism else None,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            partition = AioTopicPartition("orders", 0)
            consumer.assign([partition])
            offsets: list[int] = []
            while len(offsets) < RECORDS:
                found = await consumer.getmany(partition, timeout_ms=500)
                offsets += [record.offset for record in found.get(partition, [])]
            return offsets
        except AioKafkaError as error:
            raise RefusedError(str(error)) from error
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(consume(), SECONDS))


Client = Callable[[LoggedEndpoint, Access], list[int]]
CLIENTS: list[Client] = [kafka_python, confluent, kcat, aiokafka]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def logs(folder: Path) -> Path:
    return write_log(folder / "logs" / "orders-0").parent


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    return make_certificates(folder)


@pytest.fixture(scope="module")
def users(folder: Path) -> Path:
    path = folder / "users.ini"
    path.write_text(f"[alice]\npassword = {PASSWORD}\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def in_plain_text(logs: Path, users: Path) -> Iterator[LoggedEndpoint]:
    """Asks for SASL, without TLS."""
    with LoggedEndpoint(logs, "--sasl-users", users, "--metrics", "127.0.0.1:0") as served:
        yield served


@pytest.fixture(scope="module")
def metrics(in_plain_text: LoggedEndpoint) -> str:
    """Where the metrics of the endpoint without TLS are."""
    address: str = in_plain_text.event("metrics are served")["address"]
    return address


@pytest.fixture(scope="module")
def over_tls(logs: Path, users: Path, certificates: Certificates) -> Iterator[LoggedEndpoint]:
    """Asks for SASL, over TLS."""
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    with LoggedEndpoint(logs, "--sasl-users", users, *tls) as served:
        yield served


@pytest.fixture(scope="module")
def by_certificate(logs: Path, certificates: Certificates) -> Iterator[LoggedEndpoint]:
    """Asks for a client certificate, in two workers."""
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    with LoggedEndpoint(logs, *tls, "--tls-client-ca", certificates.client_ca, "--workers", 2) as served:
        yield served


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_when_its_password_is_right_then_reads_all_records(
    in_plain_text: LoggedEndpoint,
    over_tls: LoggedEndpoint,
    certificates: Certificates,
    client: Client,
    mechanism: str,
) -> None:
    assert client(in_plain_text, Access(mechanism)) == list(range(RECORDS))
    assert client(over_tls, Access(mechanism, ca=certificates.server_ca)) == list(range(RECORDS))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_client_of_the_time_before_sasl_authenticate_then_reads_all_records(
    in_plain_text: LoggedEndpoint, metrics: str, mechanism: str
) -> None:
    def authenticated() -> float:
        return metric(metrics, "kafkafmt_requests_total", api="SaslAuthenticate")

    before = authenticated()
    assert kafka_python(in_plain_text, Access(mechanism, before=True)) == list(range(RECORDS))
    assert metric(metrics, "kafkafmt_requests_total", api="SaslHandshake", version="0") > 0
    assert authenticated() == before


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_when_its_password_is_wrong_then_is_told_so(
    in_plain_text: LoggedEndpoint,
    metrics: str,
    client: Client,
    mechanism: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refusals() -> float:
        return metric(metrics, "kafkafmt_connections_refused_total", reason="sasl")

    before, told, gives_up_ms = refusals(), "", 1000
    deadline = time.monotonic() + SECONDS
    while f"invalid credentials for {mechanism}" not in told:  # again, where it gave up before it was told
        assert time.monotonic() < deadline, told
        with pytest.raises(RefusedError) as refused:
            client(in_plain_text, Access(mechanism, password="wrong", gives_up_ms=gives_up_ms))
        gives_up_ms *= 2
        # Where they try all brokers and give up, the Python clients have it in their logs.
        told = f"{refused.value} {caplog.text}"
    while refusals() == before:
        assert time.monotonic() < deadline


@pytest.mark.parametrize("client", CLIENTS)
def test_client_certificate_when_asked_for_then_only_clients_that_have_it_read(
    by_certificate: LoggedEndpoint, certificates: Certificates, client: Client
) -> None:
    known = Access(ca=certificates.server_ca, certificate=(certificates.client, certificates.client_key))
    assert client(by_certificate, known) == list(range(RECORDS))
    with pytest.raises(RefusedError):
        client(by_certificate, Access(ca=certificates.server_ca, gives_up_ms=SOON_MS))
