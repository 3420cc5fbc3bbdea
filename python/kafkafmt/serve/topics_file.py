"""The topics file: what the operator of this endpoint says of topics, above `topics.ini` in the log directory.

Both have one form, an INI with a section for each topic and Kafka's own names of its properties:

[orders]
message.downconversion.enable = false
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kafkafmt.ini import Section, read_ini
from kafkafmt.log.topic_configs import topic_config
from kafkafmt.serve.topic_properties import check_property


@dataclass(frozen=True)
class TopicsFile:
    """A topics file as it was read: the configuration of each topic that it names, by Kafka's names."""

    path: Path
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def read_again(self) -> TopicsFile:
        """Read the file as it is now. Raises as `read_topics_file`."""
        return read_topics_file(self.path)


def read_topics_file(path: Path) -> TopicsFile:
    """Read a topics file. Raises IniError and OSError.

    A `topics.ini` is taken as well. How many partitions a topic has it does not set: the log directory tells that.
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
