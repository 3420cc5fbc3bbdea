"""Metadata of one topic, as a broker sends it, for tests without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.protocol.metadata import MetadataResponse

TOPIC = "topic"


def metadata(leaders: Sequence[int]) -> MetadataResponse:
    """Of one topic whose partitions have these leaders, -1 for none."""
    partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
    partitions = [
        partition(
            error_code=0,
            partition_index=number,
            leader_id=leader,
            leader_epoch=1,
            replica_nodes=[],
            isr_nodes=[],
            offline_replicas=[],
        )
        for number, leader in enumerate(leaders)
    ]
    topic = MetadataResponse.MetadataResponseTopic(
        error_code=0, name=TOPIC, is_internal=False, partitions=partitions
    )
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9, rack=None)
    response = MetadataResponse(brokers=[broker], cluster_id="c", controller_id=1, topics=[topic])
    return MetadataResponse.decode(response.encode(version=9), version=9)
