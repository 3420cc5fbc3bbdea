"""Where the records of a leader epoch end (OffsetForLeaderEpoch, KIP-320).

After an unclean leader election the new leader may lack records that consumers have read. Later it may have other
records at their offsets. It then names an end of their leader epoch that is before them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import kafka.errors as kafka_errors
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

    from kafkafmt.client.control_plane import ControlPlane

_CONSUMER = -1


def request_epoch_end(
    control: ControlPlane, partition: TopicPartition, leader_epoch: int, timeout_ms: float | None = None
) -> tuple[int, int] | None:
    """Ask the leader of a partition for the last epoch up to `leader_epoch` with records, and the offset after them.

    Return None if it knows no such epoch. Raises KafkaError, which is a RetriableError if the leader is not known.
    """
    node_id = control.cluster.leader_for_partition(partition)
    if node_id is None or node_id < 0:
        control.request_metadata()
        raise kafka_errors.LeaderNotAvailableError(f"{partition.topic}-{partition.partition}")
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    asked = topic.OffsetForLeaderPartition(
        partition=partition.partition, current_leader_epoch=-1, leader_epoch=leader_epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER, topics=[topic(topic=partition.topic, partitions=[asked])]
    )
    try:
        response = control.wait(control.send(request, node_id), timeout_ms)
    except kafka_errors.UnknownBrokerIdError:
        control.request_metadata()
        raise kafka_errors.LeaderNotAvailableError(f"broker {node_id}") from None
    (found,) = response.topics[0].partitions
    error = kafka_errors.for_code(found.error_code)
    if error is not kafka_errors.NoError:
        control.request_metadata()
        raise error(f"{partition.topic}-{partition.partition}")
    epoch = -1 if found.leader_epoch is None else int(found.leader_epoch)
    return None if epoch < 0 or found.end_offset < 0 else (epoch, int(found.end_offset))
