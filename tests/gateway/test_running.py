"""How a gateway runs: its health, its drain, and the topics file, which applies without a restart."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import UnknownError, UnsupportedVersionError

from endpoints.endpoint_process import GATEWAY, lasting_address
from endpoints.logged_endpoint import LoggedEndpoint
from endpoints.raw_client import RawClient
from endpoints.requests import Wanted, fetch
from gateway.test_old_and_new import kcat

if TYPE_CHECKING:
    from broker.broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SECONDS = 60
ENABLE = "message.downconversion.enable"
REFUSED = UnsupportedVersionError.errno
READ, KEPT = "the configuration was read again", "the configuration cannot be read again and stays as it was"
OLD, OLDEST, NEW = 2, 0, 11  # versions of Fetch


@contextmanager
def gateway_to(bootstrap: str, *options: object, listen: str = "127.0.0.1:0") -> Iterator[LoggedEndpoint]:
    cluster: Any = f"kafka://{bootstrap}"
    with LoggedEndpoint(cluster, *options, command=GATEWAY, listen=listen) as running:
        yield running


def fetched(running: LoggedEndpoint, topic: str, version: int = OLD) -> int:
    """The error code of a fetch."""
    with RawClient((running.host, running.port)) as client:
        (answer,) = client.ask(fetch(Wanted(topic)), version).responses
        return int(answer.partitions[0].error_code)


def asked(address: str, path: str) -> tuple[int, str]:
    """The status and the text of a page."""
    connection = HTTPConnection(address, timeout=SECONDS)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode().strip()
    connection.close()
    return response.status, text


@pytest.mark.parametrize("workers", [1, 2])
def test_topics_file_when_it_changes_then_it_applies_at_once_to_old_fetches_alone(
    broker: Broker, tmp_path: Path, workers: int
) -> None:
    topic = f"topics-file-{workers}"
    broker.create_topic(topic)
    kcat(broker.bootstrap, None, "-P", "-t", topic, "-p", "0", records="one\n")
    file = tmp_path / "topics.ini"
    file.write_text(f"[{topic}]\n{ENABLE} = false\n")

    def wait_until_read(running: LoggedEndpoint) -> None:
        waiting = {None} if workers == 1 else {None, *range(workers)}
        while waiting:
            waiting.discard(running.event(READ).get("worker"))

    with gateway_to(broker.bootstrap, "--topics-file", file, "--workers", workers) as running:
        assert {fetched(running, topic) for _ in range(3)} == {REFUSED}
        assert fetched(running, topic, OLDEST) == UnknownError.errno  # which consumers of 0.8 know
        assert fetched(running, topic, NEW) == 0
        with RawClient((running.host, running.port)) as client:  # a connection that stays open

            def code() -> int:
                (answer,) = client.ask(fetch(Wanted(topic)), OLD).responses
                return int(answer.partitions[0].error_code)

            assert code() == REFUSED
            file.write_text(f"[{topic}]\n{ENABLE} = true\n")  # no signal: the file is watched
            wait_until_read(running)
            assert code() == 0
        assert {fetched(running, topic) for _ in range(3)} == {0}

        file.write_text("[orders]\nretention.ms = 1\n")
        assert running.event(KEPT)["error"] == (
            f"{file}, line 2: retention.ms has no effect here: expected {ENABLE}"
        )
        assert fetched(running, topic) == 0

        file.write_text(f"[{topic}]\n{ENABLE} = false\n")
        running.send_signal(signal.SIGHUP)
        wait_until_read(running)
        # The file is watched, too, so an event may be of an earlier reading.
        while {fetched(running, topic) for _ in range(3)} != {REFUSED}:
            pass


def test_topic_of_an_older_cluster_when_it_is_not_to_be_converted_then_is_refused(
    broker_3: Broker, tmp_path: Path
) -> None:
    for name, value in (("says-no", "false"), ("says-nothing", None)):
        broker_3.create_topic(name, config={} if value is None else {ENABLE: value})
        kcat(broker_3.bootstrap, None, "-P", "-t", name, "-p", "0", records="one\n")
    file = tmp_path / "topics.ini"
    file.write_text("")
    with gateway_to(broker_3.bootstrap, "--topics-file", file) as running:
        assert fetched(running, "says-no") == REFUSED
        assert fetched(running, "says-nothing") == 0

        file.write_text(f"[says-no]\n{ENABLE} = true\n")  # the operator of the gateway has the last word
        running.event(READ)
        assert fetched(running, "says-no") == 0

        file.write_text("")
        running.event(READ)
        admin = KafkaAdminClient(bootstrap_servers=running.address)  # passes through the gateway
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, "says-no", {ENABLE: "true"})])
        admin.close()
        while fetched(running, "says-no") != 0:  # an answer of the cluster is used for some seconds
            pass


@pytest.mark.parametrize("workers", [1, 2])
def test_health_when_the_cluster_answers_then_is_ready_and_not_any_more_while_draining(
    broker: Broker, workers: int
) -> None:
    topic = f"drained-{workers}"
    broker.create_topic(topic)
    options = ("--metrics", "127.0.0.1:0", "--workers", workers, "--shutdown-timeout", 10 * SECONDS)
    with gateway_to(broker.bootstrap, *options) as running:
        address = running.event("metrics are served")["address"]
        assert asked(address, "/health/live") == (200, "live")
        assert asked(address, "/health/ready") == (200, "ready")
        with RawClient((running.host, running.port)) as client:
            client.ask(fetch(Wanted(topic)), NEW)
            request = fetch(Wanted(topic), max_wait_ms=SECONDS * 1000)
            correlation_id = client.send(request, NEW)
            passed = RawClient(
                (running.host, running.port)
            )  # whose answer tells that the fetch has gone, too
            passed.ask(fetch(Wanted(topic)), NEW)
            running.send_signal(signal.SIGTERM)
            running.event("draining")
            assert asked(address, "/health/live") == (200, "live")
            assert asked(address, "/health/ready") == (503, "draining")
            kcat(broker.bootstrap, None, "-P", "-t", topic, "-p", "0", records="one\n")
            (answer,) = client.receive(request, NEW, correlation_id).responses
            assert answer.partitions[0].error_code == 0
            assert client.is_closed_by_peer()  # not only after the client's next request, or the timeout
            passed.socket.close()
        assert running.wait() == 0


def test_health_when_no_broker_answers_then_lives_and_is_not_ready() -> None:
    with gateway_to(lasting_address(), "--metrics", "127.0.0.1:0") as running:
        address = running.event("metrics are served")["address"]
        assert asked(address, "/health/live") == (200, "live")
        status, text = asked(address, "/health/ready")
        assert status == 503
        assert "Connect call failed" in text
        assert "Connect call failed" in running.event("the cluster does not answer yet")["error"]


def test_cluster_that_answers_only_later_then_the_log_tells_when(broker: Broker) -> None:
    address = lasting_address()
    with gateway_to(address) as running:
        running.event("the cluster does not answer yet")
        with gateway_to(broker.bootstrap, listen=address):
            running.event("the cluster answers")
