"""Metadata: the topics, their partitions, and the one broker that leads them all."""

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
from kafkafmt.serve.node import Node
from kafkafmt.serve.partition_errors import UNKNOWN_LEADER_EPOCH
from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.request_memory import ANSWER_ELEMENT_BYTES
from kafkafmt.serve.topic_creation import MOST_PARTITIONS, NewTopic, TopicCreation, TopicRefusedError
from kafkafmt.serve.turns import Turns, by_turns

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog, Partition, Topic

_INTERNAL_TOPICS = {"__consumer_offsets", "__transaction_state"}
_FIRST_VERSION_BY_TOPIC_ID = 12
# librdkafka from 2.3 on reserves four bytes of memory for each byte of a response, which is too little for version 0
# where topics of one partition have short names: it takes the response for a broken one. A list of three replicas, as
# most clusters have them, is long enough.
_REPLICAS_AT_VERSION_0 = 3

# What a partition takes in the answer, as an object and encoded. Measured by `bench/experiments/serve_hostile.py`.
_PARTITION_BYTES = 512
_NO_LEADER = -1
# Java's consumer and librdkafka take partitions to be numbered without gaps: those that are missing below the highest
# are told as well, as far as a topic may reach that is no mistake. Clients of the time before Kafka 0.11 are not told:
# where a partition has no leader, some find no topic (pykafka, kafkajs) or wait for that one alone (kafka-python 1.3).
_FIRST_VERSION_WITH_MISSING = 4

_FIRST_VERSION_THAT_ASKS_FOR_CREATION = 4
# Why a topic is not made that producers must not try again after. Else they look again.
_TOLD_REFUSALS = (InvalidTopicError, InvalidRequestError)

_Topic = MetadataResponse.MetadataResponseTopic


def _allows_creation(request: Request) -> bool:
    """Before a request could say, all did."""
    is_said = request.version >= _FIRST_VERSION_THAT_ASKS_FOR_CREATION
    return request.body.allow_auto_topic_creation if is_said else True


class MetadataApi:
    """Answers Metadata. `creation` makes topics that are asked for; None: none is made, whatever a request allows."""

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
                MetadataResponse.MetadataResponseBroker(
                    version=version, node_id=node.id, host=node.host, port=node.port
                )
            ],
            cluster_id=node.cluster_id,
            controller_id=node.id,
            topics=await self._topics(request),
        )

    async def _topics(self, request: Request) -> list[Message]:
        version, wanted, turns = request.version, request.body.topics, Turns(request.memory)
        topics = self._catalog.topics()  # as the folders are now, those of the topics asked for included
        if wanted is None or (version == 0 and not wanted):
            return [await self._described(version, topic, turns) for topic in topics]
        # Each is told once, however often it was asked for.
        asked = dict.fromkeys((topic.name, topic.topic_id) for topic in wanted)
        refused: Mapping[str, TopicRefusedError] = {}
        if self._creation is not None and _allows_creation(request):
            refused = await self._make(self._creation, [name for name, _ in asked if name is not None])
        return [await self._topic(version, name, topic_id, refused, turns) for name, topic_id in asked]

    async def _make(self, creation: TopicCreation, names: Sequence[str]) -> Mapping[str, TopicRefusedError]:
        """Make the topics that are not there, with one partition each; return why which ones are not made."""
        there = {topic.name for topic in self._catalog.topics()}
        absent = [
            NewTopic(name) async for name in by_turns(names) if name not in there and is_topic_name(name)
        ]
        return await creation.make(absent) if absent else {}

    async def _topic(
        self,
        version: int,
        name: str | None,
        topic_id: uuid.UUID | None,
        refused: Mapping[str, TopicRefusedError],
        turns: Turns,
    ) -> Message:
        await turns.give()
        if name is not None:
            topic = self._catalog.topic(name)
            error = UnknownTopicOrPartitionError if is_topic_name(name) else InvalidTopicError
            if name in refused and refused[name].error in _TOLD_REFUSALS:
                error = refused[name].error
        elif version >= _FIRST_VERSION_BY_TOPIC_ID:
            topic = None if topic_id is None else self._catalog.topic_by_id(topic_id)
            error = UnknownTopicIdError
        else:
            # Requests of versions 10 and 11 have a field for the ID that must not be used (KIP-516).
            topic, name, error = None, "", InvalidRequestError
        if topic is not None:
            return await self._described(version, topic, turns)
        return _Topic(version=version, error_code=error.errno, name=name, topic_id=topic_id)

    async def _described(self, version: int, topic: Topic, turns: Turns) -> Message:
        await turns.give(ANSWER_ELEMENT_BYTES)
        numbers = set(topic.partitions)
        if version >= _FIRST_VERSION_WITH_MISSING:
            numbers.update(range(min(max(numbers), MOST_PARTITIONS)))
        return _Topic(
            version=version,
            error_code=NoError.errno,
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.name in _INTERNAL_TOPICS,
            partitions=[
                await self._partition(version, number, topic.partitions.get(number), turns)
                for number in sorted(numbers)
            ],
        )

    async def _partition(
        self, version: int, number: int, partition: Partition | None, turns: Turns
    ) -> Message:
        """None: one that is not in the directory. It is told as one whose only replica is offline."""
        await turns.give(_PARTITION_BYTES)
        replicas = [self._node.id] * (_REPLICAS_AT_VERSION_0 if version == 0 else 1)
        is_there = partition is not None
        return _Topic.MetadataResponsePartition(
            version=version,
            error_code=(NoError if is_there else LeaderNotAvailableError).errno,
            partition_index=number,
            leader_id=self._node.id if is_there else _NO_LEADER,
            leader_epoch=UNKNOWN_LEADER_EPOCH if partition is None else partition.leader_epoch,
            replica_nodes=replicas,
            isr_nodes=replicas,
            offline_replicas=[] if is_there else replicas,
        )
