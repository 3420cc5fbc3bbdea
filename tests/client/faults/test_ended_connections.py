"""Connections that end at any byte of a request or of its response."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest
from kafka.structs import TopicPartition

from client.cluster import Cluster, named_after
from client.faults.numbered import (
    PRODUCERS,
    Numbered,
    consuming,
    poll_numbers,
    poll_up_to,
    producing,
)
from client.raw_reading import READ_SECONDS
from client.sending import IDEMPOTENT
from clients.network_faults import Cut, Way
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.xdist_group("net-faults")]

WAYS = pytest.mark.parametrize("way", list(Way), ids=["request", "response"])
SAMPLED = 13  # bytes from one cut to the next, where others are cut at each
LARGE = 300_000
BORDERS = 6
IN_FLIGHT = 5
RECORDS = 500  # more than a walk takes


def walk(cluster: Cluster, request: Any, way: Way, step: int = 1) -> Iterator[Cut]:
    """Cut the next frame before its first byte, one after that behind it, and so on, up to a whole frame.

    One in four ends with FIN, the others with RST.
    """
    for size in count(0, step):
        cut = cluster.tap.faults.cut(request, way, size, resets=size // step % 4 != 3)
        yield cut
        assert cut.is_done
        if cut.passes_frame:
            return


def walked(client: type[Producer], guarantee: Mapping[str, Any]) -> int:
    """The step: one producer is cut at each byte, the others share all that counts with it."""
    return 1 if client is Producer and guarantee is IDEMPOTENT else SAMPLED


@PRODUCERS
@WAYS
def test_send_when_its_connection_ends_at_any_byte_then_each_record_arrives(
    cluster: Cluster, short_topic: str, client: type[Producer], guarantee: Mapping[str, Any], way: Way
) -> None:
    with producing(client, cluster.bootstrap, **guarantee) as producer:
        sent = Numbered(producer, short_topic)
        sent.send()
        sent.flush()
        for _ in walk(cluster, ProduceRequest, way, walked(client, guarantee)):
            sent.send()
            sent.flush()
    sent.assert_arrived(cluster.batches(short_topic), guarantee)


@WAYS
def test_poll_when_its_connection_ends_at_any_byte_then_no_batch_is_lost_or_repeated(
    cluster: Cluster, short_topic: str, way: Way
) -> None:
    with producing(Producer, cluster.bootstrap, batch_size=0) as producer:
        Numbered(producer, short_topic).send(RECORDS)
    with consuming(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(short_topic, 0)])
        consumer.seek_to_beginning()
        found = poll_up_to(consumer, 1)
        for cut in walk(cluster, FetchRequest, way):
            deadline = time.monotonic() + READ_SECONDS
            while not cut.is_done:
                assert time.monotonic() < deadline
                found += poll_numbers(consumer)
            found += poll_up_to(consumer, 1)
        assert len(found) < RECORDS
    assert found == list(range(len(found)))


@PRODUCERS
def test_send_when_one_of_several_requests_in_flight_is_cut_then_the_order_stays(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with producing(client, cluster.bootstrap, batch_size=0, **guarantee) as producer:
        sent = Numbered(producer, topic)
        sent.send()
        sent.flush()
        for way in Way:
            for skip in range(IN_FLIGHT):
                with cluster.tap.faults.stalled(Way.RESPONSE):
                    sent.send(2 * IN_FLIGHT)
                    cut = cluster.tap.faults.cut(ProduceRequest, way, 20, skip=skip)
                sent.flush()
                assert cut.is_done
    sent.assert_arrived(cluster.batches(topic), guarantee)


@WAYS
def test_large_batch_when_its_connection_ends_within_then_it_is_sent_and_fetched_once(
    cluster: Cluster, request: pytest.FixtureRequest, way: Way
) -> None:
    config = {"max.message.bytes": 2 * LARGE}
    topic = cluster.create_topic(named_after(request.node.name), config=config)
    cuts = cluster.tap.faults
    with producing(Producer, cluster.bootstrap) as producer:
        sent = Numbered(producer, topic, size=LARGE)
        probe = cuts.cut(ProduceRequest, way, 2 * LARGE)
        sent.send()
        sent.flush()
        for size in positions_in(probe.frame_size):
            cut = cuts.cut(ProduceRequest, way, size)
            sent.send()
            sent.flush()
            assert cut.is_done
        sent.send(BORDERS)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), IDEMPOTENT)
    end = len(sent.futures)
    with consuming(cluster.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        probe = cuts.cut(FetchRequest, way, 2 * LARGE)
        found = poll_up_to(consumer, 1)
        for size in positions_in(probe.frame_size):
            cut = cuts.cut(FetchRequest, way, size)
            found += poll_up_to(consumer, 1)  # which may have arrived before
            deadline = time.monotonic() + READ_SECONDS
            while not cut.is_done:
                assert time.monotonic() < deadline
                found += poll_numbers(consumer, 20)
        found += poll_up_to(consumer, end - len(found))
    assert found == list(range(end))


def positions_in(frame_size: int) -> list[int]:
    """Some, with the borders of what systems and programs read at once."""
    borders = [1, 4096, 65_536, 131_073, frame_size // 2, frame_size - 1]
    assert len(borders) == BORDERS
    return [size for size in borders if size < frame_size]
