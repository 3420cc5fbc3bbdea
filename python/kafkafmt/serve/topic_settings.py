"""The configuration of topics that the endpoint goes by.

Of one property of a topic the first of these counts that says something:

1. the topics file (`--topics-file`), which is the operator's,
2. `topics.ini` in the log directory, which CreateTopics and a mirror write,
3. the endpoint's own option or default.

Files are read in threads, never in the event loop: `topics.ini` again when a request finds it changed, both at SIGHUP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

import structlog

from kafkafmt.ini import IniError
from kafkafmt.log.topic_configs import FileStamp, TopicConfig, TopicConfigFile
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.serve.logs import Seldom
from kafkafmt.serve.options import ServeOptions
from kafkafmt.serve.topic_properties import (
    DOWNCONVERSION_ENABLE,
    MAX_MESSAGE_BYTES,
    SEGMENT_BYTES,
    TIMESTAMP_TYPE,
    boolean,
    check_property,
)
from kafkafmt.serve.topics_file import TopicsFile
from kafkafmt.types import TimestampType

_log = structlog.get_logger()

# The broker's default: 1 MiB, and room for the overhead of a batch.
DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class TopicSettings(NamedTuple):
    """By Kafka's names. Sizes are in bytes; downconversion_enable is None where the endpoint's option says it."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    downconversion_enable: bool | None = None


_DEFAULTS = TopicSettings()
_NO_CONFIGS: Mapping[str, str] = {}


def topic_settings(configs: Mapping[str, str]) -> TopicSettings:
    """What of a topic's configuration has an effect here; raises ValueError for a value that Kafka does not take."""
    found = _DEFAULTS
    for name in (MAX_MESSAGE_BYTES, SEGMENT_BYTES, TIMESTAMP_TYPE, DOWNCONVERSION_ENABLE):
        value = configs.get(name)
        if value is None:
            continue
        check_property(name, value)
        if name == MAX_MESSAGE_BYTES:
            found = found._replace(max_message_bytes=int(value))
        elif name == SEGMENT_BYTES:
            found = found._replace(segment_bytes=int(value))
        elif name == TIMESTAMP_TYPE:
            found = found._replace(timestamp_type=_TIMESTAMP_TYPES[value])
        else:
            found = found._replace(downconversion_enable=boolean(value))
    return found


class _Topic(NamedTuple):
    """A topic: what `topics.ini` says of it, the configuration that counts, and what of that has an effect."""

    kept: TopicConfig | None
    configs: Mapping[str, str]
    settings: TopicSettings


class Configuration(NamedTuple):
    """The topics file and `topics.ini` as they were read together."""

    topics_file: TopicsFile | None
    topics: Mapping[str, _Topic]
    stamp: FileStamp


class TopicConfigs:
    """The configuration of topics. For the tasks of one event loop; `read` and `update` are for threads.

    While a file is malformed the configuration stays what it was, and a log tells why.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.file = TopicConfigFile(options.directory)
        self._downconversion_enable = options.downconversion_enable
        self._current = Configuration(options.topics_file, {}, (-1, -1, -1))
        self._tried: FileStamp | None = None
        self._reading = asyncio.Lock()
        self._seldom = Seldom()

    def configs(self, topic: str) -> Mapping[str, str]:
        """A topic's configuration by Kafka's names, as far as the files tell it."""
        found = self._current.topics.get(topic)
        return _NO_CONFIGS if found is None else found.configs

    def settings(self, topic: str) -> TopicSettings:
        found = self._current.topics.get(topic)
        return _DEFAULTS if found is None else found.settings

    def converts_down(self, topic: str) -> bool:
        """Are a topic's records converted for consumers that know older formats only (KIP-283)?"""
        said = self.settings(topic).downconversion_enable
        return self._downconversion_enable if said is None else said

    def partition_counts(self) -> dict[str, int]:
        """How many partitions `topics.ini` says that a topic has, of those of which it says that."""
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
                return  # read meanwhile, for another request
            try:
                self.adopt(await asyncio.to_thread(self.read))
            except (IniError, OSError) as error:
                self._tried = stamp
                if times := self._seldom.times(str(error)):
                    _log.error("the configuration of topics cannot be read", error=str(error), times=times)

    def read(self, topics_file: TopicsFile | None = None) -> Configuration:
        """Read `topics.ini`, if it has changed, below a topics file; None: the one there is. Changes nothing.

        Raises IniError, also for a value that Kafka does not take, and OSError.
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

    def adopt(self, configuration: Configuration) -> None:
        """Go by what was read from now on."""
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
