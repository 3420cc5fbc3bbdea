"""Requests of the consumer's APIs, each with what a test cares for and everything else as a consumer has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest

NO_ID = UUID(int=0)
FETCH_BY_TOPIC_ID = 13  # the first version (KIP-516)
MIB = 1024 * 1024
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NO_SESSION_ID, NO_SESSION_EPOCH = 0, -1  # a full fetch outside any session (KIP-227)


class Wanted(NamedTuple):
    """A partition in a fetch."""

    topic: str
    partition: int = 0
    offset: int = 0
    max_bytes: int = MIB
    leader_epoch: int = -1
    topic_id: UUID = NO_ID


def fetch(
    *wanted: Wanted,
    max_bytes: int = 50 * MIB,
    min_bytes: int = 1,
    max_wait_ms: int = 0,
    isolation: int = READ_UNCOMMITTED,
    session: tuple[int, int] = (NO_SESSION_ID, NO_SESSION_EPOCH),
    forgotten: Sequence[tuple[str, UUID, Sequence[int]]] = (),
) -> Any:
    """session: its id and epoch. forgotten: topics that leave it, by name and id, with their partitions."""
    topics: dict[tuple[str, UUID], list[Any]] = {}
    for each in wanted:
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=each.partition,
            current_leader_epoch=each.leader_epoch,
            fetch_offset=each.offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=each.max_bytes,
        )
        topics.setdefault((each.topic, each.topic_id), []).append(partition)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=[
            FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in topics.items()
        ],
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=name, topic_id=topic_id, partitions=list(partitions))
            for name, topic_id, partitions in forgotten
        ],
        rack_id="",
    )


def list_offsets(
    *wanted: tuple[str, int, int], isolation: int = READ_UNCOMMITTED, most: int = 1, leader_epoch: int = -1
) -> Any:
    """wanted: topic, partition and timestamp (or a negative number that stands for an end). most: of version 0."""
    asked = ListOffsetsRequest.ListOffsetsTopic
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            asked(
                name=topic,
                partitions=[
                    asked.ListOffsetsPartition(
                        partition_index=partition,
                        current_leader_epoch=leader_epoch,
                        timestamp=timestamp,
                        max_num_offsets=most,
                    )
                ],
            )
            for topic, partition, timestamp in wanted
        ],
        timeout_ms=1000,
    )


def metadata(names: Sequence[str] | None = None, ids: Sequence[UUID] = ()) -> Any:
    """names: None for all topics."""
    topic = MetadataRequest.MetadataRequestTopic
    wanted = [topic(name=name, topic_id=NO_ID) for name in names or ()]
    wanted += [topic(name=None, topic_id=topic_id) for topic_id in ids]
    return MetadataRequest(
        topics=wanted if names is not None or ids else None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def offset_for_leader_epoch(*wanted: tuple[str, int, int], current_leader_epoch: int = -1) -> Any:
    """wanted: topic, partition and leader epoch."""
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    return OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            asked(
                topic=topic,
                partitions=[
                    asked.OffsetForLeaderPartition(
                        partition=partition, current_leader_epoch=current_leader_epoch, leader_epoch=epoch
                    )
                ],
            )
            for topic, partition, epoch in wanted
        ],
    )
