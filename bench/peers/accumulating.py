"""What feeds the accumulators: records for the partitions of a topic, and a cluster whose one node leads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.protocol.metadata import MetadataResponse
from kafka.structs import TopicPartition

TOPIC = "records"
PARTITIONS = tuple(TopicPartition(TOPIC, number) for number in range(4))
MAX_REQUEST_BYTES = 1 << 20
# Nothing lingers through a run: a batch goes when it is full, or when the records end.
LINGER_MS = 60_000
_NODE = 0
_METADATA_VERSION = 7

Row = tuple[TopicPartition, int, bytes | None, bytes]


def rows_of(batches: Iterable[Iterable[Any]]) -> list[Row]:
    """The records of each stored batch go to one partition, those of the next one to the next: a sticky partitioner."""
    return [
        (PARTITIONS[number % len(PARTITIONS)], record.timestamp, record.key, bytes(record.value))
        for number, batch in enumerate(batches)
        for record in batch
    ]


def cluster() -> ClusterMetadata:
    """What kafka-python makes of a broker's answer; it is asked who leads a partition, and of what a node does."""
    topic = MetadataResponse.MetadataResponseTopic
    partitions = [
        topic.MetadataResponsePartition(
            error_code=0, partition_index=partition.partition, leader_id=_NODE, replica_nodes=[_NODE]
        )
        for partition in PARTITIONS
    ]
    node = MetadataResponse.MetadataResponseBroker(node_id=_NODE, host="localhost", port=9092, rack=None)
    answer = MetadataResponse(
        brokers=[node],
        controller_id=_NODE,
        topics=[topic(error_code=0, name=TOPIC, is_internal=False, partitions=partitions)],
    )
    known = ClusterMetadata()
    encoded = answer.encode(version=_METADATA_VERSION)
    known.update_metadata(MetadataResponse.decode(encoded, version=_METADATA_VERSION))
    return known
