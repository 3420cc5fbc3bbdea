"""A topic that is deleted and created again: it has the same name, another id, and no records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.structs import TopicPartition

from client.cluster import Cluster
from client.faults.numbered import (
    PRODUCERS,
    Numbered,
    consuming,
    poll_numbers,
    poll_up_to,
    producing,
)
from client.raw_reading import READ_SECONDS
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net-faults")]


@PRODUCERS
def test_send_when_its_topic_was_created_again_then_the_records_that_follow_are_in_the_new_one(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with producing(client, cluster.bootstrap, **guarantee) as producer:
        sent = Numbered(producer, topic)
        sent.send(5)
        sent.flush()
        cluster.delete_topic(topic)
        cluster.create_topic(topic)
        # One alone: a broker has no numbers of the producer yet, and would take the second request, if it came first.
        sent.send()
        sent.flush()
        sent.send(9)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee, first=5)


@PRODUCERS
def test_send_when_its_topic_is_away_then_the_record_waits_for_the_new_one(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    with producing(client, cluster.bootstrap, **guarantee) as producer:
        sent = Numbered(producer, topic)
        sent.send(5)
        sent.flush()
        cluster.delete_topic(topic)
        refused = len(cluster.tap.produces)
        sent.send()
        cluster.tap.wait_until(lambda: any(p.error_code for p in cluster.tap.produces[refused:]))
        cluster.create_topic(topic)
        sent.flush()
        sent.send(5)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee, first=5)


def test_poll_when_its_topic_was_created_again_then_a_consumer_of_the_old_id_reads_nothing_of_it(
    cluster: Cluster, topic: str
) -> None:
    """Although its position exists in the new one, too."""
    with (
        producing(Producer, cluster.bootstrap) as producer,
        consuming(cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        sent = Numbered(producer, topic)
        consumer.assign([TopicPartition(topic, 0)])
        consumer.pin_topic_id(topic, cluster.topic_id(topic))
        sent.send(5)
        sent.flush()
        assert poll_up_to(consumer, 5) == [0, 1, 2, 3, 4]
        assert consumer.take_unknown_topics() == set()
        cluster.delete_topic(topic)
        cluster.create_topic(topic)
        sent.send(8)
        sent.flush()
        deadline = time.monotonic() + READ_SECONDS
        while not consumer.take_unknown_topics():
            assert time.monotonic() < deadline
            assert poll_numbers(consumer) == []
        consumer.pin_topic_id(topic, cluster.topic_id(topic))
        consumer.seek_to_beginning()
        assert poll_up_to(consumer, 8) == list(range(5, 13))
