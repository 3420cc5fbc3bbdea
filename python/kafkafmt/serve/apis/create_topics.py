"""CreateTopics: topics of this one broker, in the log directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kafka import errors
from kafka.admin import ConfigSourceType
from kafka.protocol.admin import CreateTopicsResponse

from kafkafmt.serve.node import Node
from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.topic_creation import NewTopic, TopicCreation, TopicRefusedError
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
        asked, times = request.body.topics, Counter(topic.name for topic in request.body.topics)
        wanted: dict[str, NewTopic] = {}
        refused: dict[str, TopicRefusedError] = {}
        async for topic in by_turns(asked):
            try:
                if times[topic.name] > 1:
                    message = f"expected topic {topic.name!r} once"
                    raise TopicRefusedError(errors.InvalidRequestError, message)
                self._check_replicas(topic)
                wanted[topic.name] = _new_topic(topic)
            except TopicRefusedError as error:
                refused[topic.name] = error
        validate_only = request.version >= 1 and request.body.validate_only
        refused |= await self._creation.make(list(wanted.values()), validate_only=validate_only)
        return CreateTopicsResponse(
            version=request.version,
            topics=[
                self._refused(request, name, refused[name])
                if name in refused
                else self._made(request, wanted[name])
                async for name in by_turns(times)
            ],
        )

    def _refused(self, request: Request, name: str, error: TopicRefusedError) -> Message:
        return _Result(
            version=request.version,
            name=name,
            topic_id=None,
            error_code=error.error.errno,
            error_message=str(error),
            num_partitions=_UNSAID,
            replication_factor=_UNSAID,
            configs=[],
        )

    def _made(self, request: Request, topic: NewTopic) -> Message:
        return _Result(
            version=request.version,
            name=topic.name,
            topic_id=self._creation.topic_id(topic.name),
            error_code=errors.NoError.errno,
            error_message=None,
            num_partitions=topic.partitions,
            replication_factor=_REPLICAS,
            configs=_told(request.version, topic.configs),
        )

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


def _new_topic(topic: Message) -> NewTopic:
    """Raises TopicRefusedError for a configuration that has a name twice, or one without a value."""
    configs = {config.name: config.value for config in topic.configs}
    if len(configs) < len(topic.configs):
        raise TopicRefusedError(errors.InvalidConfigurationError, "expected each config name once")
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        message = f"Null value not supported for topic configs: {','.join(nulls)[:300]}"
        raise TopicRefusedError(errors.InvalidConfigurationError, message)
    partitions = len(topic.assignments) or (1 if topic.num_partitions == _UNSAID else topic.num_partitions)
    return NewTopic(topic.name, partitions, configs)


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
