"""Produce: refused, as the endpoint is read only."""

from __future__ import annotations

from kafka.errors import PolicyViolationError, TopicAuthorizationFailedError
from kafka.protocol.producer import ProduceResponse

from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.turns import by_turns
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
    return ProduceResponse(
        version=request.version,
        responses=[_refused(topic, request.version) async for topic in by_turns(request.body.topic_data)],
    )


def _refused(topic: Message, version: int) -> Message:
    error = PolicyViolationError if version >= _FIRST_VERSION_WITH_MESSAGE else TopicAuthorizationFailedError
    partitions = {partition.index for partition in topic.partition_data}
    return _TopicResponse(
        version=version,
        name=topic.name,
        topic_id=topic.topic_id,
        partition_responses=[
            _TopicResponse.PartitionProduceResponse(
                version=version,
                index=index,
                error_code=error.errno,
                base_offset=-1,
                error_message="this endpoint is read only",
            )
            for index in sorted(partitions)
        ],
    )
