"""Requests of group members and simple consumers, at any version, with as little said as will do."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

SUBSCRIPTION = ConsumerProtocolSubscription(
    version=0, topics=["orders"], user_data=b"", owned_partitions=[]
).encode()
NO_GENERATION = -1


def capped(request_class: Any, version: int) -> int:
    return min(version, request_class.max_version)


def join(member_id: str = "", version: int = 3, group: str = "g", **fields: Any) -> Any:
    defaults = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000, "protocol_type": "consumer"}
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(
        name="range", metadata=fields.pop("metadata", SUBSCRIPTION)
    )
    return JoinGroupRequest(
        version=capped(JoinGroupRequest, version),
        group_id=group,
        member_id=member_id,
        protocols=[protocol],
        **{**defaults, **fields},
    )


def sync(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes],
    version: int = 3,
    group: str = "g",
    **fields: Any,
) -> Any:
    return SyncGroupRequest(
        version=capped(SyncGroupRequest, version),
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=assignment)
            for each, assignment in assignments.items()
        ],
    )


def heartbeat(member_id: str, generation: int, version: int = 3, group: str = "g", **fields: Any) -> Any:
    return HeartbeatRequest(
        version=capped(HeartbeatRequest, version),
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        **fields,
    )


def leave(member_id: str, version: int = 3, instance_id: str | None = None, group: str = "g") -> Any:
    member = LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance_id)
    return LeaveGroupRequest(
        version=capped(LeaveGroupRequest, version), group_id=group, member_id=member_id, members=[member]
    )


def commit(
    offsets: dict[tuple[Any, int], int],
    member_id: str = "",
    generation: int = NO_GENERATION,
    version: int = 3,
    group: str = "g",
    instance_id: str | None = None,
    **fields: Any,
) -> Any:
    """`offsets` by topic, name or id, and partition; `fields` of each partition."""
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        version=version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            topic_class(
                **{"topic_id" if version >= 10 else "name": topic},
                partitions=[
                    topic_class.OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=offset,
                        committed_leader_epoch=4,
                        **{"committed_metadata": "a note", "commit_timestamp": -1, **fields},
                    )
                    for (name, number), offset in offsets.items()
                    if name == topic
                ],
            )
            for topic in dict.fromkeys(topic for topic, _ in offsets)
        ],
    )


def fetch(
    partitions: list[tuple[Any, int]] | None, version: int = 3, groups: tuple[str, ...] = ("g",)
) -> Any:
    several, by_id = version >= 8, version >= 10
    container = OffsetFetchRequest.OffsetFetchRequestGroup if several else OffsetFetchRequest
    topic_class = container.OffsetFetchRequestTopics if several else container.OffsetFetchRequestTopic
    topics = None
    if partitions is not None:
        topics = [
            topic_class(
                **{"topic_id" if by_id else "name": topic},
                partition_indexes=[number for name, number in partitions if name == topic],
            )
            for topic in dict.fromkeys(topic for topic, _ in partitions)
        ]
    if not several:
        return OffsetFetchRequest(version=version, group_id=groups[0], topics=topics)
    return OffsetFetchRequest(
        version=version, groups=[container(group_id=group, topics=topics) for group in groups]
    )


def fetched(response: Any) -> dict[tuple[Any, int], Any]:
    """What is answered for each partition, by topic, name or id, and number."""
    groups = response.groups if response.version >= 8 else [response]
    return {
        (topic.topic_id if response.version >= 10 else topic.name, partition.partition_index): partition
        for group in groups
        for topic in group.topics
        for partition in topic.partitions
    }


def codes(response: Any) -> list[int]:
    return [partition.error_code for topic in response.topics for partition in topic.partitions]
