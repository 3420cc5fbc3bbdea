"""DescribeConfigs: the properties that mean something here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResourceType, ConfigSourceType, ConfigType
from kafka.errors import InvalidRequestError, UnknownTopicOrPartitionError
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.api_key import ApiKey

from kafkafmt.log.topic_configs import TopicConfig, set_topic_config
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.request import Handler
from kafkafmt.server.topics_file import TopicsFile
from kafkafmt.server.wire import SUPPORTED
from serve.apis.asking import ask
from serve.apis.conftest import made_apis


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
        default, topic = ConfigSourceType.DEFAULT_CONFIG, ConfigSourceType.DYNAMIC_TOPIC_CONFIG
        assert [config.config_source for config in configs] == [default, topic, default]
    if version >= 3:
        assert {config.config_type for config in configs} == {ConfigType.BOOLEAN}
        assert all("KIP-283" in config.documentation for config in configs)


@pytest.mark.parametrize(
    ("option", "kept", "given", "value", "source"),
    [
        (True, None, None, "true", ConfigSourceType.DEFAULT_CONFIG),
        (False, None, None, "false", ConfigSourceType.STATIC_BROKER_CONFIG),
        (True, "false", None, "false", ConfigSourceType.DYNAMIC_TOPIC_CONFIG),
        (False, "true", "false", "false", ConfigSourceType.DYNAMIC_TOPIC_CONFIG),
        (False, "false", "true", "true", ConfigSourceType.DYNAMIC_TOPIC_CONFIG),
    ],
)
def test_configs_when_options_and_files_say_something_then_value_and_source_are_those_that_count(
    log_directory: Path, option: bool, kept: str | None, given: str | None, value: str, source: int
) -> None:
    key = "message.downconversion.enable"
    if kept is not None:
        set_topic_config(log_directory, "none", TopicConfig(1, {key: kept, "retention.ms": "5"}))
    file = None if given is None else TopicsFile(Path("topics"), {"none": {key: given}})
    apis = made_apis(ServeOptions(log_directory, downconversion_enable=option, topics_file=file))
    (result,) = ask(apis, request(4, (ConfigResourceType.TOPIC, "none", None))).results
    told = {config.name: (config.value, config.config_source) for config in result.configs}
    assert told.pop(key) == (value, source)
    assert told == ({} if kept is None else {"retention.ms": ("5", ConfigSourceType.DYNAMIC_TOPIC_CONFIG)})


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
