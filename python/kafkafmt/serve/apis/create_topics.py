"""CreateTopics: creates topics in the log directory, on this one broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kafka import errors
from kafka.admin import ConfigSourceType
from kafka.protocol.admin import CreateTopicsResponse

from kafkafmt.serve.topic_creation import NewTopic, TopicCreation, TopicRefusedError
from kafkafmt.server.node import Node
from kafkafmt.server.request import Message, Request
from kafkafmt.server.yielding import yielding_between

_UNSAID = -1
_REPLICAS = 1
_FIRST_VERSION_WITH_CONFIGS = 5  # KIP-525

_Result = CreateTopicsResponse.CreatableTopicResult


class CreateTopicsApi:
    """Answers CreateTopics. Partitions and replicas default to 1."""

    def __init__(self, creation: TopicCreation, node: Node) -> None:
        self._creation = creation
        self._node = node

    async def answer(self, request: Request) -> Message:
        asked, times = request.body.topics, Counter(topic.name for topic in request.body.topics)
        wanted: dict[str, NewTopic] = {}
        refused: dict[str, TopicRefusedError] = {}
        async for topic in yielding_between(asked):
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
                _refused(name, refused[name]) if name in refused else self._made(request, wanted[name])
                async for name in yielding_between(times)
            ],
        )

    def _made(self, request: Request, topic: NewTopic) -> Message:
        return _Result(
            name=topic.name,
            topic_id=self._creation.topic_id(topic.name),
            error_message=None,
            num_partitions=topic.partitions,
            replication_factor=_REPLICAS,
            configs=_config_messages(request.version, topic.configs),
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


def _refused(name: str, error: TopicRefusedError) -> Message:
    return _Result(name=name, error_code=error.error.errno, error_message=str(error))


def _new_topic(topic: Message) -> NewTopic:
    """Return the topic to create. Raises TopicRefusedError if a property is repeated or has no value."""
    configs = {config.name: config.value for config in topic.configs}
    if len(configs) < len(topic.configs):
        raise TopicRefusedError(errors.InvalidConfigurationError, "expected each config name once")
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        message = f"Null value not supported for topic configs: {','.join(nulls)[:300]}"
        raise TopicRefusedError(errors.InvalidConfigurationError, message)
    partitions = len(topic.assignments) or (1 if topic.num_partitions == _UNSAID else topic.num_partitions)
    return NewTopic(topic.name, partitions, configs)


def _config_messages(version: int, configs: Mapping[str, str]) -> list[Message]:
    if version < _FIRST_VERSION_WITH_CONFIGS:
        return []
    return [
        _Result.CreatableTopicConfigs(
            name=name,
            value=value,
            read_only=False,
            config_source=ConfigSourceType.DYNAMIC_TOPIC_CONFIG,
        )
        for name, value in configs.items()
    ]
