"""DescribeConfigs: the properties that mean something here."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.admin import ConfigResourceType, ConfigSourceType, ConfigType
from kafka.errors import InvalidRequestError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.api_key import ApiKey

from kafkafmt.serve.request import Handler
from kafkafmt.serve.wire import SUPPORTED
from serve.apis.asking import ask


def request(version: int, *resources: tuple[int, str, list[str] | None]) -> Any:
    return DescribeConfigsRequest(
        version=version,
        include_documentation=True,
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                version=version, resource_type=kind, resource_name=name, configuration_keys=keys
            )
            for kind, name, keys in resources
        ],
    )


@pytest.mark.parametrize("version", SUPPORTED[ApiKey.DescribeConfigs])
def test_configs_of_topics_say_whether_they_are_converted(apis: dict[int, Handler], version: int) -> None:
    asked = [(ConfigResourceType.TOPIC, name, None) for name in ("none", "gzip", "lz4")]
    configs = [config for result in ask(apis, request(version, *asked)).results for config in result.configs]

    assert {config.name for config in configs} == {"message.downconversion.enable"}
    assert [config.value for config in configs] == ["true", "false", "true"]
    assert all(config.read_only for config in configs)
    if version == 0:
        assert [config.is_default for config in configs] == [True, False, True]
    else:
        broker, topic = ConfigSourceType.STATIC_BROKER_CONFIG, ConfigSourceType.DYNAMIC_TOPIC_CONFIG
        assert [config.config_source for config in configs] == [broker, topic, broker]
    if version >= 3:
        assert {config.config_type for config in configs} == {ConfigType.BOOLEAN}
        assert all("KIP-283" in config.documentation for config in configs)


def test_configs_are_those_that_were_asked_for(apis: dict[int, Handler]) -> None:
    name = "log.message.downconversion.enable"
    asked = [(ConfigResourceType.BROKER, "0", keys) for keys in (None, [name, "no.such"], [], ["no.such"])]
    results = ask(apis, request(4, *asked)).results
    assert [[config.name for config in result.configs] for result in results] == [[name], [name], [], []]


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (ConfigResourceType.TOPIC, "not-there", UnknownTopicOrPartitionError),
        (ConfigResourceType.BROKER, "7", InvalidRequestError),
        (ConfigResourceType.BROKER_LOGGER, "0", InvalidRequestError),
    ],
)
def test_configs_of_what_is_not_there(apis: dict[int, Handler], kind: int, name: str, error: Any) -> None:
    (result,) = ask(apis, request(4, (kind, name, None))).results
    assert (result.error_code, result.configs) == (error.errno, [])
    assert repr(name) in result.error_message
