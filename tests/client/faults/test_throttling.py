"""Quotas of a broker: it tells its clients to wait, and reads nothing from them meanwhile (KIP-219)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest
from kafka.structs import TopicPartition

from client.cluster import Cluster
from client.faults.numbered import PRODUCERS, Numbered, consuming, poll_up_to, producing
from kafkafmt.net import Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net-faults")]

SIZE = 10_000
COUNT = 8
BYTES_PER_SECOND = 50_000


@PRODUCERS
def test_send_when_it_is_throttled_then_each_record_arrives(
    cluster: Cluster, topic: str, client: type[Producer], guarantee: Mapping[str, Any]
) -> None:
    cluster.set_quota(topic, "producer_byte_rate", BYTES_PER_SECOND)
    throttled = cluster.tap.throttled[ProduceRequest.API_KEY]
    options = {"batch_size": 0, "client_id": topic, **guarantee}
    with producing(client, cluster.bootstrap, **options) as producer:
        sent = Numbered(producer, topic, size=SIZE)
        sent.send(COUNT)
        sent.flush()
    sent.assert_arrived(cluster.batches(topic), guarantee)
    assert cluster.tap.throttled[ProduceRequest.API_KEY] > throttled


def test_poll_when_it_is_throttled_then_no_batch_is_lost_or_repeated(cluster: Cluster, topic: str) -> None:
    with producing(Producer, cluster.bootstrap, batch_size=0) as producer:
        Numbered(producer, topic, size=SIZE).send(COUNT)
    cluster.set_quota(topic, "consumer_byte_rate", BYTES_PER_SECOND)
    throttled = cluster.tap.throttled[FetchRequest.API_KEY]
    with consuming(cluster.bootstrap, client_id=topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        assert poll_up_to(consumer, COUNT) == list(range(COUNT))
    assert cluster.tap.throttled[FetchRequest.API_KEY] > throttled
