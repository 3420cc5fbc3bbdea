"""Responses for a cluster that cannot be reached: errors that make clients try again.

New clients do so as well when their connection is closed, which is what happens to all other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    JoinGroupResponse,
    ListOffsetsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse

from kafkafmt.server.request import Message

_NO_LEADER = errors.LeaderNotAvailableError.errno
_NOT_LEADER = errors.NotLeaderForPartitionError.errno
_NO_COORDINATOR = errors.CoordinatorNotAvailableError.errno
_NO_NODE = -1
_NO_OFFSET = -1
# From this version of FindCoordinator on keys are in an array (KIP-699).
_ARRAY_OF_KEYS = 4


def _metadata(request: Message) -> Message:
    """No brokers, and no leaders: clients take that for a cluster that starts."""
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
    return ListOffsetsResponse(
        topics=[
            topic(
                name=one.name,
                partitions=[
                    topic.ListOffsetsPartitionResponse(
                        partition_index=partition.partition_index,
                        error_code=_NOT_LEADER,
                        old_style_offsets=[],
                        timestamp=_NO_OFFSET,
                        offset=_NO_OFFSET,
                    )
                    for partition in one.partitions
                ],
            )
            for one in request.topics
        ]
    )


def _offset_commit(request: Message) -> Message:
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse(
        topics=[
            topic(
                name=one.name,
                partitions=[
                    topic.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=_NO_COORDINATOR
                    )
                    for partition in one.partitions
                ],
            )
            for one in request.topics
        ]
    )


def _offset_fetch(request: Message) -> Message:
    topic = OffsetFetchResponse.OffsetFetchResponseTopic
    return OffsetFetchResponse(
        topics=[
            topic(
                name=one.name,
                partitions=[
                    topic.OffsetFetchResponsePartition(
                        partition_index=partition,
                        committed_offset=_NO_OFFSET,
                        metadata="",
                        error_code=_NO_COORDINATOR,
                    )
                    for partition in one.partition_indexes
                ],
            )
            for one in request.topics or ()
        ]
    )


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
    return response
