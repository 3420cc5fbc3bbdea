"""Connections that pass single bytes, stand still, or are half-open: one side waits for a peer that is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from kafka.structs import TopicPartition

from client.cluster import Cluster
from client.faults.numbered import (
    CLOSE_SECONDS,
    PRODUCERS,
    RETURN_SECONDS,
    Numbered,
    consuming,
    has_failed,
    poll_numbers,
    poll_up_to,
    producing,
)
from clients.network_faults import Way
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net-faults")]

REQUEST_TIMEOUT = {"request_timeout_ms": 500}  # after which a connection is given up
WIDE = 18_000  # bytes: more than a socket takes at once, in a few records


@PRODUCERS
def test_connection_when_it_passes_single_bytes_then_records_are_sent_and_fetched(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with cluster.tap.faults.trickling():
        with producing(client, cluster.bootstrap, **guarantee) as producer:
            sent = Numbered(producer, topic)
            for _ in range(3):
                sent.send()
                sent.flush()
        sent.assert_arrived(cluster.batches(topic), guarantee)
        with consuming(cluster.bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            assert poll_up_to(consumer, 3) == [0, 1, 2]


@PRODUCERS
def test_send_when_its_connection_stands_still_for_a_while_then_each_record_arrives(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    """Its buffers are full meanwhile: those of the system, and the producer's."""
    with producing(client, cluster.bootstrap, batch_size=0, **guarantee) as producer:
        sent = Numbered(producer, topic, size=WIDE)
        sent.send()
        sent.flush()
        with cluster.tap.faults.stalled():
            sent.send(200)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee)


@PRODUCERS
def test_send_when_its_connection_is_half_open_then_another_delivers_each_record(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with producing(client, cluster.bootstrap, **REQUEST_TIMEOUT, **guarantee) as producer:
        sent = Numbered(producer, topic)
        sent.send()
        sent.flush()
        cluster.tap.faults.abandon()
        sent.send(10)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee)


@PRODUCERS
def test_send_when_only_requests_still_pass_then_the_broker_stores_what_is_guaranteed(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    """It has stored the records whose responses never come, and gets them again."""
    with producing(client, cluster.bootstrap, **REQUEST_TIMEOUT, **guarantee) as producer:
        sent = Numbered(producer, topic)
        sent.send()
        sent.flush()
        with cluster.tap.faults.stalled(Way.RESPONSE):
            sent.send(10)
            cluster.wait_for_end(topic, 2)
            cluster.tap.faults.abandon()
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee)


def test_poll_when_its_connection_is_half_open_then_another_gets_what_comes(
    cluster: Cluster, topic: str
) -> None:
    with (
        producing(Producer, cluster.bootstrap, **REQUEST_TIMEOUT) as producer,
        consuming(cluster.bootstrap, **REQUEST_TIMEOUT) as consumer,
    ):
        sent = Numbered(producer, topic)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found = []
        for _ in range(2):
            sent.send(5)
            sent.flush()
            found += poll_up_to(consumer, 5)
            cluster.tap.faults.abandon()
        sent.send(5)
        sent.flush()
        found += poll_up_to(consumer, 5)
    assert found == list(range(15))


@contextmanager
def half_open(cluster: Cluster) -> Any:
    """Connections are accepted, and never answered."""
    cluster.tap.faults.abandon()
    with cluster.tap.faults.stalled():
        yield
    cluster.tap.faults.abandon()


@contextmanager
def refused(cluster: Cluster) -> Any:
    cluster.tap.refuse()
    cluster.tap.faults.abandon()
    try:
        yield
    finally:
        cluster.tap.listen()


AWAY = pytest.mark.parametrize("away", [half_open, refused], ids=["half-open", "refused"])


@PRODUCERS
@AWAY
def test_producer_close_when_nothing_answers_then_returns_in_time_and_no_future_is_left(
    cluster: Cluster,
    topic: str,
    client: type[Producer],
    guarantee: Mapping[str, Any],
    away: Callable[[Cluster], AbstractContextManager[None]],
) -> None:
    producer = client(bootstrap_servers=cluster.bootstrap, linger_ms=0, **REQUEST_TIMEOUT, **guarantee)
    sent = Numbered(producer, topic)
    sent.send()
    sent.flush()
    with away(cluster):
        lost = sent.send(7)
        begun = time.monotonic()
        with pytest.raises(KafkaTimeoutError, match="not delivered: 7 record"):
            producer.close(CLOSE_SECONDS)
        assert time.monotonic() - begun < RETURN_SECONDS
        assert all(has_failed(future) for future in lost)


@AWAY
def test_consumer_when_nothing_answers_then_poll_and_close_return_in_time(
    cluster: Cluster, topic: str, away: Callable[[Cluster], AbstractContextManager[None]]
) -> None:
    with producing(Producer, cluster.bootstrap, batch_size=0) as producer:
        Numbered(producer, topic).send(2)
    with consuming(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert poll_up_to(consumer, 1) == [0]
        with away(cluster):
            begun = time.monotonic()
            while poll_numbers(consumer, 50):
                pass  # what was fetched before
            consumer.close(autocommit=False, timeout_ms=CLOSE_SECONDS * 1000)
            assert time.monotonic() - begun < RETURN_SECONDS
