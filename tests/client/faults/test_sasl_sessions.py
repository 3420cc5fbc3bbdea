"""Sessions of SASL that end: a broker closes the connection, unless its client authenticates again before (KIP-368)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.protocol.sasl import SaslHandshakeRequest
from kafka.structs import TopicPartition

from client.cluster import named_after
from client.faults.conftest import PASSWORD, USER, Three
from client.faults.numbered import (
    DELIVERY_SECONDS,
    PRODUCERS,
    Numbered,
    consuming,
    offset_of,
    poll_up_to,
    producing,
)
from clients.tap import Tap
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.full, pytest.mark.xdist_group("three")]

LOGIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_plain_username": USER,
    "sasl_plain_password": PASSWORD,
}
BRIEF = {**LOGIN, "sasl_mechanism": "PLAIN"}
RENEWED = {**LOGIN, "sasl_mechanism": "SCRAM-SHA-256"}
SESSIONS = 5
UNHURRIED = {"linger_ms": 20}  # so that a session has few requests


@pytest.fixture
def topic(three: Three, request: pytest.FixtureRequest) -> str:
    """A topic that the broker of the listener has alone."""
    return three.brokers.create_topic(named_after(request.node.name), [1], is_replicated=False)


def handshakes(tap: Tap) -> int:
    """How often clients authenticated, or did so again."""
    return tap.requests[SaslHandshakeRequest.API_KEY]


@PRODUCERS
def test_send_when_sessions_end_then_each_record_arrives(
    three: Three, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with producing(client, three.sasl.bootstrap, **BRIEF, **UNHURRIED, **guarantee) as producer:
        sent = Numbered(producer, topic)
        wanted = handshakes(three.sasl) + SESSIONS
        deadline = time.monotonic() + DELIVERY_SECONDS
        while handshakes(three.sasl) < wanted:
            assert time.monotonic() < deadline
            offset_of(sent.send(5)[-1])
    sent.assert_arrived(three.brokers.batches(topic), guarantee)


def test_poll_when_sessions_end_then_no_batch_is_lost_or_repeated(three: Three, topic: str) -> None:
    with (
        producing(Producer, three.brokers.bootstrap, **UNHURRIED) as producer,
        consuming(three.sasl.bootstrap, **BRIEF) as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        sent, found = Numbered(producer, topic), list[int]()
        wanted = handshakes(three.sasl) + SESSIONS
        deadline = time.monotonic() + DELIVERY_SECONDS
        while handshakes(three.sasl) < wanted:
            assert time.monotonic() < deadline
            sent.send(5)
            found += poll_up_to(consumer, 5)
    assert found == list(range(len(sent.futures)))


@pytest.mark.parametrize("renewed", ["producer", "consumer"])
def test_client_when_its_session_is_about_to_end_then_authenticates_again_on_the_same_connection(
    three: Three, topic: str, renewed: str
) -> None:
    """Each connection begins with a handshake, and only one that stays has more."""
    tap = three.sasl
    secured, plain = {"bootstrap": tap.bootstrap, **RENEWED}, {"bootstrap": three.brokers.bootstrap}
    is_producer = renewed == "producer"
    more = handshakes(tap) - tap.accepted
    with (
        producing(Producer, **UNHURRIED, **(secured if is_producer else plain)) as producer,
        consuming(**(plain if is_producer else secured)) as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        sent, found = Numbered(producer, topic), list[int]()
        deadline = time.monotonic() + DELIVERY_SECONDS
        while handshakes(tap) - tap.accepted <= more:
            assert time.monotonic() < deadline
            sent.send(5)
            found += poll_up_to(consumer, 5)
    assert found == list(range(len(sent.futures)))
