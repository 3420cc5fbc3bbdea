"""The configuration of topics that the endpoint applies.

The value of a property comes from the first of these that sets it:

1. the topics file (`--topics-file`), which the operator writes,
2. `topics.ini` in the log directory, which CreateTopics, AlterConfigs and a mirror write,
3. the endpoint's own option or default.

Files are read in threads, never in the event loop: `topics.ini` when a request finds it changed, the topics file when
it has changed, both at SIGHUP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog

from kafkafmt._util.ini import IniError
from kafkafmt.log.topic_configs import FileStamp, TopicConfig, TopicConfigFile, ensure_storable
from kafkafmt.log.topic_properties import (
    DOWNCONVERSION_ENABLE,
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
    boolean,
    check_property,
)
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.serve.options import ServeOptions
from kafkafmt.server.structured_logging import RateLimitedLog
from kafkafmt.server.topics_file import TopicsFile
from kafkafmt.storage import RemotePath
from kafkafmt.types import TimestampType

_log = structlog.get_logger()

# The broker's default: 1 MiB plus the overhead of a batch.
DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class EffectiveSettings(NamedTuple):
    """A topic's settings, by Kafka's names, in bytes. downconversion_enable: None: the endpoint's option applies."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    downconversion_enable: bool | None = None


# By Kafka's property names: the field of `EffectiveSettings`, and the function that parses the value.
_EFFECTIVE: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    MAX_MESSAGE_BYTES: ("max_message_bytes", int),
    SEGMENT_BYTES: ("segment_bytes", int),
    TIMESTAMP_TYPE: ("timestamp_type", _TIMESTAMP_TYPES.__getitem__),
    DOWNCONVERSION_ENABLE: ("downconversion_enable", boolean),
}
_DEFAULTS = EffectiveSettings()
_NO_CONFIGS: Mapping[str, str] = {}
# The most characters in the values of one topic. Kafka has no such limit; here each change writes all topics again.
MAX_CONFIG_CHARS = 16 * 1024


def topic_settings(configs: Mapping[str, str]) -> EffectiveSettings:
    """Return the properties that have an effect here. Raises ValueError for a value that Kafka does not accept."""
    found: dict[str, Any] = {}
    for name, (field, parse) in _EFFECTIVE.items():
        if (value := configs.get(name)) is not None:
            check_property(name, value)
            found[field] = parse(value)
    return EffectiveSettings(**found)


def ensure_valid(name: str, topic: TopicConfig) -> None:
    """Raise ValueError for a configuration that is too large or has invalid properties."""
    size = sum(map(len, topic.configs.values()))
    if size > MAX_CONFIG_CHARS:
        raise ValueError(f"expected values of {MAX_CONFIG_CHARS} characters at most, found {size}")
    for key, value in topic.configs.items():
        check_property(key, value)
    ensure_storable(name, topic)


class _Topic(NamedTuple):
    """A topic. kept: its section in `topics.ini`; configs: its effective values; settings: those used here."""

    kept: TopicConfig | None
    configs: Mapping[str, str]
    settings: EffectiveSettings


class Configuration(NamedTuple):
    """The topics file and `topics.ini`, read together. stamp: of `topics.ini`."""

    topics_file: TopicsFile | None
    topics: Mapping[str, _Topic]
    stamp: FileStamp


class TopicConfigs:
    """The configuration of topics. For the tasks of one event loop; `read` and `file.update` are for threads.

    While `topics.ini` is malformed or cannot be read, the configuration does not change and an error is logged.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.file = TopicConfigFile(options.directory)
        self._is_remote = isinstance(self.file.path, RemotePath)
        self._downconversion_enable = options.downconversion_enable
        self._current = Configuration(options.topics_file, {}, (-1, -1, -1))
        self._tried: FileStamp | None = None
        self._reading = asyncio.Lock()
        self._limited_log = RateLimitedLog()

    def configs(self, topic: str) -> Mapping[str, str]:
        """Return a topic's configuration from the two files, by Kafka's property names."""
        found = self._current.topics.get(topic)
        return _NO_CONFIGS if found is None else found.configs

    def overrides(self, topic: str) -> Mapping[str, str]:
        """Return what the topics file sets for a topic, by Kafka's property names. Nothing else changes that."""
        topics_file = self._current.topics_file
        return _NO_CONFIGS if topics_file is None else topics_file.configs.get(topic, _NO_CONFIGS)

    def settings(self, topic: str) -> EffectiveSettings:
        """Return the settings that apply to a topic."""
        found = self._current.topics.get(topic)
        return _DEFAULTS if found is None else found.settings

    def converts_down(self, topic: str) -> bool:
        """Are a topic's records converted for consumers that support only older formats (KIP-283)?"""
        said = self.settings(topic).downconversion_enable
        return self._downconversion_enable if said is None else said

    def partition_counts(self) -> dict[str, int]:
        """Return the numbers of partitions that `topics.ini` states, by topic."""
        return {
            name: topic.kept.partitions
            for name, topic in self._current.topics.items()
            if topic.kept is not None and topic.kept.partitions is not None
        }

    async def refresh(self) -> None:
        """Read `topics.ini` again, in a thread, if it has changed."""
        if self.file.stamp() in (self._current.stamp, self._tried):
            return
        async with self._reading:
            if (stamp := self.file.stamp()) in (self._current.stamp, self._tried):
                return  # another request has read it meanwhile
            try:
                self.apply(await asyncio.to_thread(self.read))
            except (IniError, OSError) as error:
                if self._is_remote or isinstance(
                    error, IniError
                ):  # a local file may be readable at the next request
                    self._tried = stamp
                event = "the configuration of topics cannot be read"
                self._limited_log.write(_log.error, str(error), event, error=str(error))

    async def reload(self, topics_file: TopicsFile | None = None) -> None:
        """Read `topics.ini` in a thread, and apply it with a topics file; None: the current one. Raises as `read`.

        A read that is under way ends first: it applies the topics file that it began with.
        """
        async with self._reading:
            self.apply(await asyncio.to_thread(self.read, topics_file))

    def read(self, topics_file: TopicsFile | None = None) -> Configuration:
        """Return the configuration from `topics.ini`, overridden by a topics file, without applying it.

        topics_file: None: the current one. Raises OSError, and IniError for a malformed file or invalid value.
        """
        before = self._current
        above = before.topics_file if topics_file is None else topics_file
        known = before.topics if above is before.topics_file else {}
        given = {} if above is None else above.configs
        stamp = self.file.stamp()
        kept = self.file.read()
        topics = {}
        for name in (*kept, *(name for name in given if name not in kept)):
            found = known.get(name)
            config = kept.get(name)
            if found is None or found.kept is not config:
                found = self._topic(name, config, given.get(name))
            topics[name] = found
        return Configuration(above, topics, stamp)

    def apply(self, configuration: Configuration) -> None:
        """Use this configuration from now on."""
        self._current, self._tried = configuration, None

    def _topic(self, name: str, kept: TopicConfig | None, given: Mapping[str, str] | None) -> _Topic:
        configs = _NO_CONFIGS if kept is None else kept.configs
        try:
            topic_settings(configs)
        except ValueError as error:
            raise IniError(f"{self.file.path}, [{name}]: {error}") from None
        if given:
            configs = {**configs, **given}
        return _Topic(kept, configs, topic_settings(configs))
