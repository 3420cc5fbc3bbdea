"""The user's configuration of topics that a mirror creates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafmt.log.topic_configs import TopicConfig, is_topic_name
from kafkafmt.log.topic_properties import SEGMENT_BYTES, check_property
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from typing_extensions import Self

    from kafkafmt.mirror.protocols import SourceTopic


@dataclass(frozen=True)
class TopicSettings:
    """Properties that replace the source's: for all topics, and by topic. Those of a topic override those for all."""

    of_all: Mapping[str, str] = field(default_factory=dict)
    of_one: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def parsed(cls, settings: Iterable[str]) -> Self:
        """Parse `NAME=VALUE`, for all topics, and `TOPIC:NAME=VALUE`. Raises MirrorError for anything else."""
        of_all: dict[str, str] = {}
        of_one: dict[str, dict[str, str]] = {}
        for setting in settings:
            place, equals, value = setting.partition("=")
            topic, colon, name = place.rpartition(":")
            if not equals or not name.strip() or (colon and not is_topic_name(topic)):
                raise MirrorError(
                    f"--topic-config: expected NAME=VALUE or TOPIC:NAME=VALUE, found {setting!r}"
                )
            (of_one.setdefault(topic, {}) if colon else of_all)[name.strip()] = value.strip()
        return cls(of_all, of_one)

    def check(self) -> None:
        """Raise MirrorError for a property that Kafka does not have, and for an invalid value."""
        for configs in (self.of_all, *self.of_one.values()):
            for name, value in configs.items():
                try:
                    check_property(name, value)
                except ValueError as error:
                    raise MirrorError(f"--topic-config: {error}") from None

    def without_effect(self, topics: Collection[str]) -> list[str]:
        """Return an error message for each topic with settings of its own that is not in `topics` of the target."""
        return [
            f"--topic-config {topic}:...: no topic that is written at the target has this name"
            for topic in self.of_one
            if topic not in topics
        ]

    def applied(self, topic: str, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a topic: `configs` of the source, with the properties replaced."""
        return {**configs, **self.of_all, **self.of_one.get(topic, {})}

    def topic_config(self, name: str, topic: SourceTopic, known: Mapping[str, TopicConfig]) -> TopicConfig:
        """Return what a target's `topics.ini` is to have of a topic, whose name there is `name`.

        known: what it has already. This stays if the source's configuration is not known. Raises ValueError for a
        `segment.bytes` that no log can have.
        """
        is_kept = not topic.is_known and name in known
        applied = self.applied(name, (known[name] if is_kept else topic.config).configs)
        if SEGMENT_BYTES in applied:
            check_property(SEGMENT_BYTES, applied[SEGMENT_BYTES])
        return TopicConfig(topic.config.partitions, applied)
