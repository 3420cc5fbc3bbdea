"""Produce: refused, as the endpoint is read only."""

from __future__ import annotations

from kafka.errors import PolicyViolationError, TopicAuthorizationFailedError
from kafka.protocol.producer import ProduceResponse

from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.wire import UnsupportedRequestError

_FIRST_VERSION_WITH_MESSAGE = 8  # KIP-467

_TopicResponse = ProduceResponse.TopicProduceResponse


async def refuse_produce(request: Request) -> Message:
    """Refuse all records with an error that no producer tries again after.

    One that can be told why is; to an older one its topic is closed. Raises UnsupportedRequestError for `acks` 0: such
    a producer waits for no answer, so that its connection is closed instead.
    """
    if request.body.acks == 0:
        raise UnsupportedRequestError("Produce with acks 0: this endpoint is read only")
    version = request.version
    error = PolicyViolationError if version >= _FIRST_VERSION_WITH_MESSAGE else TopicAuthorizationFailedError
    return ProduceResponse(
        version=version,
        responses=[
            _TopicResponse(
                version=version,
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _TopicResponse.PartitionProduceResponse(
                        version=version,
                        index=partition.index,
                        error_code=error.errno,
                        base_offset=-1,
                        error_message="this endpoint is read only",
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.body.topic_data
        ],
    )
