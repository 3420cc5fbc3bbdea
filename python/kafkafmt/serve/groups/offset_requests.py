"""OffsetCommit, OffsetFetch and OffsetDelete: from kafka-python's messages to the store, and back.

In Kafka, version 0 of the first two is for offsets in ZooKeeper; here all versions use the same store.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from kafka import errors
from kafka.protocol.api_key import ApiKey
from kafka.protocol.consumer import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription, ConsumerProtocolType

from kafkafmt.serve.catalog import Catalog
from kafkafmt.serve.groups.group import Group
from kafkafmt.serve.groups.member import Error, MemberIdentity
from kafkafmt.serve.groups.membership import Membership
from kafkafmt.serve.groups.offsets import CommittedOffset, OffsetCommit
from kafkafmt.serve.groups.store import OffsetStore, not_available
from kafkafmt.server.request import Handler, Message, Request
from kafkafmt.server.request_memory import ANSWER_ELEMENT_BYTES
from kafkafmt.server.yielding import YieldBudget, yielding_between
from kafkafmt.types import TopicPartition

_TOPIC_IDS = 10  # the first version of OffsetCommit and OffsetFetch that names topics by id (KIP-848)
_SEVERAL_GROUPS = 8  # the first version of OffsetFetch with more than one group (KIP-709)

_NOT_COMMITTED = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_timestamp_ms=-1)


class OffsetRequests:
    """Answers requests about committed offsets."""

    def __init__(
        self, membership: Membership, store: OffsetStore, catalog: Catalog, *, max_metadata_chars: int
    ) -> None:
        self._membership = membership
        self._store = store
        self._catalog = catalog
        self._max_metadata_chars = max_metadata_chars

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by API key."""
        return {
            ApiKey.OffsetCommit: self._commit,
            ApiKey.OffsetFetch: self._fetch,
            ApiKey.OffsetDelete: self._delete,
        }

    # OffsetCommit

    async def _commit(self, request: Request) -> Message:
        body, version = request.body, request.version
        commits: list[OffsetCommit] = []
        committed: list[Message] = []
        answers = OffsetCommitResponse.OffsetCommitResponseTopic
        topics = []
        yields = YieldBudget()
        for topic in body.topics:
            await yields.checkpoint()
            name = await self._topic_name(version, topic)
            partitions = []
            for partition in topic.partitions:
                await yields.checkpoint()
                error = self._commit_error(version, name, partition.committed_metadata)
                answer = answers.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error.errno
                )
                partitions.append(answer)
                if error is errors.NoError and name is not None:
                    commits.append(_commit_of(body.group_id, name, partition))
                    committed.append(answer)
            topics.append(answers(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        error = await self._commit_offsets(version, body, commits)
        if error is not errors.NoError:
            for answer in committed:
                answer.error_code = error.errno
        return OffsetCommitResponse(version=version, topics=topics)

    async def _commit_offsets(self, version: int, body: Any, commits: list[OffsetCommit]) -> Error:
        """Write what a member commits, if it may. No other task runs between the check and the start of the write."""
        if version > 0:
            identity = MemberIdentity(
                body.member_id, body.generation_id_or_member_epoch, body.group_instance_id
            )
            error = self._membership.commit(body.group_id, identity)
            if error is not errors.NoError:
                return error
        if commits:
            try:
                await self._store.commit(commits)
            except sqlite3.Error as failure:
                return not_available(failure)
        return errors.NoError

    async def _topic_name(self, version: int, topic: Any) -> str | None:
        """Return the name of a topic in a request; None if there is no such topic."""
        by_id = version >= _TOPIC_IDS
        await self._catalog.update(topic.topic_id if by_id else topic.name)
        found = self._catalog.topic_by_id(topic.topic_id) if by_id else self._catalog.topic(topic.name)
        return None if found is None else found.name

    def _commit_error(self, version: int, topic: str | None, metadata: str | None) -> Error:
        if topic is None:
            return (
                errors.UnknownTopicIdError if version >= _TOPIC_IDS else errors.UnknownTopicOrPartitionError
            )
        if metadata is not None and len(metadata) > self._max_metadata_chars:
            return errors.OffsetMetadataTooLargeError
        return errors.NoError

    # OffsetFetch

    async def _fetch(self, request: Request) -> Message:
        body, version = request.body, request.version
        if version < _SEVERAL_GROUPS:
            yields = YieldBudget(request.memory)
            error, topics = await self._fetch_group(version, body.group_id, body.topics, yields)
            return OffsetFetchResponse(version=version, topics=topics, error_code=error.errno)
        groups, yields = [], YieldBudget(request.memory)
        for group in {group.group_id: group for group in body.groups}.values():
            error, topics = await self._fetch_group(version, group.group_id, group.topics, yields)
            groups.append(
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=topics, error_code=error.errno
                )
            )
        return OffsetFetchResponse(version=version, groups=groups)

    async def _fetch_group(
        self, version: int, group_id: str, topics: list[Any] | None, yields: YieldBudget
    ) -> tuple[Error, list[Message]]:
        """Return the error of the whole group, and the answers for topics; None: for all topics with offsets."""
        asked = None if topics is None else await self._asked(version, topics)
        error, offsets = errors.NoError, {}
        try:
            names = None if asked is None else [topic.name for topic in asked if topic.name is not None]
            offsets = await self._store.offsets(group_id, names)
        except sqlite3.Error as failure:
            error = not_available(failure)
        if asked is None:
            asked = await self._committed_topics(version, offsets)
        return error, [
            await _fetched_topic(
                version,
                topic,
                sorted(numbers),
                offsets,
                errors.UnknownTopicIdError if topic.name is None else error,
                yields,
            )
            for topic, numbers in asked.items()
        ]

    async def _asked(self, version: int, topics: list[Any]) -> dict[_Topic, set[int]]:
        """Return the requested partitions, each once: repetition must not make the response larger."""
        asked: dict[_Topic, set[int]] = {}
        async for topic in yielding_between(topics):
            if version >= _TOPIC_IDS:
                named = _Topic(await self._topic_name(version, topic), topic.topic_id)
            else:
                named = _Topic(topic.name, None)  # the topic need not exist: it may have committed offsets
            asked.setdefault(named, set()).update(topic.partition_indexes)
        return asked

    async def _committed_topics(
        self, version: int, offsets: Iterable[TopicPartition]
    ) -> dict[_Topic, set[int]]:
        """Return the partitions with offsets. In versions with topic ids: only those of topics that exist."""
        kept: dict[_Topic, set[int]] = {}
        async for name, number in yielding_between(offsets):
            if version >= _TOPIC_IDS:
                await self._catalog.update(name)
            topic = self._catalog.topic(name) if version >= _TOPIC_IDS else None
            if topic is not None or version < _TOPIC_IDS:
                kept.setdefault(_Topic(name, None if topic is None else topic.id), set()).add(number)
        return kept

    # OffsetDelete

    async def _delete(self, request: Request) -> Message:
        body, version = request.body, request.version
        response = OffsetDeleteResponse(version=version, topics=[])
        group = self._membership.group(body.group_id)
        try:
            error = await self._delete_error(body.group_id, group)
            if error is errors.NoError:
                yields = YieldBudget()
                deleted = [await _deleted_topic(topic, yields) for topic in body.topics]
                # No other task runs from here to the store, so that nobody can subscribe to one of the topics.
                subscribed = _subscribed_topics(group)
                partitions: list[TopicPartition] = []
                for answer, of_topic in deleted:
                    if subscribed is not None and answer.name not in subscribed:
                        partitions += of_topic
                    else:
                        for each in answer.partitions:
                            each.error_code = errors.GroupSubscribedToTopicError.errno
                response.topics = [answer for answer, _ in deleted]
                await self._store.delete(body.group_id, partitions)
        except sqlite3.Error as failure:
            error = not_available(failure)
        response.error_code = error.errno
        return response

    async def _delete_error(self, group_id: str, group: Group | None) -> Error:
        if not group_id:
            return errors.InvalidGroupIdError
        if group is None:
            return errors.NoError if await self._store.has_group(group_id) else errors.GroupIdNotFoundError
        if group.roster.members and group.roster.protocol_type != ConsumerProtocolType:
            return errors.NonEmptyGroupError
        return errors.NoError


class _Topic(NamedTuple):
    """A topic of a request. name: None if no topic has the id."""

    name: str | None
    topic_id: UUID | None


def _commit_of(group_id: str, topic: str, partition: Any) -> OffsetCommit:
    timestamp_ms = partition.commit_timestamp  # only in version 1
    return OffsetCommit(
        group_id,
        TopicPartition(topic, partition.partition_index),
        CommittedOffset(
            offset=partition.committed_offset,
            leader_epoch=partition.committed_leader_epoch,
            metadata=partition.committed_metadata or "",
            commit_timestamp_ms=int(time.time() * 1000) if timestamp_ms < 0 else timestamp_ms,
        ),
    )


async def _fetched_topic(
    version: int,
    topic: _Topic,
    partitions: Iterable[int],
    offsets: Mapping[TopicPartition, CommittedOffset],
    error: Error,
    yields: YieldBudget,
) -> Message:
    if version >= _SEVERAL_GROUPS:
        topic_class = OffsetFetchResponse.OffsetFetchResponseGroup.OffsetFetchResponseTopics
        partition_class = topic_class.OffsetFetchResponsePartitions
    else:
        topic_class = OffsetFetchResponse.OffsetFetchResponseTopic
        partition_class = topic_class.OffsetFetchResponsePartition
    # ZooKeeper had no node for a partition without a committed offset; version 0 reports that with this error.
    absence = errors.UnknownTopicOrPartitionError if version == 0 else errors.NoError
    fetched = topic_class(name=topic.name, partitions=[])
    if version >= _TOPIC_IDS:
        fetched.topic_id = topic.topic_id
    for number in partitions:
        await yields.checkpoint(ANSWER_ELEMENT_BYTES)
        offset = offsets.get(TopicPartition(topic.name or "", number))
        partition_error = absence if error is errors.NoError and offset is None else error
        found = offset or _NOT_COMMITTED
        fetched.partitions.append(
            partition_class(
                partition_index=number,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
                error_code=partition_error.errno,
            )
        )
    return fetched


async def _deleted_topic(topic: Any, yields: YieldBudget) -> tuple[Message, list[TopicPartition]]:
    """Return the answer for a topic whose offsets are deleted, and the requested partitions."""
    answers = OffsetDeleteResponse.OffsetDeleteResponseTopic
    answer, partitions = answers(name=topic.name, partitions=[]), []
    for each in topic.partitions:
        await yields.checkpoint()
        number = each.partition_index
        partitions.append(TopicPartition(topic.name, number))
        answer.partitions.append(answers.OffsetDeleteResponsePartition(partition_index=number))
    await yields.checkpoint()
    return answer, partitions


def _subscribed_topics(group: Group | None) -> set[str] | None:
    """Return the topics that the members of a consumer group subscribe to; None if that is not known."""
    if group is None or not group.roster.members:
        return set()
    if group.protocol_name is None:
        return None  # before the first rebalance is complete
    subscribed: set[str] = set()
    for member in group.roster.members.values():
        try:
            subscription = ConsumerProtocolSubscription.decode(member.protocols[group.protocol_name])
        except (KeyError, ValueError, struct.error):
            return None
        subscribed.update(subscription.topics or ())
    return subscribed
