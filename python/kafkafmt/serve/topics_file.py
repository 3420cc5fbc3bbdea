"""The topics file: an INI with a section for each topic, and Kafka's own names of its properties.

[orders]
message.downconversion.enable = false
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kafkafmt.ini import Section, read_ini
from kafkafmt.serve.options import TopicOptions

_DOWNCONVERSION_ENABLE = "message.downconversion.enable"
_BOOLEANS = {"true": True, "false": False}


def read_topics_file(path: Path) -> Mapping[str, TopicOptions]:
    """What the file says of each topic that it names. Raises IniError and OSError."""
    return {section.name: _topic_options(section) for section in read_ini(path)}


def _topic_options(section: Section) -> TopicOptions:
    for key in section.properties:
        if key != _DOWNCONVERSION_ENABLE:
            raise section.error(f"{key} is no property of a topic here: {_DOWNCONVERSION_ENABLE} is", key)
    enable = section.properties.get(_DOWNCONVERSION_ENABLE)
    if enable is None:
        return TopicOptions()
    if enable.lower() not in _BOOLEANS:
        raise section.error(
            f"{_DOWNCONVERSION_ENABLE} is {enable!r}: true or false is expected", _DOWNCONVERSION_ENABLE
        )
    return TopicOptions(downconversion_enable=_BOOLEANS[enable.lower()])
