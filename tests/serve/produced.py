"""Requests to produce, put together by hand, and what is told of one partition in answer."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

import kafkafmt as kf
from _kafkafmt.crc.checksums import crc32c
from endpoints.raw_client import RawClient
from endpoints.requests import NO_ID

PRODUCE_BY_TOPIC_ID = 13
ALL, NONE, LEADER = -1, 0, 1  # acks
NOW = 1_700_000_000_000

_Topic = ProduceRequest.TopicProduceData


def batch(
    count: int = 3, *, base_offset: int = 0, size: int = 20, timestamp: int = NOW, **fields: Any
) -> bytes:
    """A batch of `count` records, whose values tell their number."""
    builder = kf.RecordBatchBuilder(
        fields.pop("magic", 2), base_offset=base_offset, batch_size=2**30, **fields
    )
    for number in range(count):
        builder.append(timestamp + number, b"key", b"%d " % number + bytes(size))
    return bytes(builder.build())


def changed(data: bytes, position: int, layout: str, value: int) -> bytes:
    """A v2 batch with a field of its header written over, and a CRC that holds."""
    copy = bytearray(data)
    struct.pack_into(layout, copy, position, value)
    struct.pack_into(">I", copy, 17, crc32c(bytes(copy[21:])))
    return bytes(copy)


def produce(
    *records: bytes | None,
    topic: str = "t",
    first: int = 0,
    acks: int = ALL,
    topic_id: UUID = NO_ID,
    transactional_id: str | None = None,
) -> Any:
    """Records for the partitions from `first` on."""
    partitions = [
        _Topic.PartitionProduceData(index=first + i, records=each) for i, each in enumerate(records)
    ]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=10_000,
        topic_data=[_Topic(name=topic, topic_id=topic_id, partition_data=partitions)],
    )


def answered(client: RawClient, request: Any, version: int) -> list[Any]:
    """What is said of the partitions, in their order."""
    (topic,) = client.ask(request, version).responses
    return list(topic.partition_responses)


def error_code(client: RawClient, request: Any, version: int) -> int:
    (partition,) = answered(client, request, version)
    return int(partition.error_code)


def create_topics(
    *names: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str | None] | None = None,
    **more: Any,
) -> Any:
    topic = CreateTopicsRequest.CreatableTopic
    return CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=replicas,
                assignments=[],
                configs=[
                    topic.CreatableTopicConfig(name=key, value=value)
                    for key, value in (configs or {}).items()
                ],
            )
            for name in names
        ],
        timeout_ms=10_000,
        **more,
    )


def init_producer_id(transactional_id: str | None = None) -> Any:
    return InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=1000, producer_id=-1, producer_epoch=-1
    )
