"""The names of topics at the target: the source's, a prefix and the source's, or names that the user gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafmt._util.names import some_names
from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.log.topics import is_internal_topic
from kafkafmt.mirror.errors import MirrorError

if TYPE_CHECKING:
    from typing_extensions import Self

    from kafkafmt.types import TopicPartition

# Not legal in the name of a topic.
_SEPARATOR = "="


@dataclass(frozen=True)
class TopicNames:
    """Maps the names of the source's topics to those of the target's.

    prefix: before each name; "" for none. renames: names at the target by names at the source. They get no prefix.

    >>> names = TopicNames("east.", {"a": "b"})
    >>> names.target("a"), names.target("orders"), names.map_key("orders")
    ('b', 'east.orders', 'orders=east.orders')
    """

    prefix: str = ""
    renames: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parsed(cls, prefix: str, renames: Iterable[str]) -> Self:
        """Parse a prefix and `SOURCE=TARGET` for each renamed topic. Raises MirrorError for anything else."""
        # A prefix is legal if a name with it is.
        if prefix and (not is_topic_name(f"{prefix}x") or is_internal_topic(prefix)):
            raise MirrorError(
                f"--topic-prefix: expected characters of a topic name, and not __ at the start, found {prefix!r}"
            )
        found: dict[str, str] = {}
        for rename in renames:
            source, equals, target = rename.partition(_SEPARATOR)
            if (
                not equals
                or not is_topic_name(source)
                or not is_topic_name(target)
                or is_internal_topic(target)
            ):
                raise MirrorError(
                    f"--rename: expected SOURCE=TARGET, two names of topics, the second without __ at the start, "
                    f"found {rename!r}"
                )
            if found.setdefault(source, target) != target:
                raise MirrorError(
                    f"--rename: expected one target for topic {source}, found {found[source]} and {target}"
                )
        names = cls(prefix, found)
        names.ensure_distinct(found)
        return names

    def without_effect(self, topics: Collection[str]) -> list[str]:
        """Return an error message for each rename of a topic that is not in `topics` of the source."""
        return [
            f"--rename {source}={target}: no topic {source} is selected at the source"
            for source, target in self.renames.items()
            if source not in topics
        ]

    def target(self, topic: str) -> str:
        """Return the name at the target of a topic of the source."""
        return self.renames.get(topic, f"{self.prefix}{topic}")

    def target_partition(self, topic_partition: TopicPartition) -> TopicPartition:
        """Return the target's partition for a partition of the source."""
        return topic_partition._replace(topic=self.target(topic_partition.topic))

    def map_key(self, topic: str) -> str:
        """Return the name under which offset maps have a topic: `SOURCE=TARGET` if it is renamed.

        So a topic that is mirrored under another name than before begins anew.
        """
        target = self.target(topic)
        return topic if target == topic else f"{topic}{_SEPARATOR}{target}"

    def refusals(self, topics: Iterable[str], selected: Collection[str]) -> dict[str, str]:
        """Return why topics cannot be mirrored, by topic: an illegal name at the target, or one of two topics.

        selected: all topics that the mirror takes.
        """
        sources = self._by_target(selected)
        refused = {}
        for topic in topics:
            target = self.target(topic)
            others = [other for other in sources[target] if other != topic]
            if target != topic and not is_topic_name(target):
                refused[topic] = (
                    f"topic {topic} would be {target} at the target: expected a legal topic name of at most 249 "
                    "characters"
                )
            elif others:
                refused[topic] = _same_target(target, [topic, *others])
        return refused

    def ensure_distinct(self, selected: Collection[str]) -> None:
        """Raise MirrorError if two topics have one target, or a target's name is not legal."""
        for target, sources in sorted(self._by_target(selected).items()):
            if len(sources) > 1:
                raise MirrorError(_same_target(target, sources))
        for message in self.refusals(selected, ()).values():
            raise MirrorError(message)

    def _by_target(self, topics: Iterable[str]) -> defaultdict[str, list[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for topic in sorted(topics):
            found[self.target(topic)].append(topic)
        return found


def _same_target(target: str, sources: Iterable[str]) -> str:
    names = some_names(sorted(sources))
    return (
        f"topics {names} would both be {target} at the target: expected one topic of the source for each name"
    )
