"""Produce: what a producer is told that writes to what is read only."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka.errors import PolicyViolationError, TopicAuthorizationFailedError
from kafka.protocol.api_key import ApiKey
from kafka.protocol.producer import ProduceRequest

from kafkafmt.server.errors import UnsupportedRequestError
from kafkafmt.server.request import Handler
from kafkafmt.server.wire import SUPPORTED
from serve.apis.asking import ask

TOPIC_ID = uuid.UUID(int=7)


def request(version: int, acks: int) -> Any:
    topic_class = ProduceRequest.TopicProduceData
    partitions = [
        topic_class.PartitionProduceData(version=version, index=number, records=b"records")
        for number in (0, 3)
    ]
    topic = topic_class(version=version, name="none", topic_id=TOPIC_ID, partition_data=partitions)
    return ProduceRequest(version=version, acks=acks, timeout_ms=1, topic_data=[topic])


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.Produce])
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_is_refused_for_good_and_says_why(apis: dict[int, Handler], version: int, acks: int) -> None:
    response = ask(apis, request(version, acks))

    (topic,) = response.responses
    assert (topic.topic_id == TOPIC_ID) if version >= 13 else (topic.name == "none")
    assert [partition.index for partition in topic.partition_responses] == [0, 3]
    for partition in topic.partition_responses:
        error = PolicyViolationError if version >= 8 else TopicAuthorizationFailedError
        assert (partition.error_code, partition.base_offset) == (error.errno, -1)
        assert not error.retriable
        if version >= 8:
            assert partition.error_message == "this endpoint is read only"


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.Produce])
def test_produce_that_waits_for_no_answer_closes_the_connection(
    apis: dict[int, Handler], version: int
) -> None:
    with pytest.raises(UnsupportedRequestError, match="read only"):
        ask(apis, request(version, acks=0))
