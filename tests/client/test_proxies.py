"""All connections of a client go through the proxy that its options name, those for records, too."""

from __future__ import annotations

import pytest
from kafka import TopicPartition

from client.cluster import Cluster
from client.sending import ANSWER_SECONDS
from clients.socks_proxy import SocksProxy
from kafkafmt.net import Consumer, Producer

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("net")]


@pytest.mark.parametrize("option", ["proxy_url", "socks5_proxy"])
def test_clients_when_a_proxy_is_named_then_all_connections_go_through_it(
    cluster: Cluster, topic: str, option: str
) -> None:
    before = cluster.tap.accepted
    with SocksProxy() as proxy:
        options = {"bootstrap_servers": cluster.bootstrap, option: proxy.url}
        with Producer(**options) as producer:
            producer.send(topic, b"value").get(ANSWER_SECONDS)
        with Consumer(**options, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            assert next(consumer).value == b"value"
        assert proxy.connected == cluster.tap.accepted - before > 2
