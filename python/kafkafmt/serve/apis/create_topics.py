"""CreateTopics: topics of this one broker, in the log directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kafka import errors
from kafka.admin import ConfigSourceType
from kafka.protocol.admin import CreateTopicsResponse

from kafkafmt.serve.node import Node
from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.topic_creation import TopicCreation, TopicRefusedError
from kafkafmt.serve.turns import by_turns

_UNSAID = -1
_REPLICAS = 1
_FIRST_VERSION_WITH_CONFIGS = 5  # KIP-525

_Result = CreateTopicsResponse.CreatableTopicResult


class CreateTopicsApi:
    """Answers CreateTopics. What is not said, a count of partitions or of replicas, is 1."""

    def __init__(self, creation: TopicCreation, node: Node) -> None:
        self._creation = creation
        self._node = node

    async def answer(self, request: Request) -> Message:
        times = Counter(topic.name for topic in request.body.topics)
        topics = {topic.name: topic async for topic in by_turns(request.body.topics)}
        return CreateTopicsResponse(
            version=request.version,
            topics=[await self._result(request, topic, times[name] > 1) for name, topic in topics.items()],
        )

    async def _result(self, request: Request, topic: Message, is_repeated: bool) -> Message:
        error: type[errors.BrokerResponseError] = errors.NoError
        message = None
        partitions = len(topic.assignments) or (
            1 if topic.num_partitions == _UNSAID else topic.num_partitions
        )
        configs = {config.name: config.value for config in topic.configs if config.value is not None}
        try:
            if is_repeated:
                raise TopicRefusedError(errors.InvalidRequestError, f"expected topic {topic.name!r} once")
            await self._make(request, topic, partitions, configs)
        except TopicRefusedError as refused:
            error, message = refused.error, str(refused)
        is_made = error is errors.NoError
        return _Result(
            version=request.version,
            name=topic.name,
            topic_id=self._creation.topic_id(topic.name) if is_made else None,
            error_code=error.errno,
            error_message=message,
            num_partitions=partitions if is_made else _UNSAID,
            replication_factor=_REPLICAS if is_made else _UNSAID,
            configs=_told(request.version, configs) if is_made else [],
        )

    async def _make(
        self, request: Request, topic: Message, partitions: int, configs: Mapping[str, str]
    ) -> None:
        self._check_replicas(topic)
        if request.version >= 1 and request.body.validate_only:
            self._creation.check(topic.name, partitions, configs)
        else:
            await self._creation.make(topic.name, partitions, configs)

    def _check_replicas(self, topic: Message) -> None:
        if not topic.assignments:
            if topic.replication_factor not in (_UNSAID, _REPLICAS):
                message = f"replication factor: expected {_REPLICAS}, found {topic.replication_factor}"
                raise TopicRefusedError(errors.InvalidReplicationFactorError, message)
            return
        numbers = sorted(assignment.partition_index for assignment in topic.assignments)
        brokers = {broker for assignment in topic.assignments for broker in assignment.broker_ids}
        if numbers != list(range(len(numbers))) or brokers != {self._node.id}:
            message = f"expected partitions 0 to {len(numbers) - 1}, each on broker {self._node.id} alone"
            raise TopicRefusedError(errors.InvalidReplicationAssignmentError, message)


def _told(version: int, configs: Mapping[str, str]) -> list[Message]:
    if version < _FIRST_VERSION_WITH_CONFIGS:
        return []
    return [
        _Result.CreatableTopicConfigs(
            version=version,
            name=name,
            value=value,
            read_only=True,
            config_source=ConfigSourceType.DYNAMIC_TOPIC_CONFIG,
            is_sensitive=False,
        )
        for name, value in configs.items()
    ]
