"""DescribeConfigs: the few properties of topics and of the broker that mean something here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafka.admin import ConfigResourceType, ConfigSourceType, ConfigType
from kafka.errors import InvalidRequestError, NoError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeConfigsResponse

from kafkafmt.log.appending import MAX_INT32
from kafkafmt.serve.node import Node
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.request import Message, Request
from kafkafmt.serve.request_memory import ANSWER_ELEMENT_BYTES, ENCODED_COPIES
from kafkafmt.serve.topic_properties import (
    DOWNCONVERSION_ENABLE,
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
)
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.serve.turns import Turns

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog

_Result = DescribeConfigsResponse.DescribeConfigsResult

_DYNAMIC = int(ConfigSourceType.DYNAMIC_TOPIC_CONFIG)

# A broker takes one batch of v2 for a partition in a request; here they may be as many as a request holds (KIP-712).
MAX_BATCHES_PER_REQUEST = "kafkafmt.max.batches.per.request"
_DOCUMENTATION = {
    DOWNCONVERSION_ENABLE: "Whether records are converted for consumers that know older formats only (KIP-283).",
    MAX_MESSAGE_BYTES: "The largest batch that is taken from a producer.",
    SEGMENT_BYTES: "The size at which a segment of the log is closed.",
    TIMESTAMP_TYPE: "Whose time records have: CreateTime, their producer's, or LogAppendTime, the endpoint's.",
    MAX_BATCHES_PER_REQUEST: "How many batches a request to produce may have for one partition (KIP-712).",
}


class _Property(NamedTuple):
    name: str
    value: str
    config_type: int
    source: int
    documentation: str


class DescribeConfigsApi:
    """Answers DescribeConfigs for topics and the broker. Nothing can be altered."""

    def __init__(self, catalog: Catalog, node: Node, options: ServeOptions, topics: TopicConfigs) -> None:
        self._catalog = catalog
        self._node = node
        self._options = options
        self._topics = topics

    async def answer(self, request: Request) -> Message:
        await self._topics.refresh()
        turns = Turns(request.memory)
        return DescribeConfigsResponse(
            version=request.version,
            results=[await self._result(request, resource, turns) for resource in request.body.resources],
        )

    async def _result(self, request: Request, resource: Message, turns: Turns) -> Message:
        name = resource.resource_name
        code, message, properties = NoError.errno, None, []
        if resource.resource_type == ConfigResourceType.TOPIC:
            if self._catalog.topic(name) is None:
                code, message = UnknownTopicOrPartitionError.errno, f"there is no topic {name!r}"
            else:
                properties = self._topic_properties(name)
        elif resource.resource_type == ConfigResourceType.BROKER and name in ("", str(self._node.id)):
            properties = self._broker_properties() if name else []
        else:
            code = InvalidRequestError.errno
            message = f"resource {name!r} of type {resource.resource_type}: known are topics and broker {self._node.id}"
        keys = resource.configuration_keys
        await turns.give(sum(map(_told_bytes, properties)))
        return _Result(
            version=request.version,
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=name,
            configs=[self._described(request, one) for one in properties if keys is None or one.name in keys],
        )

    def _topic_properties(self, topic: str) -> list[_Property]:
        told = self._topics.configs(topic)
        enable = self._topics.converts_down(topic)
        source = self._enable_source() if DOWNCONVERSION_ENABLE not in told else _DYNAMIC
        kept = [_kept(name, value) for name, value in sorted(told.items()) if name != DOWNCONVERSION_ENABLE]
        return [
            _boolean(DOWNCONVERSION_ENABLE, enable, source, _DOCUMENTATION[DOWNCONVERSION_ENABLE]),
            *kept,
            *self._producing_properties(topic, told),
        ]

    def _enable_source(self) -> int:
        """Where the endpoint's own value of `log.message.downconversion.enable` is from."""
        is_default = self._options.downconversion_enable == ServeOptions.downconversion_enable
        return int(ConfigSourceType.DEFAULT_CONFIG if is_default else ConfigSourceType.STATIC_BROKER_CONFIG)

    def _producing_properties(self, topic: str, told: Mapping[str, str]) -> list[_Property]:
        """What producers are held to, where the topic's configuration does not say it already."""
        if not self._options.allow_produce:
            return []
        settings = self._topics.settings(topic)
        defaults = {
            MAX_MESSAGE_BYTES: str(settings.max_message_bytes),
            SEGMENT_BYTES: str(settings.segment_bytes),
            TIMESTAMP_TYPE: "CreateTime",
            MAX_BATCHES_PER_REQUEST: str(MAX_INT32),
        }
        return [
            _Property(name, value, _config_type(name), ConfigSourceType.DEFAULT_CONFIG, _DOCUMENTATION[name])
            for name, value in defaults.items()
            if name not in told
        ]

    def _broker_properties(self) -> list[_Property]:
        return [
            _boolean(
                "log.message.downconversion.enable",
                self._options.downconversion_enable,
                self._enable_source(),
                "What message.downconversion.enable is for topics that do not say otherwise.",
            )
        ]

    def _described(self, request: Request, one: _Property) -> Message:
        return _Result.DescribeConfigsResourceResult(
            version=request.version,
            name=one.name,
            value=one.value,
            read_only=True,
            config_source=one.source,
            is_default=one.source != _DYNAMIC,
            config_type=one.config_type,
            documentation=one.documentation if request.body.include_documentation else None,
        )


def _told_bytes(one: _Property) -> int:
    """What a property takes in the answer, as an object and encoded."""
    return ANSWER_ELEMENT_BYTES + ENCODED_COPIES * (len(one.name) + len(one.value))


def _kept(name: str, value: str) -> _Property:
    """What is set for a topic."""
    return _Property(name, value, _config_type(name), _DYNAMIC, _DOCUMENTATION.get(name, ""))


def _config_type(name: str) -> int:
    integers = (MAX_MESSAGE_BYTES, SEGMENT_BYTES, MAX_BATCHES_PER_REQUEST)
    return int(ConfigType.INT if name in integers else ConfigType.STRING)


def _boolean(name: str, value: bool, source: int, documentation: str) -> _Property:
    return _Property(name, str(value).lower(), ConfigType.BOOLEAN, source, documentation)
