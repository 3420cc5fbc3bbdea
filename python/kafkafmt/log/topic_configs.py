"""The partition counts and configurations of topics, which their logs do not contain.

They are in an INI file, `topics.ini`, in the log directory, under Kafka's names:

[orders]
partitions = 12
message.timestamp.type = LogAppendTime
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from kafkafmt._util.directory_lock import lock_log_directory
from kafkafmt._util.files import replace_file
from kafkafmt._util.ini import Section, parse_ini
from kafkafmt._util.locks import locked_folder
from kafkafmt.storage import RemotePath, read_file, stamp_of, storage_of, storage_path, writable_path

FILE_NAME = "topics.ini"
FileStamp: TypeAlias = tuple[int, ...]

_PARTITIONS = "partitions"
_MOST_DIGITS = 10
_SHOWN = 100  # characters of a wrong value that an error shows
_ABSENT: FileStamp = (0, 0, 0)
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}", re.ASCII)


def is_topic_name(name: str) -> bool:
    """Whether Kafka accepts the name as a topic's.

    >>> is_topic_name("page-views.v2"), is_topic_name(".."), is_topic_name("a/b")
    (True, False, False)
    """
    return _TOPIC_NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class TopicConfig:
    """A topic's configuration. partitions: their number; None if only the folders show it. configs: values by name."""

    partitions: int | None = None
    configs: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class TopicConfigFile:
    """The `topics.ini` of a log directory. It is parsed again only after it has changed, and replaced as a whole.

    Safe to use from several threads. `update` locks the folder against writers of all processes. A remote file is
    read-only, and read again if the last read was some seconds ago.
    """

    def __init__(self, directory: str | os.PathLike[str] | RemotePath) -> None:
        self.path = storage_path(directory) / FILE_NAME
        self._known: tuple[FileStamp, dict[str, TopicConfig]] | None = None

    def stamp(self) -> FileStamp:
        """Return a value that differs if the file has changed. It costs one `stat`."""
        try:
            return storage_of(self.path).stamp(self.path)
        except OSError:
            return _ABSENT

    def read(self) -> Mapping[str, TopicConfig]:
        """Return the configuration of each topic in the file; empty if there is no file.

        Raises IniError, which names file and line, if the file is malformed; and OSError.
        """
        known, stamp = self._known, self.stamp()
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            sections = parse_ini(read_file(self.path), str(self.path))
        except FileNotFoundError:
            sections = []
        topics = {section.name: topic_config(section) for section in sections}
        self._known = stamp, topics
        return topics

    def update(self, change: Callable[[dict[str, TopicConfig]], Mapping[str, TopicConfig]]) -> None:
        """Replace the topics of the file, atomically and durably, by the result of `change`, which gets the old ones.

        Comments in the file are lost. Raises IniError for a malformed file, ValueError for a name or value that an INI
        file cannot store, DirectoryLockedError if a broker uses the directory, and OSError. After an error the file is
        unchanged.
        """
        path = writable_path(self.path)
        directory = path.parent
        with lock_log_directory(directory), locked_folder(directory):
            before = self.read()
            after = dict(change(dict(before)))
            if after == before and path.exists():
                return
            self._known = stamp_of(replace_file(path, topic_configs_text(after).encode())), after


def read_topic_configs(directory: str | os.PathLike[str] | RemotePath) -> Mapping[str, TopicConfig]:
    """Read `topics.ini` of a log directory, as `TopicConfigFile.read`."""
    return TopicConfigFile(directory).read()


def update_topic_configs(
    directory: str | os.PathLike[str],
    change: Callable[[dict[str, TopicConfig]], Mapping[str, TopicConfig]],
) -> None:
    """Change `topics.ini` of a log directory, as `TopicConfigFile.update`."""
    TopicConfigFile(directory).update(change)


def set_topic_config(directory: str | os.PathLike[str], name: str, topic: TopicConfig) -> None:
    """Set the configuration of one topic in the file. Raises as `TopicConfigFile.update`."""
    update_topic_configs(directory, lambda topics: {**topics, name: topic})


def topic_config(section: Section) -> TopicConfig:
    """Return the topic configuration in a section. Raises IniError if it is invalid."""
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


def topic_configs_text(topics: Mapping[str, TopicConfig]) -> str:
    """Return the text of a `topics.ini`. Raises ValueError for a name or value that an INI file cannot store."""
    return "\n".join(_section(name, topic) for name, topic in sorted(topics.items()))


def ensure_storable(name: str, topic: TopicConfig) -> None:
    """Raise ValueError for a name or value that an INI file cannot store."""
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
    """Raise ValueError for a property that would not be read back from the file unchanged."""
    if value != value.strip() or len(value.splitlines()) > 1:
        raise ValueError(f"{key}: expected a value in one line without blanks around it, found {value!r}")
    if not key or key == _PARTITIONS or key.split() != [key] or "=" in key or key[0] in "#;[":
        raise ValueError(f"expected the name of a configuration property, found {key!r}")
