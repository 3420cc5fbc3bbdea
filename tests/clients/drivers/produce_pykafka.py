"""pykafka's producer, which acknowledges what it sends one by one."""

from __future__ import annotations

from producer_driver import Producing
from pykafka import KafkaClient
from pykafka.common import CompressionType


def main() -> None:
    told = Producing()
    client = KafkaClient(hosts=told.bootstrap, broker_version=told.version)
    topic = client.topics[told.topic.encode()]
    codec = CompressionType.GZIP if told.options == ["gzip"] else CompressionType.NONE
    with topic.get_producer(
        required_acks=-1, linger_ms=20, compression=codec, min_queued_messages=50
    ) as producer:
        for key, value in told.records():
            producer.produce(value, partition_key=key)


if __name__ == "__main__":
    main()
