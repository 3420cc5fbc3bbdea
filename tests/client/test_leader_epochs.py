"""The requests for the ends of leader epochs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka.structs import TopicPartition

from kafkafmt.client.leader_epochs import request_epoch_ends

PARTITIONS = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(4)]
UNKNOWN = TopicPartition("c", 0)


class Control:
    """Of a cluster whose broker 0 leads the even partitions, and broker 1 the odd ones."""

    def __init__(self, error_code: int = 0) -> None:
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda one: None if one == UNKNOWN else one.partition % 2
        )
        self.error_code = error_code
        self.asked: list[int] = []
        self.has_asked_metadata = False

    def request_metadata(self) -> None:
        self.has_asked_metadata = True

    def send(self, request: Any, node_id: int) -> Any:
        self.asked.append(node_id)
        return request

    def wait(self, request: Any, _: object) -> Any:
        """Answer that each epoch ends at ten times its number; the first partition of broker 1 with the error."""
        return SimpleNamespace(
            topics=[
                SimpleNamespace(
                    topic=topic.topic,
                    partitions=[
                        SimpleNamespace(
                            partition=one.partition,
                            error_code=self.error_code if (topic.topic, one.partition) == ("a", 1) else 0,
                            leader_epoch=one.leader_epoch,
                            end_offset=10 * one.leader_epoch,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )


def test_epoch_ends_when_many_are_asked_then_each_leader_gets_one_request() -> None:
    control: Any = Control()
    epochs = {one: number for number, one in enumerate(PARTITIONS)}
    assert request_epoch_ends(control, epochs) == {one: (epoch, 10 * epoch) for one, epoch in epochs.items()}
    assert control.asked == [0, 1]


def test_epoch_ends_when_a_partition_is_refused_then_only_its_end_is_not_known() -> None:
    control: Any = Control(kafka_errors.TopicAuthorizationFailedError.errno)
    found = request_epoch_ends(control, dict.fromkeys(PARTITIONS, 3))
    assert [one for one, end in found.items() if end is None] == [TopicPartition("a", 1)]


def test_epoch_ends_when_a_leader_has_moved_or_is_not_known_then_the_error_is_retriable() -> None:
    control: Any = Control(kafka_errors.NotLeaderForPartitionError.errno)
    with pytest.raises(kafka_errors.NotLeaderForPartitionError, match="a-1"):
        request_epoch_ends(control, dict.fromkeys(PARTITIONS, 3))
    assert control.has_asked_metadata
    with pytest.raises(kafka_errors.LeaderNotAvailableError, match="c-0"):
        request_epoch_ends(control, {UNKNOWN: 3})
