"""Metadata: the topics, their partitions, and the one broker that leads all partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kafka.errors import (
    InvalidRequestError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NoError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.metadata import MetadataResponse

from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.serve.partition_errors import UNKNOWN_LEADER_EPOCH
from kafkafmt.serve.topic_creation import MAX_PARTITIONS, NewTopic, TopicCreation, TopicRefusedError
from kafkafmt.server.node import Node
from kafkafmt.server.request import Message, Request
from kafkafmt.server.request_memory import ANSWER_ELEMENT_BYTES
from kafkafmt.server.yielding import YieldBudget, yielding_between

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog, Topic
    from kafkafmt.serve.partition import Partition

_INTERNAL_TOPICS = {"__consumer_offsets", "__transaction_state"}
_FIRST_VERSION_BY_TOPIC_ID = 12
# librdkafka from 2.3 on reserves four bytes of memory for each byte of a response. That is too little for version 0 if
# topics of one partition have short names: librdkafka then rejects the response. A list of three replicas, as most
# clusters have it, makes the response long enough.
_REPLICAS_AT_VERSION_0 = 3

# Bytes of a partition in the answer, as an object and encoded. Measured by `bench/experiments/serve_hostile.py`.
_PARTITION_BYTES = 512
_NO_LEADER = -1
# Java's consumer and librdkafka expect partitions without gaps in their numbers. So those that are missing below the
# highest one are listed as well, up to MAX_PARTITIONS. Clients from before Kafka 0.11 do not get them: if a partition
# has no leader, some find no topic (pykafka, kafkajs) or wait for that partition alone (kafka-python 1.3).
_FIRST_VERSION_WITH_MISSING = 4

_FIRST_VERSION_THAT_ASKS_FOR_CREATION = 4
# Errors after which producers do not ask for the topic again. After the other errors they do.
_REPORTED_REFUSALS = (InvalidTopicError, InvalidRequestError)

_Topic = MetadataResponse.MetadataResponseTopic


def _allows_creation(request: Request) -> bool:
    """Does the request allow topics to be created? Requests of versions without that field do."""
    is_said = request.version >= _FIRST_VERSION_THAT_ASKS_FOR_CREATION
    return request.body.allow_auto_topic_creation if is_said else True


class MetadataApi:
    """Answers Metadata. creation: creates missing topics if a request allows it; None: no topic is ever created."""

    def __init__(self, catalog: Catalog, node: Node, creation: TopicCreation | None = None) -> None:
        self._catalog = catalog
        self._node = node
        self._creation = creation

    async def answer(self, request: Request) -> Message:
        version = request.version
        node = self._node
        return MetadataResponse(
            version=version,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port)
            ],
            cluster_id=node.cluster_id,
            controller_id=node.id,
            topics=await self._topics(request),
        )

    async def _topics(self, request: Request) -> list[Message]:
        version, wanted, yields = request.version, request.body.topics, YieldBudget(request.memory)
        await self._catalog.update()
        topics = self._catalog.topics()  # lists the folders, also for the lookups below
        if wanted is None or (version == 0 and not wanted):
            return [await self._described(version, topic, yields) for topic in topics]
        # Each topic is answered once, however often it was requested.
        asked = dict.fromkeys([(topic.name, topic.topic_id) async for topic in yielding_between(wanted)])
        refused: Mapping[str, TopicRefusedError] = {}
        if self._creation is not None and _allows_creation(request):
            refused = await self._make(self._creation, [name for name, _ in asked if name is not None])
        return [await self._topic(version, name, topic_id, refused, yields) for name, topic_id in asked]

    async def _make(self, creation: TopicCreation, names: Sequence[str]) -> Mapping[str, TopicRefusedError]:
        """Create the missing topics, with one partition each. Return the errors of those not created, by name."""
        there = {topic.name for topic in self._catalog.topics()}
        absent = [
            NewTopic(name)
            async for name in yielding_between(names)
            if name not in there and is_topic_name(name)
        ]
        return await creation.make(absent) if absent else {}

    async def _topic(
        self,
        version: int,
        name: str | None,
        topic_id: uuid.UUID | None,
        refused: Mapping[str, TopicRefusedError],
        yields: YieldBudget,
    ) -> Message:
        await yields.checkpoint()
        if name is not None:
            topic = self._catalog.topic(name)
            error = UnknownTopicOrPartitionError if is_topic_name(name) else InvalidTopicError
            if name in refused and refused[name].error in _REPORTED_REFUSALS:
                error = refused[name].error
        elif version >= _FIRST_VERSION_BY_TOPIC_ID:
            topic = None if topic_id is None else self._catalog.topic_by_id(topic_id)
            error = UnknownTopicIdError
        else:
            # Requests of versions 10 and 11 have a field for the ID that must not be used (KIP-516).
            topic, name, error = None, "", InvalidRequestError
        if topic is not None:
            return await self._described(version, topic, yields)
        return _Topic(error_code=error.errno, name=name, topic_id=topic_id)

    async def _described(self, version: int, topic: Topic, yields: YieldBudget) -> Message:
        await yields.checkpoint(ANSWER_ELEMENT_BYTES)
        numbers = set(topic.partitions)
        if version >= _FIRST_VERSION_WITH_MISSING:
            numbers.update(range(min(max(numbers), MAX_PARTITIONS)))
        return _Topic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in _INTERNAL_TOPICS,
            partitions=[
                await self._partition(version, number, topic.partitions.get(number), yields)
                for number in sorted(numbers)
            ],
        )

    async def _partition(
        self, version: int, number: int, partition: Partition | None, yields: YieldBudget
    ) -> Message:
        """Describe a partition. partition: None if its folder is missing; its only replica is then offline."""
        await yields.checkpoint(_PARTITION_BYTES)
        replicas = [self._node.id] * (_REPLICAS_AT_VERSION_0 if version == 0 else 1)
        if partition is not None:
            await partition.follow_epochs()
        is_there = partition is not None
        return _Topic.MetadataResponsePartition(
            error_code=(NoError if is_there else LeaderNotAvailableError).errno,
            partition_index=number,
            leader_id=self._node.id if is_there else _NO_LEADER,
            leader_epoch=UNKNOWN_LEADER_EPOCH if partition is None else partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=replicas,
            offline_replicas=[] if is_there else replicas,
        )
