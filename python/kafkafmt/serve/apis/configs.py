"""DescribeConfigs: the configuration of topics, and the property of the broker that has an effect here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafka.admin import ConfigResourceType, ConfigSourceType, ConfigType
from kafka.errors import InvalidRequestError, NoError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeConfigsResponse

from kafkafmt.log.batch_writer import MAX_INT32
from kafkafmt.log.topic_properties import (
    DOWNCONVERSION_ENABLE,
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
)
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_settings import TopicConfigs
from kafkafmt.server.node import Node
from kafkafmt.server.request import Message, Request
from kafkafmt.server.request_memory import ANSWER_ELEMENT_BYTES, ENCODED_COPIES
from kafkafmt.server.yielding import YieldBudget

if TYPE_CHECKING:
    from kafkafmt.serve.catalog import Catalog

_Result = DescribeConfigsResponse.DescribeConfigsResult

_DYNAMIC = int(ConfigSourceType.DYNAMIC_TOPIC_CONFIG)

# A broker accepts one v2 batch for a partition in a request; here the size of a request is the only limit (KIP-712).
MAX_BATCHES_PER_REQUEST = "kafkafmt.max.batches.per.request"
_DOCUMENTATION = {
    DOWNCONVERSION_ENABLE: "Whether records are converted for consumers that support only older formats (KIP-283).",
    MAX_MESSAGE_BYTES: "The largest batch that is accepted from a producer.",
    SEGMENT_BYTES: "The size at which a segment of the log is closed.",
    TIMESTAMP_TYPE: "Which timestamps records have: CreateTime, the producer's, or LogAppendTime, the endpoint's.",
    MAX_BATCHES_PER_REQUEST: "How many batches a Produce request may have for one partition (KIP-712).",
}


class _Property(NamedTuple):
    """is_alterable: whether AlterConfigs changes it."""

    name: str
    value: str
    config_type: int
    source: int
    documentation: str
    is_alterable: bool = False


class DescribeConfigsApi:
    """Answers DescribeConfigs for topics and the broker."""

    def __init__(self, catalog: Catalog, node: Node, options: ServeOptions, topics: TopicConfigs) -> None:
        self._catalog = catalog
        self._node = node
        self._options = options
        self._topics = topics

    async def answer(self, request: Request) -> Message:
        await self._topics.refresh()
        yields = YieldBudget(request.memory)
        return DescribeConfigsResponse(
            version=request.version,
            results=[await self._result(request, resource, yields) for resource in request.body.resources],
        )

    async def _result(self, request: Request, resource: Message, yields: YieldBudget) -> Message:
        name = resource.resource_name
        code, message, properties = NoError.errno, None, []
        if resource.resource_type == ConfigResourceType.TOPIC:
            await self._catalog.update(name)
            if self._catalog.topic(name) is None:
                code, message = UnknownTopicOrPartitionError.errno, f"there is no topic {name!r}"
            else:
                properties = self._alterable(name, self._topic_properties(name))
        elif resource.resource_type == ConfigResourceType.BROKER and name in ("", str(self._node.id)):
            properties = self._broker_properties() if name else []
        else:
            code = InvalidRequestError.errno
            message = f"resource {name!r} of type {resource.resource_type}: expected a topic or broker {self._node.id}"
        keys = resource.configuration_keys
        await yields.checkpoint(sum(map(_answer_bytes, properties)))
        return _Result(
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=name,
            configs=[self._described(request, one) for one in properties if keys is None or one.name in keys],
        )

    def _topic_properties(self, topic: str) -> list[_Property]:
        given = self._topics.configs(topic)
        enable = self._topics.converts_down(topic)
        source = self._enable_source() if DOWNCONVERSION_ENABLE not in given else _DYNAMIC
        kept = [
            _topic_property(name, value)
            for name, value in sorted(given.items())
            if name != DOWNCONVERSION_ENABLE
        ]
        return [
            _boolean(DOWNCONVERSION_ENABLE, enable, source, _DOCUMENTATION[DOWNCONVERSION_ENABLE]),
            *kept,
            *self._producing_properties(topic, given),
        ]

    def _alterable(self, topic: str, properties: list[_Property]) -> list[_Property]:
        """Return the properties, with those marked that AlterConfigs changes: not those of the topics file."""
        if not self._options.alters_configs:
            return properties
        fixed = {*self._topics.overrides(topic), MAX_BATCHES_PER_REQUEST}
        return [one._replace(is_alterable=one.name not in fixed) for one in properties]

    def _enable_source(self) -> int:
        """Return the config source of the endpoint's own `log.message.downconversion.enable`."""
        is_default = self._options.downconversion_enable == ServeOptions.downconversion_enable
        return int(ConfigSourceType.DEFAULT_CONFIG if is_default else ConfigSourceType.STATIC_BROKER_CONFIG)

    def _producing_properties(self, topic: str, given: Mapping[str, str]) -> list[_Property]:
        """Return the limits for producers that the topic's configuration does not set; none on a read-only endpoint."""
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
            if name not in given
        ]

    def _broker_properties(self) -> list[_Property]:
        return [
            _boolean(
                "log.message.downconversion.enable",
                self._options.downconversion_enable,
                self._enable_source(),
                "The value of message.downconversion.enable for topics that do not set it.",
            )
        ]

    def _described(self, request: Request, one: _Property) -> Message:
        return _Result.DescribeConfigsResourceResult(
            name=one.name,
            value=one.value,
            read_only=not one.is_alterable,
            config_source=one.source,
            is_default=one.source != _DYNAMIC,
            config_type=one.config_type,
            documentation=one.documentation if request.body.include_documentation else None,
        )


def _answer_bytes(one: _Property) -> int:
    """Return the bytes that a property takes in the answer, as an object and encoded."""
    return ANSWER_ELEMENT_BYTES + ENCODED_COPIES * (len(one.name) + len(one.value))


def _topic_property(name: str, value: str) -> _Property:
    """Return a property that the configuration of a topic sets."""
    return _Property(name, value, _config_type(name), _DYNAMIC, _DOCUMENTATION.get(name, ""))


def _config_type(name: str) -> int:
    integers = (MAX_MESSAGE_BYTES, SEGMENT_BYTES, MAX_BATCHES_PER_REQUEST)
    return int(ConfigType.INT if name in integers else ConfigType.STRING)


def _boolean(name: str, value: bool, source: int, documentation: str) -> _Property:
    return _Property(name, str(value).lower(), ConfigType.BOOLEAN, source, documentation)
