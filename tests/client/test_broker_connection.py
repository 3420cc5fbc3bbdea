"""Connections of our own to a real broker: TLS, SASL, frames of all sizes, and how they end."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import kafka.errors
import pytest
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

import kafkafmt as kf
from _kafkafmt.client.fetch import FetchEncoder, FetchSession, decode_fetch_response
from _kafkafmt.client.messages import RequestHeader
from broker.broker import HOST, NODE_ID, Broker
from broker.secured import MECHANISMS, secured_broker
from freezing import frozen
from kafkafmt import TopicPartition
from kafkafmt.client.accumulator import ProducerBatch
from kafkafmt.client.broker_connection import BrokerConnection
from kafkafmt.client.broker_connections import BrokerConnections
from kafkafmt.client.control_plane import ControlPlane
from kafkafmt.client.io_thread import IoThread
from kafkafmt.client.produce_requests import ProducedPartition, ProduceRequests
from kafkafmt.client.tls import ssl_context
from kafkafmt.log import LogDirectory
from kafkafmt.net import Consumer, Producer
from server.security.certificates import Certificates, make_certificates

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("connections")]

SECONDS = 60
USER, PASSWORD = "user", "secret"
TOPIC = TopicPartition("connections", 0)
FETCH_VERSION, FETCH_BYTES = 12, 4_000_000
LARGE = 1_500_000
# Sessions of SASL end after so many milliseconds, unless the client authenticates again. It begins with that when at
# least 5 % are left: 200 ms, because a busy machine may send the request late.
SESSION_MS = 4000


class Unsecured(AbstractTokenProvider):  # type: ignore[misc]
    """Makes tokens that Kafka's default handler takes, which is for tests."""

    def token(self) -> str:
        now = int(time.time())  # a broker's clock has milliseconds: a part of one would be in the future
        claims = {"sub": USER, "iat": now, "exp": now + 3600}
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
        return "".join(base64.urlsafe_b64encode(part).decode().rstrip("=") + "." for part in parts)


class FailingOnce(Unsecured):
    """Fails once if it has to."""

    has_to_fail = False

    def token(self) -> str:
        if self.has_to_fail:
            self.has_to_fail = False
            raise RuntimeError("the provider does not answer")
        return super().token()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a listener of each security protocol."""
    config = {
        "message.max.bytes": 2 * LARGE,
        "listener.name.sasl_plaintext.connections.max.reauth.ms": SESSION_MS,
        "listener.name.sasl_ssl.connections.max.reauth.ms": SESSION_MS,
    }
    folder = tmp_path_factory.mktemp("secured")
    with secured_broker(folder, certificates, {USER: PASSWORD}, config) as broker:
        broker.create_topic(TOPIC.topic)
        yield broker


class Client:
    """Connections of our own to a broker, for the thread of a test."""

    def __init__(self, port: int, **options: Any) -> None:
        config = {**KafkaProducer.DEFAULT_CONFIG, "bootstrap_servers": f"{HOST}:{port}", **options}
        self.requests = ProduceRequests(client_id="test", transactional_id=None, acks=-1, timeout_ms=30_000)
        self.changes: list[tuple[bool, bool]] = []  # ready, closed
        self._has_changed = threading.Event()
        self.control = ControlPlane(config)
        self.control.start(SECONDS * 1000)
        self.io = IoThread("test")
        self.connections = BrokerConnections(self.io, self.control, self._note)
        self.io.start()

    def _note(self, connection: BrokerConnection | None) -> None:
        if connection is not None:
            self.changes.append((connection.is_ready, connection.is_closed))
        self._has_changed.set()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for what a change of a connection brings about."""
        deadline = time.monotonic() + SECONDS
        while True:
            self._has_changed.clear()
            if holds():
                return
            assert self._has_changed.wait(deadline - time.monotonic()), self.changes

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in the I/O thread; returns its result."""
        done = threading.Event()
        results: list[Any] = []

        def call() -> None:
            results.append(function(*args))
            done.set()

        self.io.call_soon(call)
        assert done.wait(SECONDS)
        return results[0]

    def connect(self) -> BrokerConnection:
        """Connect, once an attempt is due."""
        connection: BrokerConnection | None = None

        def is_open() -> bool:
            nonlocal connection
            connection = connection or self.run(self.connections.get, NODE_ID)
            return connection is not None and (connection.is_ready or connection.is_closed)

        self.wait_until(is_open)
        assert connection is not None
        return connection

    def send(self, connection: BrokerConnection, pieces: Callable[[int], list[Any]]) -> Answer:
        """pieces: makes a request with that correlation id."""
        answer = Answer()

        def call() -> bool:
            if not connection.can_send:
                return False
            correlation_id = connection.next_correlation_id()
            connection.send(pieces(correlation_id), correlation_id, answer.set)
            return True

        self.wait_until(lambda: bool(self.run(call)))
        return answer

    def produce(self, connection: BrokerConnection, data: bytes) -> ProducedPartition:
        assert connection.versions is not None
        version = self.requests.version_for(connection.versions)
        answer = self.send(connection, lambda number: self.encode(data, version, number))
        _, produced = self.requests.decode(answer.get(), version)
        (partition,) = produced
        return partition

    def encode(self, data: bytes, version: int, correlation_id: int) -> list[Any]:
        batch = ProducerBatch(TOPIC, data, count=1, created_ms=0)
        return self.requests.encode([batch], version, correlation_id)[1]

    def fetch(self, connection: BrokerConnection, offset: int) -> bytes:
        """The batches from an offset on, in one response."""
        encoder = FetchEncoder(500, 1, FETCH_BYTES, 0, b"")

        def request(correlation_id: int) -> list[Any]:
            header = RequestHeader(FETCH_VERSION, correlation_id, b"test")
            rows = [(0, TOPIC.partition, offset, -1, -1, FETCH_BYTES)]
            return [encoder.encode(header, FetchSession(0, -1), [TOPIC.topic.encode()], rows, [])]

        response = self.send(connection, request).get()
        (partition,) = decode_fetch_response(response, FETCH_VERSION).partitions
        start = int(partition["records_position"])
        return bytes(response[start : start + int(partition["records_size"])])

    def be_patient(self) -> None:
        """Let connections that are made from now on wait long for a response."""
        self.control.config["request_timeout_ms"] = SECONDS * 1000

    def close(self) -> None:
        self.run(self.connections.close)
        self.io.stop(SECONDS)
        self.control.close()


class Answer:
    """The response to a request, or the error."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self.response: memoryview | None = None
        self.error: Exception | None = None

    def set(self, response: memoryview | None, error: Exception | None) -> None:
        self.response, self.error = response, error
        self._done.set()

    def get(self) -> memoryview:
        assert self._done.wait(SECONDS)
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response


@pytest.fixture
def open_client(secured: Broker) -> Iterator[Callable[..., Client]]:
    """Opens clients of a listener, which are closed after the test."""
    opened: list[Client] = []

    def open_one(protocol: str = "PLAINTEXT", **options: Any) -> Client:
        port = secured.port if protocol == "PLAINTEXT" else secured.ports[protocol]
        opened.append(Client(port, security_protocol=protocol, **options))
        return opened[-1]

    yield open_one
    for client in opened:
        client.close()


def batch_of(value: bytes) -> bytes:
    builder = kf.RecordBatchBuilder()
    builder.append(0, None, value)
    return bytes(builder.build())


SECURITY: dict[str, dict[str, Any]] = {
    "plaintext": {"protocol": "PLAINTEXT"},
    "tls": {"protocol": "SSL"},
    **{
        f"{protocol.lower()}-{mechanism.lower()}": {"protocol": protocol, "sasl_mechanism": mechanism}
        for protocol in ("SASL_PLAINTEXT", "SASL_SSL")
        for mechanism in MECHANISMS
    },
}


def options_of(name: str, certificates: Certificates, password: str = PASSWORD) -> dict[str, Any]:
    options = dict(SECURITY[name])
    if options["protocol"].endswith("SSL"):
        options["ssl_cafile"] = str(certificates.server_ca)
    if options.get("sasl_mechanism") == "OAUTHBEARER":
        options["sasl_oauth_token_provider"] = Unsecured()
    elif "sasl_mechanism" in options:
        options |= {"sasl_plain_username": USER, "sasl_plain_password": password}
    return options


@pytest.mark.parametrize("security", SECURITY)
def test_frames_of_all_sizes_arrive_with_each_security_protocol(
    open_client: Callable[..., Client], certificates: Certificates, security: str
) -> None:
    client = open_client(**options_of(security, certificates))
    connection = client.connect()
    assert connection.error is None
    values = [b"small", bytes(range(256)) * (LARGE // 256), b"", b"x" * 40_000]
    offsets = [client.produce(connection, batch_of(value)).base_offset for value in values]
    assert offsets == list(range(offsets[0], offsets[0] + 4))
    fetched = client.fetch(connection, offsets[0])
    found = [record.value for record in kf.MemoryRecords(fetched).records()]
    assert found[: len(values)] == values


@pytest.mark.parametrize("security", ["sasl_plaintext-plain", "sasl_ssl-scram-sha-256"])
def test_a_session_is_renewed_before_it_ends_while_requests_are_sent(
    open_client: Callable[..., Client], certificates: Certificates, security: str
) -> None:
    """The broker ends a connection that sends a request after the session's end (KIP-368)."""
    client = open_client(**options_of(security, certificates))
    connection = client.connect()
    began, count = time.monotonic(), 0
    data = batch_of(b"value")
    while client.changes.count((True, False)) < 3:  # connected, and renewed twice
        assert time.monotonic() < began + SECONDS
        assert client.produce(connection, data).error_code == 0
        count += 1
    assert time.monotonic() - began > SESSION_MS / 1000
    assert not connection.is_closed
    assert count > 3


def test_a_session_that_is_not_renewed_in_time_ends_the_connection_and_says_so(
    secured: Broker, open_client: Callable[..., Client], certificates: Certificates
) -> None:
    client = open_client(request_timeout_ms=500, **options_of("sasl_plaintext-plain", certificates))
    connection = client.connect()
    with frozen(secured.pid):
        client.wait_until(lambda: connection.is_closed)
    assert isinstance(connection.error, kafka.errors.RequestTimedOutError)
    assert "not authenticated again within 0.5 s" in str(connection.error)


def test_init_transactions_when_the_token_provider_fails_once_then_is_sent_again(secured: Broker) -> None:
    provider = FailingOnce()
    with Producer(
        bootstrap_servers=f"{HOST}:{secured.ports['SASL_PLAINTEXT']}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,
        transactional_id="tokens",
    ) as producer:
        provider.has_to_fail = True
        producer.init_transactions(SECONDS)
    assert not provider.has_to_fail


def test_a_wrong_password_ends_the_connection_with_kafka_pythons_error(
    secured: Broker, certificates: Certificates
) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", **options_of("sasl_plaintext-plain", certificates)}
    del options["protocol"]
    client = Client(secured.ports["SASL_PLAINTEXT"], **options)
    try:
        client.control.config["sasl_plain_password"] = "wrong"  # the control plane is connected
        connection = client.connect()
        assert isinstance(connection.error, kafka.errors.SaslAuthenticationFailedError)
    finally:
        client.close()


@pytest.mark.parametrize("client", [Producer, Consumer])
def test_a_wrong_password_is_an_error_of_the_client_with_the_text_of_the_broker(
    secured: Broker, client: Any
) -> None:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": USER,
        "sasl_plain_password": "wrong",
    }
    with pytest.raises(kafka.errors.SaslAuthenticationFailedError, match="Invalid username or password"):
        client(bootstrap_servers=f"{HOST}:{secured.ports['SASL_PLAINTEXT']}", **options)


def test_a_certificate_of_another_authority_is_refused(secured: Broker, certificates: Certificates) -> None:
    options = {"security_protocol": "SSL", "ssl_cafile": str(certificates.server_ca)}
    client = Client(secured.ports["SSL"], **options)
    try:
        distrusting = {
            **client.control.config,
            "ssl_context": None,
            "ssl_cafile": str(certificates.client_ca),
        }
        client.control.config["ssl_context"] = ssl_context(distrusting)
        connection = client.connect()
        assert isinstance(connection.error, kafka.errors.KafkaConnectionError)
        assert "certificate verify failed" in str(connection.error)
    finally:
        client.close()


def test_requests_are_answered_in_order_and_no_more_are_sent_than_may_be_in_flight(
    open_client: Callable[..., Client],
) -> None:
    client = open_client()
    connection = client.connect()
    assert connection.versions is not None
    version = client.requests.version_for(connection.versions)
    order: list[int] = []

    def send_five() -> bool:
        for number in range(5):
            correlation_id = connection.next_correlation_id()
            pieces = client.encode(batch_of(b"%d" % number), version, correlation_id)
            connection.send(pieces, correlation_id, partial(note, number))
        return connection.can_send

    done = threading.Event()

    def note(number: int, response: memoryview | None, error: Exception | None) -> None:
        order.append(number)
        if len(order) == 5:
            done.set()

    assert not client.run(send_five)
    assert done.wait(SECONDS)
    assert order == list(range(5))
    assert client.run(lambda: connection.can_send)


def test_a_connection_that_is_throttled_takes_no_request_until_the_time_is_over_and_then_says_so(
    open_client: Callable[..., Client],
) -> None:
    client = open_client()
    connection = client.connect()
    began = time.monotonic()

    def throttle() -> bool:
        for milliseconds in (400, 100, 0):  # the longest counts
            connection.throttle(milliseconds)
        client.changes.clear()
        return connection.can_send

    assert not client.run(throttle)
    client.wait_until(lambda: bool(client.changes))
    assert time.monotonic() - began >= 0.4
    assert client.run(lambda: connection.can_send)


def test_a_connection_has_the_buffers_that_the_options_say(open_client: Callable[..., Client]) -> None:
    control = open_client(receive_buffer_bytes=12_000, send_buffer_bytes=14_000).control
    with asyncio.run(control.open_socket(*control.address_of(NODE_ID))) as opened:  # type: ignore[misc]
        sizes = [opened.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    assert sizes in ([12_000, 14_000], [24_000, 28_000])  # Linux doubles them


def test_a_request_without_an_answer_is_sent_and_arrives(
    secured: Broker, open_client: Callable[..., Client]
) -> None:
    client = open_client()
    connection = client.connect()
    assert connection.versions is not None
    before = client.produce(connection, batch_of(b"before")).base_offset
    unanswered = ProduceRequests(client_id="test", transactional_id=None, acks=0, timeout_ms=30_000)
    version = unanswered.version_for(connection.versions)
    batch = ProducerBatch(TOPIC, batch_of(bytes(LARGE)), count=1, created_ms=0)
    sent = Answer()

    def send() -> None:
        _, pieces = unanswered.encode([batch], version, connection.next_correlation_id())
        connection.send_unanswered(pieces, lambda error: sent.set(memoryview(b""), error))

    client.run(send)
    assert sent.get() == b""
    assert client.produce(connection, batch_of(b"after")).base_offset == before + 2
    assert LogDirectory(secured.log_dir).partition(TOPIC).end_offset == before + 3


def test_a_request_without_an_answer_that_is_not_sent_in_time_ends_the_connection(
    secured: Broker, open_client: Callable[..., Client]
) -> None:
    """The broker is gone, its address takes no more bytes, and no response is awaited."""
    client = open_client(request_timeout_ms=500)
    connection = client.connect()
    unanswered = ProduceRequests(client_id="test", transactional_id=None, acks=0, timeout_ms=30_000)
    batch = ProducerBatch(TOPIC, batch_of(bytes(LARGE)), count=1, created_ms=0)
    waiting: list[Answer] = []

    def fill() -> None:
        while connection.can_send:
            answer = Answer()
            _, pieces = unanswered.encode([batch], 9, connection.next_correlation_id())
            waiting.append(answer)
            connection.send_unanswered(pieces, partial(answer.set, memoryview(b"")))

    with frozen(secured.pid):
        client.run(fill)
        with pytest.raises(kafka.errors.RequestTimedOutError, match=r"not sent within 0\.5 s"):
            waiting[-1].get()
    assert connection.is_closed
    client.be_patient()
    assert client.produce(client.connect(), batch_of(b"again")).error_code == 0


def test_a_request_that_is_not_answered_in_time_ends_the_connection_and_all_requests_in_order(
    secured: Broker, open_client: Callable[..., Client]
) -> None:
    client = open_client(request_timeout_ms=500)
    connection = client.connect()
    with frozen(secured.pid):
        answers = [
            client.send(connection, lambda number: client.encode(batch_of(b"late"), 9, number))
            for _ in range(3)
        ]
        for answer in answers:
            with pytest.raises(kafka.errors.RequestTimedOutError, match=r"no response within 0\.5 s"):
                answer.get()
    assert connection.is_closed
    client.be_patient()
    assert client.produce(client.connect(), batch_of(b"again")).error_code == 0


def test_a_connection_that_is_closed_cancels_the_requests_in_flight(
    secured: Broker, open_client: Callable[..., Client]
) -> None:
    client = open_client()
    connection = client.connect()
    with frozen(secured.pid):
        answers = [
            client.send(connection, lambda number: client.encode(batch_of(b"lost"), 9, number))
            for _ in range(3)
        ]
        client.run(connection.close)
        for answer in answers:
            with pytest.raises(kafka.errors.Cancelled):
                answer.get()
    assert connection.is_closed
    assert connection.error is None
    assert not client.run(lambda: connection.can_send)
