"""The topics file: the operator's configuration of topics. It overrides that of a log directory or a cluster.

As `topics.ini` in a log directory, it is an INI file with a section for each topic, in which properties have Kafka's
names:

[orders]
message.downconversion.enable = false
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt._util.ini import Section, read_ini
from kafkafmt.log.topic_configs import FileStamp, topic_config
from kafkafmt.log.topic_properties import check_property
from kafkafmt.storage.base import stamp_of


def stamp_of_file(path: Path) -> FileStamp:
    """Return a value that differs if the file has changed. One that is missing has an empty stamp."""
    try:
        return stamp_of(path.stat())
    except OSError:
        return ()


@dataclass(frozen=True)
class TopicsFile:
    """A topics file that was read. configs: the values of each topic, by Kafka's property names.

    effective: the properties that the file may have; None: all of Kafka's. stamp: of the file before it was read.
    """

    path: Path
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    effective: frozenset[str] | None = None
    stamp: FileStamp = ()

    def reload(self) -> TopicsFile:
        """Read the file again. Raises as `read_topics_file`."""
        return read_topics_file(self.path, self.effective)


def read_topics_file(path: Path, effective: frozenset[str] | None = None) -> TopicsFile:
    """Read a topics file. effective: the properties that it may have; None: all of Kafka's. Raises IniError, OSError.

    A `topics.ini` is accepted as well. Its numbers of partitions have no effect: the log directory determines them.
    """
    stamp = stamp_of_file(path)
    configs = {section.name: _configs(section, effective) for section in read_ini(path)}
    return TopicsFile(path, configs, effective, stamp)


def _configs(section: Section, effective: frozenset[str] | None) -> Mapping[str, str]:
    configs = topic_config(section).configs
    for name, value in configs.items():
        try:
            check_property(name, value)
        except ValueError as error:
            raise section.error(str(error), name) from None
        if effective is not None and name not in effective:
            raise section.error(f"{name} has no effect here: expected {' or '.join(sorted(effective))}", name)
    return configs
