"""What the configuration of topics says that the endpoint goes by: `topics.ini`, read again when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import structlog

from kafkafmt.ini import IniError
from kafkafmt.log.appending import MAX_INT32
from kafkafmt.log.topic_configs import FILE_NAME, TopicConfig, read_topic_configs
from kafkafmt.log.writer import DEFAULT_SEGMENT_BYTES
from kafkafmt.serve.logs import Seldom
from kafkafmt.types import TimestampType

_log = structlog.get_logger()

MAX_MESSAGE_BYTES, SEGMENT_BYTES, TIMESTAMP_TYPE = (
    "max.message.bytes",
    "segment.bytes",
    "message.timestamp.type",
)
# The broker's default: 1 MiB, and room for the overhead of a batch.
DEFAULT_MAX_MESSAGE_BYTES = 1024 * 1024 + 12
_TIMESTAMP_TYPES = {
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}


class TopicSettings(NamedTuple):
    """By Kafka's names. Sizes are in bytes."""

    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


def topic_settings(configs: Mapping[str, str]) -> TopicSettings:
    """What a topic's configuration says; raises ValueError for a value that makes no sense."""
    found = TopicSettings()
    for name, value in configs.items():
        if name == MAX_MESSAGE_BYTES:
            found = found._replace(max_message_bytes=_integer(name, value, least=0))
        elif name == SEGMENT_BYTES:
            found = found._replace(segment_bytes=_integer(name, value, least=14))
        elif name == TIMESTAMP_TYPE:
            if value not in _TIMESTAMP_TYPES:
                raise ValueError(f"{name}: expected CreateTime or LogAppendTime, found {value!r}")
            found = found._replace(timestamp_type=_TIMESTAMP_TYPES[value])
    return found


def _integer(name: str, value: str, *, least: int) -> int:
    if not (value.isascii() and value.isdecimal() and least <= int(value) <= MAX_INT32):
        raise ValueError(f"{name}: expected {least} to 2^31 - 1, found {value!r}")
    return int(value)


@dataclass
class TopicConfigs:
    """The topics of `topics.ini`. While the file is none, what it said before holds, and a log tells why."""

    directory: Path
    _topics: dict[str, TopicConfig] = field(default_factory=dict)
    _settings: dict[str, TopicSettings] = field(default_factory=dict)
    _stamp: tuple[int, int, int] | None = None
    _seldom: Seldom = field(default_factory=Seldom)

    def configs(self, topic: str) -> Mapping[str, str]:
        """A topic's configuration by Kafka's names, as far as the file tells it."""
        self._refresh()
        return self._topics.get(topic, TopicConfig()).configs

    def settings(self, topic: str) -> TopicSettings:
        self._refresh()
        return self._settings.get(topic, TopicSettings())

    def partition_counts(self) -> dict[str, int]:
        """How many partitions the file says that a topic has, of those of which it says that."""
        self._refresh()
        return {
            name: topic.partitions for name, topic in self._topics.items() if topic.partitions is not None
        }

    def read(self) -> None:
        """Read the file. Raises IniError and OSError, and ValueError for a value that makes no sense."""
        self._stamp = self._stamp_now()
        topics = read_topic_configs(self.directory)
        settings = {}
        for name, topic in topics.items():
            try:
                settings[name] = topic_settings(topic.configs)
            except ValueError as error:
                raise IniError(f"{self.directory / FILE_NAME}, [{name}]: {error}") from None
        self._topics, self._settings = topics, settings

    def _refresh(self) -> None:
        if self._stamp_now() == self._stamp:
            return
        try:
            self.read()
        except (IniError, OSError) as error:
            if times := self._seldom.times(str(error)):
                _log.error("the configuration of topics cannot be read", error=str(error), times=times)

    def _stamp_now(self) -> tuple[int, int, int]:
        try:
            found = (self.directory / FILE_NAME).stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_ino, found.st_size, found.st_mtime_ns)
