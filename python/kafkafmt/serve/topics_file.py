"""The topics file: the operator's configuration of topics, which overrides `topics.ini` in the log directory.

Both are INI files with a section for each topic, in which properties have Kafka's names:

[orders]
message.downconversion.enable = false
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt._util.ini import Section, read_ini
from kafkafmt.log.topic_configs import topic_config
from kafkafmt.log.topic_properties import check_property


@dataclass(frozen=True)
class TopicsFile:
    """A topics file that was read. configs: the values of each topic, by Kafka's property names."""

    path: Path
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def reload(self) -> TopicsFile:
        """Read the file again. Raises as `read_topics_file`."""
        return read_topics_file(self.path)


def read_topics_file(path: Path) -> TopicsFile:
    """Read a topics file. Raises IniError and OSError.

    A `topics.ini` is accepted as well. Its numbers of partitions have no effect: the log directory determines them.
    """
    return TopicsFile(path, {section.name: _configs(section) for section in read_ini(path)})


def _configs(section: Section) -> Mapping[str, str]:
    configs = topic_config(section).configs
    for name, value in configs.items():
        try:
            check_property(name, value)
        except ValueError as error:
            raise section.error(str(error), name) from None
    return configs
