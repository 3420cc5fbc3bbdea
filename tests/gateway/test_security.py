"""TLS and SASL end at the gateway, which has an identity of its own at the cluster, or one for each user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

from broker.broker import Broker
from broker.secured import secured_broker
from clients.install import site
from clients.programs import DRIVERS
from endpoints.endpoint_process import GATEWAY
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from gateway.test_old_and_new import kcat
from server.security.certificates import Certificates, make_certificates

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("gateway-security")]

SECONDS = 60
ALICE, BOB, GATE = "alice", "bob", "gate"
# At the cluster, and at the gateway.
PASSWORDS = {ALICE: "wonderland-up", BOB: "builder-up", GATE: "keeper-up"}
OWN = {ALICE: "rabbit hole=1,2", BOB: "trowel"}
SHARED = "shared"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway-security")


@pytest.fixture(scope="module")
def certificates(folder: Path) -> Certificates:
    return make_certificates(folder)


@pytest.fixture(scope="module")
def secured(folder: Path, certificates: Certificates) -> Iterator[Broker]:
    """A broker that lets each user write and read one topic of their name; ANONYMOUS is for the test itself."""
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{GATE}",
        "ssl.client.auth": "none",
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": certificates.client_ca,
    }
    (folder / "broker").mkdir()
    with secured_broker(folder / "broker", certificates, PASSWORDS, config) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        for topic in (ALICE, BOB, SHARED):
            broker.create_topic(topic)
        admin.create_acls(
            [
                ACL(f"User:{name}", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern)
                for name in (ALICE, BOB)
                for pattern in (ResourcePattern(ResourceType.TOPIC, name),)
            ]
        )
        admin.close()
        yield broker


@dataclass(frozen=True)
class Files:
    """The files of a gateway. trusted: settings of a cluster with TLS whose certificate is known."""

    users: Path
    identities: Path
    trusted: str
    folder: Path

    def cluster(self, name: str, **settings: str) -> Path:
        """A file of settings of the cluster."""
        path = self.folder / f"{name}.properties"
        trusted = self.trusted if settings["security_protocol"].endswith("SSL") else ""
        path.write_text(
            trusted + "".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items())
        )
        path.chmod(0o600)
        return path


@pytest.fixture(scope="module")
def files(folder: Path, certificates: Certificates) -> Files:
    users, identities = folder / "users.ini", folder / "identities.ini"
    users.write_text("".join(f"[{name}]\npassword = {password}\n" for name, password in OWN.items()))
    identities.write_text(
        f"[{ALICE}]\npassword = {PASSWORDS[ALICE]}\nmechanism = scram-sha-256\n"
        f"[{BOB}]\nusername = {BOB}\npassword = {PASSWORDS[BOB]}\n"
    )
    for path in (users, identities):
        path.chmod(0o600)
    trusted = f"ssl.truststore.type=PEM\nssl.truststore.location={certificates.server_ca}\n"
    return Files(users, identities, trusted, folder)


Open = Callable[..., LoggedEndpoint]


@pytest.fixture
def open_gateway(secured: Broker) -> Iterator[Open]:
    """Opens a gateway to a listener of the broker, by its protocol. The gateways end with the test."""
    opened: list[LoggedEndpoint] = []

    def open_one(protocol: str, *options: object) -> LoggedEndpoint:
        port = secured.port if protocol == "PLAINTEXT" else secured.ports[protocol]
        running = LoggedEndpoint(f"kafka://127.0.0.1:{port}", *options, command=GATEWAY)  # type: ignore[arg-type]
        opened.append(running)
        running.__enter__()
        return running

    yield open_one
    for one in opened:
        one.__exit__()


def access(name: str, password: str, mechanism: str = "PLAIN", ca: Path | None = None) -> dict[str, Any]:
    """The settings of librdkafka for a user."""
    settings: dict[str, Any] = {
        "security.protocol": "SASL_PLAINTEXT" if ca is None else "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }
    return settings if ca is None else settings | {"ssl.ca.location": str(ca)}


def produce(address: str, topic: str, value: bytes, settings: dict[str, Any]) -> KafkaError | None:
    """Produce a record; returns why it failed. An authentication failure is told at once."""
    errors: list[KafkaError] = []

    def on_error(error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTHENTICATION, KafkaError._ALL_BROKERS_DOWN):
            errors.append(error)

    told = {
        "bootstrap.servers": address,
        "message.timeout.ms": SECONDS * 1000,
        "error_cb": on_error,
        "log_level": 0,
    }
    producer = Producer(told | settings)
    done: list[KafkaError | None] = []
    producer.produce(topic, value, on_delivery=lambda error, _: done.append(error))
    while not done and not errors:
        producer.poll(0.1)
    if not done:
        producer.purge()
    return done[0] if done else errors[0]


def consume(address: str, topic: str, settings: dict[str, Any], count: int) -> list[bytes]:
    """The first records of a topic."""
    told = {"bootstrap.servers": address, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer(told | settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(count, SECONDS)
    finally:
        consumer.close()
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    return [message.value() for message in messages]


def old_kafka_python(address: str, topic: str, count: int, **settings: Any) -> list[bytes]:
    """What kafka-python 1.3.5 reads of a topic, told that it speaks to 0.10: with bare SASL tokens and Fetch v2."""
    program = (
        "import sys; from old_kafka_python import import_past_init; import_past_init()\n"
        "from kafka.consumer.group import KafkaConsumer\n"
        "from kafka.structs import TopicPartition\n"
        f"consumer = KafkaConsumer(bootstrap_servers={address!r}, api_version=(0, 10), auto_offset_reset='earliest',"
        f" group_id=None, consumer_timeout_ms={SECONDS * 1000}, **{settings!r})\n"
        f"consumer.assign([TopicPartition({topic!r}, 0)])\n"
        f"print([next(consumer).value for _ in range({count})])\n"
    )
    path = f"{site('kafka-python-1.3.5')}{os.pathsep}{DRIVERS}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[bytes] = eval(done.stdout)
    return found


@pytest.mark.parametrize(
    ("protocol", "mechanism"), [("SASL_SSL", "SCRAM-SHA-512"), ("SASL_PLAINTEXT", "PLAIN")]
)
def test_own_identity_then_old_clients_without_any_use_a_secured_cluster(
    files: Files, open_gateway: Open, protocol: str, mechanism: str
) -> None:
    settings = files.cluster(
        "own",
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_plain_username=GATE,
        sasl_plain_password=PASSWORDS[GATE],
    )
    address = open_gateway(protocol, "--cluster-config-file", settings).address

    kcat(address, "0.9.0.1", "-P", "-t", SHARED, "-p", "0", records=f"{protocol}\n")

    assert f"{protocol}\n" in kcat(
        address, "0.8.2.2", "-C", "-q", "-e", "-t", SHARED, "-p", "0", "-o", "beginning"
    )


def test_clients_of_a_gateway_with_users_then_need_the_right_password(
    files: Files, certificates: Certificates, open_gateway: Open
) -> None:
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    plain = open_gateway("PLAINTEXT", "--sasl-users", files.users)
    encrypted = open_gateway("PLAINTEXT", "--sasl-users", files.users, *tls, "--workers", 2)
    for mechanism in MECHANISMS:
        for running, ca in ((plain, None), (encrypted, certificates.server_ca)):
            settings = access(ALICE, OWN[ALICE], mechanism, ca)
            assert produce(running.address, ALICE, mechanism.encode(), settings) is None
    wrong = produce(plain.address, ALICE, b"wrong", access(ALICE, "wrong"))
    assert wrong is not None
    assert wrong.code() == KafkaError._AUTHENTICATION
    assert b"wrong" not in consume(plain.address, ALICE, access(ALICE, OWN[ALICE]), 2 * len(MECHANISMS))


def test_old_kafka_python_with_bare_tokens_then_reads_what_its_user_may(
    files: Files, secured: Broker, open_gateway: Open
) -> None:
    secured.create_topic("bare")
    running = open_gateway("PLAINTEXT", "--sasl-users", files.users)
    kcat(secured.bootstrap, None, "-P", "-t", "bare", "-p", "0", records="one\ntwo\n")

    settings = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": ALICE,
    }
    read = old_kafka_python(running.address, "bare", 2, sasl_plain_password=OWN[ALICE], **settings)

    assert read == [b"one", b"two"]


def test_identity_of_each_user_then_the_cluster_tells_them_apart_and_sighup_changes_them(
    files: Files, open_gateway: Open
) -> None:
    settings = files.cluster("each", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512")
    options = ("--cluster-config-file", settings, "--cluster-identities", files.identities)
    running = open_gateway("SASL_SSL", "--sasl-users", files.users, *options)

    assert produce(running.address, ALICE, b"mine", access(ALICE, OWN[ALICE])) is None
    assert produce(running.address, BOB, b"mine", access(BOB, OWN[BOB], "SCRAM-SHA-256")) is None
    refused = produce(running.address, ALICE, b"not mine", access(BOB, OWN[BOB]))
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    before = files.identities.read_text()
    files.identities.write_text(before.replace(f"[{BOB}]", "[nobody]"))
    running.send_signal(signal.SIGHUP)
    running.event("the configuration was read again")
    refused = produce(running.address, BOB, b"no more", access(BOB, OWN[BOB]))
    files.identities.write_text(before)
    assert refused is not None
    assert refused.code() == KafkaError._AUTHENTICATION
    assert running.event("connection closed")["error"] == f"'bob' has no identity in {files.identities}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_passthrough_then_the_cluster_knows_the_client_and_a_wrong_password_is_the_clients(
    files: Files, certificates: Certificates, open_gateway: Open, mechanism: str
) -> None:
    settings = files.cluster("pass", security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    options = ("--cluster-config-file", settings, "--sasl-passthrough", "--log-level", "debug")
    running = open_gateway("SASL_SSL", *options, *tls)

    def by(name: str, password: str) -> dict[str, Any]:
        return access(name, password, ca=certificates.server_ca)

    assert produce(running.address, ALICE, b"mine", by(ALICE, PASSWORDS[ALICE])) is None
    other = produce(running.address, BOB, b"not mine", by(ALICE, PASSWORDS[ALICE]))
    assert other is not None
    assert other.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    wrong = produce(running.address, ALICE, b"wrong", by(ALICE, "a wrong one"))
    assert wrong is not None
    assert wrong.code() == KafkaError._AUTHENTICATION
    scram = produce(
        running.address, ALICE, b"scram", by(ALICE, PASSWORDS[ALICE]) | {"sasl.mechanism": "SCRAM-SHA-256"}
    )
    assert scram is not None  # only PLAIN tells a password

    command_line = Path(f"/proc/{running.pid}/cmdline").read_text()
    logged = "".join(running._lines.queue)
    for secret in (PASSWORDS[ALICE], "a wrong one"):
        assert secret not in command_line
        assert secret not in logged


def test_mutual_tls_on_both_sides_then_certificates_open_both(
    files: Files, certificates: Certificates, open_gateway: Open
) -> None:
    settings = files.cluster(
        "mutual",
        security_protocol="SSL",
        ssl_certfile=str(certificates.client),
        ssl_keyfile=str(certificates.client_key),
    )
    tls = ("--tls-cert", certificates.server, "--tls-key", certificates.server_key)
    running = open_gateway(
        "SSL", "--cluster-config-file", settings, *tls, "--tls-client-ca", certificates.client_ca
    )
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.server_ca)}
    shown = {
        "ssl.certificate.location": str(certificates.client),
        "ssl.key.location": str(certificates.client_key),
    }

    # The certificate authenticates a principal without rights: the answer is the cluster's.
    refused = produce(running.address, SHARED, b"x", trusting | shown)
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(running.address, SHARED, b"x", trusting) is not None
    assert running.event("TLS failed")["error"] == "PEER_DID_NOT_RETURN_A_CERTIFICATE"


def test_client_before_it_has_authenticated_then_gets_versions_and_nothing_else(
    files: Files, open_gateway: Open
) -> None:
    settings = files.cluster("each", security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512")
    options = ("--cluster-config-file", settings, "--cluster-identities", files.identities)
    running = open_gateway("SASL_SSL", "--sasl-users", files.users, *options)
    with RawClient((running.host, running.port)) as client:
        versions = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3)
        assert versions.error_code == 0
        assert versions.api_keys
        with pytest.raises(ConnectionError):
            client.ask(MetadataRequest(topics=None), 1)
    assert running.event("connection closed")["error"] == "Metadata before authentication"


def test_cluster_that_refuses_the_gateway_then_the_log_says_so_at_once(
    files: Files, open_gateway: Open
) -> None:
    settings = files.cluster(
        "refused",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=GATE,
        sasl_plain_password="a wrong one",
    )
    running = open_gateway("SASL_PLAINTEXT", "--cluster-config-file", settings)
    with RawClient((running.host, running.port)) as client, pytest.raises(ConnectionError):
        client.ask(MetadataRequest(topics=None), 1)
    error = running.event("connection closed")["error"]
    assert "SaslAuthenticationFailedError" in error
    assert "a wrong one" not in error


def test_cluster_that_wants_credentials_when_the_gateway_has_none_then_it_is_not_ready(
    open_gateway: Open,
) -> None:
    running = open_gateway("SASL_PLAINTEXT", "--metrics", "127.0.0.1:0")
    page = f"http://{running.event('metrics are served')['address']}/health/ready"
    with pytest.raises(HTTPError) as raised:
        urlopen(page, timeout=60)
    assert raised.value.code == 503
    assert b"the broker closed the connection" in raised.value.read()
    assert "the broker closed the connection" in running.event("the cluster does not answer yet")["error"]
