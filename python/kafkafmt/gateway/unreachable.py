"""Responses for a cluster that cannot be reached: errors that make clients try again.

Other requests have no such response: the gateway closes the connection, after which new clients try again, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    JoinGroupResponse,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from kafkafmt.gateway.error_codes import to_known_codes
from kafkafmt.server.request import Message

_NO_LEADER = errors.LeaderNotAvailableError.errno
_NOT_LEADER = errors.NotLeaderForPartitionError.errno
_NO_COORDINATOR = errors.CoordinatorNotAvailableError.errno
_NO_NODE = -1
_NO_OFFSET = -1
# From this version of FindCoordinator on keys are in an array (KIP-699).
_ARRAY_OF_KEYS = 4


def _metadata(request: Message) -> Message:
    """Return no brokers and no leaders, as a cluster that starts."""
    topic = MetadataResponse.MetadataResponseTopic
    return MetadataResponse(
        brokers=[],
        controller_id=_NO_NODE,
        topics=[
            topic(name=one.name, topic_id=one.topic_id, error_code=_NO_LEADER, partitions=[])
            for one in request.topics or ()
        ],
    )


def _find_coordinator(request: Message) -> Message:
    if request.API_VERSION < _ARRAY_OF_KEYS:
        return FindCoordinatorResponse(error_code=_NO_COORDINATOR, node_id=_NO_NODE, host="", port=_NO_NODE)
    coordinator = FindCoordinatorResponse.Coordinator
    return FindCoordinatorResponse(
        coordinators=[
            coordinator(key=key, error_code=_NO_COORDINATOR, node_id=_NO_NODE, host="", port=_NO_NODE)
            for key in request.coordinator_keys
        ]
    )


def _list_offsets(request: Message) -> Message:
    topic = ListOffsetsResponse.ListOffsetsTopicResponse

    def refused(partition: Message) -> Message:
        return topic.ListOffsetsPartitionResponse(
            partition_index=partition.partition_index,
            error_code=_NOT_LEADER,
            old_style_offsets=[],
            timestamp=_NO_OFFSET,
            offset=_NO_OFFSET,
        )

    return ListOffsetsResponse(topics=_refused_topics(request, topic, "partitions", refused))


def _offset_commit(request: Message) -> Message:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic

    def refused(partition: Message) -> Message:
        return topic.OffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=_NO_COORDINATOR
        )

    return OffsetCommitResponse(topics=_refused_topics(request, topic, "partitions", refused))


def _offset_fetch(request: Message) -> Message:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic

    def refused(partition_index: int) -> Message:
        return topic.OffsetFetchResponsePartition(
            partition_index=partition_index,
            committed_offset=_NO_OFFSET,
            metadata="",
            error_code=_NO_COORDINATOR,
        )

    return OffsetFetchResponse(topics=_refused_topics(request, topic, "partition_indexes", refused))


def _refused_topics(
    request: Message, topic: type[Message], partitions: str, refused: Callable[[Any], Message]
) -> list[Message]:
    """Return the topics of a request as `topic`, with the answer of `refused` for each element of `partitions`."""
    return [
        topic(name=one.name, partitions=[refused(partition) for partition in getattr(one, partitions)])
        for one in request.topics or ()
    ]


def _join_group(_: Message) -> Message:
    return JoinGroupResponse(
        error_code=_NO_COORDINATOR,
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id="",
        members=[],
    )


_RESPONSES: Mapping[int, Callable[[Message], Message]] = {
    ApiKey.Metadata: _metadata,
    ApiKey.FindCoordinator: _find_coordinator,
    ApiKey.ListOffsets: _list_offsets,
    ApiKey.OffsetCommit: _offset_commit,
    ApiKey.OffsetFetch: _offset_fetch,
    ApiKey.JoinGroup: _join_group,
}


def unreachable_response(request: Message) -> Message | None:
    """Return a response at the version of a request, with errors that the client tries again for; None if none can."""
    answer = _RESPONSES.get(request.API_KEY)
    if answer is None:
        return None
    response = answer(request)
    response.API_VERSION = request.API_VERSION
    to_known_codes(response)
    return response
