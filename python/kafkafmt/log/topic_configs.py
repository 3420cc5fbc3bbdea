"""What is to be known of topics beside their logs: how many partitions each has, and its configuration.

An INI, `topics.ini`, in a log directory, with Kafka's own names:

[orders]
partitions = 12
message.timestamp.type = LogAppendTime
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import replace_file
from kafkafmt.ini import Section, read_ini
from kafkafmt.log.writer import locked_folder

FILE_NAME = "topics.ini"
FileStamp: TypeAlias = tuple[int, int, int]

_PARTITIONS = "partitions"
_MOST_DIGITS = 10
_SHOWN = 100  # characters of a wrong value that an error shows
_ABSENT: FileStamp = (0, 0, 0)
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)


def is_topic_name(name: str) -> bool:
    """Does Kafka take it for a topic's name?

    >>> is_topic_name("page-views.v2"), is_topic_name(".."), is_topic_name("a/b")
    (True, False, False)
    """
    return _TOPIC_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class TopicConfig:
    """A topic: partitions, None where only its folders tell how many; configs: values by Kafka's name of each."""

    partitions: int | None = None
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class TopicConfigFile:
    """`topics.ini` of a log directory. It is parsed again only after it changed, and replaced as a whole.

    Safe for threads: `update` excludes other writers of any process by the lock of the folder.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.path = Path(directory, FILE_NAME)
        self._known: tuple[FileStamp, dict[str, TopicConfig]] | None = None

    def stamp(self) -> FileStamp:
        """What tells one state of the file from another; one `stat`, no reading."""
        try:
            return _stamp(self.path.stat())
        except OSError:
            return _ABSENT

    def read(self) -> Mapping[str, TopicConfig]:
        """Return what the file says of each topic that it names; nothing if there is no file.

        Raises IniError, which names file and line, and OSError.
        """
        known, stamp = self._known, self.stamp()
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            sections = read_ini(self.path)
        except FileNotFoundError:
            sections = []
        topics = {section.name: topic_config(section) for section in sections}
        self._known = stamp, topics
        return topics

    def update(self, change: Callable[[dict[str, TopicConfig]], Mapping[str, TopicConfig]]) -> None:
        """Replace the file, at once and durably, by what `change` makes of its topics.

        Comments in it are lost. Raises IniError for a malformed file, ValueError for a name or a value that an INI
        cannot keep, DirectoryLockedError if a broker runs on the directory, and OSError; the file stays as it was then.
        """
        directory = self.path.parent
        with lock_log_directory(directory), locked_folder(directory):
            before = self.read()
            after = dict(change(dict(before)))
            if after == before and self.path.exists():
                return
            text = "\n".join(_section(name, topic) for name, topic in sorted(after.items()))
            self._known = _stamp(replace_file(self.path, text.encode())), after


def read_topic_configs(directory: str | os.PathLike[str]) -> Mapping[str, TopicConfig]:
    """As `TopicConfigFile.read`."""
    return TopicConfigFile(directory).read()


def update_topic_configs(
    directory: str | os.PathLike[str],
    change: Callable[[dict[str, TopicConfig]], Mapping[str, TopicConfig]],
) -> None:
    """As `TopicConfigFile.update`."""
    TopicConfigFile(directory).update(change)


def set_topic_config(directory: str | os.PathLike[str], name: str, topic: TopicConfig) -> None:
    """Set what the file says of one topic; of the others it says what it said. Raises as `TopicConfigFile.update`."""
    update_topic_configs(directory, lambda topics: {**topics, name: topic})


def _stamp(found: os.stat_result) -> FileStamp:
    return found.st_ino, found.st_size, found.st_mtime_ns


def topic_config(section: Section) -> TopicConfig:
    """Return what a section says of its topic. Raises IniError."""
    if not is_topic_name(section.name):
        raise section.error(f"expected the name of a topic, found {section.name!r}")
    configs = dict(section.properties)
    partitions = configs.pop(_PARTITIONS, None)
    if partitions is None:
        return TopicConfig(None, configs)
    is_number = partitions.isascii() and partitions.isdecimal() and len(partitions) <= _MOST_DIGITS
    if not (is_number and 0 < int(partitions) < 2**31):
        raise section.error(
            f"{_PARTITIONS} is {partitions[:_SHOWN]!r}: 1 to 2^31 - 1 is expected", _PARTITIONS
        )
    return TopicConfig(int(partitions), configs)


def ensure_storable(name: str, topic: TopicConfig) -> None:
    """Raise ValueError for a name or a value that an INI cannot keep."""
    _section(name, topic)


def _section(name: str, topic: TopicConfig) -> str:
    if not is_topic_name(name):
        raise ValueError(f"expected the name of a topic, found {name!r}")
    lines = [f"[{name}]"]
    if topic.partitions is not None:
        lines.append(f"{_PARTITIONS} = {topic.partitions}")
    for key, value in sorted(topic.configs.items()):
        _check(key, value)
        lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def _check(key: str, value: str) -> None:
    """A line of an INI is what comes back from it."""
    if value != value.strip() or len(value.splitlines()) > 1:
        raise ValueError(f"{key}: expected a value in one line without blanks around it, found {value!r}")
    if not key or key == _PARTITIONS or key.split() != [key] or "=" in key or key[0] in "#;[":
        raise ValueError(f"expected the name of a configuration property, found {key!r}")
