"""Produce, refused by a read-only endpoint."""

from __future__ import annotations

from kafka.errors import PolicyViolationError, TopicAuthorizationFailedError
from kafka.protocol.producer import ProduceResponse

from kafkafmt.server.errors import UnsupportedRequestError
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import yielding_between

_FIRST_VERSION_WITH_MESSAGE = 8  # KIP-467

_TopicResponse = ProduceResponse.TopicProduceResponse


async def refuse_produce(request: Request) -> Message:
    """Refuse all records with an error after which producers do not retry.

    From version 8 on that is POLICY_VIOLATION with a message, before TOPIC_AUTHORIZATION_FAILED. Raises
    UnsupportedRequestError for `acks` 0: that producer waits for no response, so its connection is closed.
    """
    if request.body.acks == 0:
        raise UnsupportedRequestError("Produce with acks 0: this endpoint is read only")
    return ProduceResponse(
        version=request.version,
        responses=[
            _refused(topic, request.version) async for topic in yielding_between(request.body.topic_data)
        ],
    )


def _refused(topic: Message, version: int) -> Message:
    error = PolicyViolationError if version >= _FIRST_VERSION_WITH_MESSAGE else TopicAuthorizationFailedError
    partitions = {partition.index for partition in topic.partition_data}
    return _TopicResponse(
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            _TopicResponse.PartitionProduceResponse(
                index=index,
                error_code=error.errno,
                base_offset=-1,
                error_message="this endpoint is read only",
            )
            for index in sorted(partitions)
        ],
    )
