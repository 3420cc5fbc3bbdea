"""The options of a restore, and the names of its topics at the target."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.log.topics import is_internal_topic, topic_matches
from kafkafmt.mirror.addresses import OFFSET_MAP_TOPIC, ClusterAddress
from kafkafmt.mirror.group_selection import GroupSelection
from kafkafmt.mirror.options import MirrorOptions, OnCorrupt
from kafkafmt.mirror.topic_names import TopicNames
from kafkafmt.mirror.topic_settings import TopicSettings
from kafkafmt.restore.errors import RestoreError

if TYPE_CHECKING:
    from pathlib import Path

# A backup's values name brokers of the old cluster. Brokers of the new one place replicas when topics are created.
THROTTLED_REPLICAS = frozenset(
    {"follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}
)


@dataclass(frozen=True)
class RestoreOptions:
    """The options of a restore. Sizes are in bytes, times in seconds.

    source: the folder or the URI of a backup, with `backup+` before it or not, or of a log directory.
    target: the cluster.
    times: where each partition begins and ends: at its first record at or after a time.
    topics: names and globs; None for all topics but Kafka's own.
    renames: `OLD=NEW` for topics that get other names. OLD may be a regular expression, of which NEW has groups.
    generation: of the backup, by name, number or time; by default the last one.
    key_ring: the file with the keys of an encrypted backup.
    groups: the consumer groups whose offsets are restored; None for none.
    replication_factor: of new topics; -1 for the default of the cluster.
    topic_settings: properties of the topics that replace the backup's; no throttles of replicas.
    sets_retention: set the retention of the backup at the end, with which brokers may delete old records at once.
    is_exactly_once: send batches in transactions with the offset map.
    offset_map: `topic:NAME` at the target; without transactions also the path of a file.
    target_config: client options of kafka-python, as text.
    on_corrupt, commit_interval, progress_interval, memory_bytes, shutdown_timeout: as for a mirror.
    """

    source: str = field(repr=False)  # a URI may have credentials
    target: ClusterAddress
    times: TimeRange = EVERYTHING
    topics: tuple[str, ...] | None = None
    renames: tuple[str, ...] = ()
    generation: str | None = None
    key_ring: Path | None = None
    groups: GroupSelection | None = field(default_factory=GroupSelection)
    replication_factor: int = -1
    topic_settings: TopicSettings = field(default_factory=TopicSettings)
    sets_retention: bool = False
    is_exactly_once: bool = True
    offset_map: str = MirrorOptions.offset_map
    target_config: Mapping[str, str] = field(default_factory=dict, repr=False)  # may contain passwords
    on_corrupt: OnCorrupt = "fail"
    commit_interval: float = MirrorOptions.commit_interval
    progress_interval: float = MirrorOptions.progress_interval
    memory_bytes: int = MirrorOptions.memory_bytes
    shutdown_timeout: float = MirrorOptions.shutdown_timeout

    def __post_init__(self) -> None:
        if not isinstance(self.target, ClusterAddress):
            raise RestoreError(
                f"{self.target}: expected kafka://HOST:PORT[,HOST:PORT]: a restore is into a cluster"
            )
        for configs in (self.topic_settings.of_all, *self.topic_settings.of_one.values()):
            for name in sorted(configs.keys() & THROTTLED_REPLICAS):
                raise RestoreError(
                    f"--topic-config {name}={configs[name]}: a restore sets no throttles of replicas, as brokers place "
                    "the replicas of a topic only when it is created: kafka-configs.sh sets them after the restore"
                )

    def matches(self, topic: str) -> bool:
        """Return whether a topic is restored. Kafka's own are never, and offset maps of mirrors only by name."""
        if is_internal_topic(topic):
            return False
        if self.topics is None:
            return topic != OFFSET_MAP_TOPIC
        return topic_matches(topic, self.topics)


def renamed(topics: Collection[str], renames: Iterable[str]) -> TopicNames:
    """Return the names that topics get. The first rename of a topic by its name applies, else the first that matches.

    >>> renamed(["orders-eu", "clicks"], [r"(.*)-eu=eu.\\1"]).renames
    {'orders-eu': 'eu.orders'}

    Raises RestoreError if a rename is no such text or matches no topic, or a topic would get an illegal name.
    """
    parsed = [_parsed_rename(rename) for rename in renames]
    found = {}
    for topic in sorted(topics):
        exact = next((new for old, new in parsed if old.pattern == topic), None)
        name = exact if exact is not None else _matched(topic, parsed)
        if name is None or name == topic:
            continue
        if not is_topic_name(name) or is_internal_topic(name):
            raise RestoreError(
                f"--rename: topic {topic} would be {name!r}: expected a legal name without __ at the start"
            )
        found[topic] = name
    for old, new in parsed:
        if not any(old.pattern == topic or old.fullmatch(topic) for topic in topics):
            raise RestoreError(f"--rename {old.pattern}={new}: no topic of the restore matches {old.pattern}")
    return TopicNames(renames=found)


def _parsed_rename(rename: str) -> tuple[re.Pattern[str], str]:
    old, equals, new = rename.rpartition("=")
    try:
        if not (old and equals and new):
            raise ValueError("no name before or after =")
        return re.compile(old), new
    except (re.error, ValueError) as error:
        raise RestoreError(f"--rename: expected OLD=NEW, found {rename!r}: {error}") from None


def _matched(topic: str, renames: Iterable[tuple[re.Pattern[str], str]]) -> str | None:
    for old, new in renames:
        match = old.fullmatch(topic)
        if match is not None:
            try:
                return match.expand(new)
            except (re.error, IndexError) as error:
                raise RestoreError(f"--rename: {old.pattern}={new}: {error}") from None
    return None
