"""Produce requests with batches as they are, by no client's encoder."""

from __future__ import annotations

from kafka.protocol.producer import ProduceRequest

from broker.broker import Broker

PRODUCE_VERSION = 8  # the last one that is not flexible; from 7 on it takes zstd


def produce(broker: Broker, topic: str, records: bytes, partition: int = 0) -> int:
    """Send bytes as they are; the broker's error code, 0 for none."""
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            data(name=topic, partition_data=[data.PartitionProduceData(index=partition, records=records)])
        ],
    )
    answer = broker.request(request, PRODUCE_VERSION)
    return int(answer.responses[0].partition_responses[0].error_code)
