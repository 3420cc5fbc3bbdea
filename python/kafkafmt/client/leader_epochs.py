"""Where the records of a leader epoch end (OffsetForLeaderEpoch, KIP-320).

After an unclean leader election the new leader may lack records that consumers have read. Later it may have other
records at their offsets. It then names an end of their leader epoch that is before them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import TopicPartition

if TYPE_CHECKING:
    from kafka.future import Future

    from kafkafmt.client.control_plane import ControlPlane

log = logging.getLogger(__name__)

_CONSUMER = -1

# The last epoch up to the given one that has records, and the offset after them; None if that is not known.
EpochEnds = dict[TopicPartition, tuple[int, int] | None]


def request_epoch_ends(
    control: ControlPlane, epochs: Mapping[TopicPartition, int], timeout_ms: float | None = None
) -> EpochEnds:
    """Ask the leaders of partitions for the last epoch up to the given one that has records, and the offset after them.

    Each leader gets one request. The value is None if the leader knows no such epoch, or refuses to answer. Brokers
    before 2.3 refuse to answer clients without the right ClusterAction.

    Raises RetriableError, also if a leader is not known.
    """
    led = defaultdict[int, list[TopicPartition]](list)
    for partition in epochs:
        node_id = control.cluster.leader_for_partition(partition)
        if node_id is None or node_id < 0:
            control.request_metadata()
            raise kafka_errors.LeaderNotAvailableError(f"{partition.topic}-{partition.partition}")
        led[node_id].append(partition)
    sent = [
        (node_id, control.send(_request({one: epochs[one] for one in partitions}), node_id))
        for node_id, partitions in led.items()
    ]
    found: EpochEnds = dict.fromkeys(epochs)
    for node_id, future in sent:
        found.update(_ends_of(control, node_id, future, timeout_ms))
    return found


def _request(epochs: Mapping[TopicPartition, int]) -> OffsetForLeaderEpochRequest:
    of_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    topics = defaultdict[str, list[Any]](list)
    for (topic, number), epoch in epochs.items():
        asked = of_topic.OffsetForLeaderPartition(
            partition=number, current_leader_epoch=-1, leader_epoch=epoch
        )
        topics[topic].append(asked)
    return OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[of_topic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _ends_of(control: ControlPlane, node_id: int, future: Future, timeout_ms: float | None) -> EpochEnds:
    try:
        response = control.wait(future, timeout_ms)
    except kafka_errors.UnknownBrokerIdError:
        control.request_metadata()
        raise kafka_errors.LeaderNotAvailableError(f"broker {node_id}") from None
    except kafka_errors.RetriableError:
        raise
    except kafka_errors.KafkaError as error:
        log.debug("the ends of leader epochs could not be read from broker %s: %s", node_id, error)
        return {}
    return {
        TopicPartition(answer.topic, found.partition): _end_of(control, answer.topic, found)
        for answer in response.topics
        for found in answer.partitions
    }


def _end_of(control: ControlPlane, topic: str, found: Any) -> tuple[int, int] | None:
    error = kafka_errors.for_code(found.error_code)
    if error is not kafka_errors.NoError:
        control.request_metadata()
        if issubclass(error, kafka_errors.RetriableError):
            raise error(f"{topic}-{found.partition}")
        log.debug(
            "the end of a leader epoch of %s-%s could not be read: %s", topic, found.partition, error.__name__
        )
        return None
    epoch = -1 if found.leader_epoch is None else int(found.leader_epoch)
    return None if epoch < 0 or found.end_offset < 0 else (epoch, int(found.end_offset))
