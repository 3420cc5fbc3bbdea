"""The store of a backup, without a mirror, and its source: a cluster with one topic, which has no records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kafkafmt.backup.groups import GroupOffsets
from kafkafmt.backup.repository import Repository
from kafkafmt.backup.store import BackupSource, BackupStore
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.types import TopicPartition

NO_GROUPS = GroupOffsets(0, {})


class RestartingCluster:
    """A cluster of one topic, whose leader does not answer the first requests for offsets."""

    id = "cluster"

    def __init__(self, unanswered: int, configs: Mapping[str, str], end: int) -> None:
        self._unanswered = unanswered
        self._configs, self._end = configs, end

    def topic_names(self) -> list[str]:
        return ["t"]

    def topic_ids(self, _: object) -> dict[str, Any]:
        return {}

    def partition_counts(self, _: object) -> dict[str, int]:
        return {"t": 1}

    def describe_topics(self, _: object, *, own: bool = True) -> dict[str, TopicConfig]:
        return {"t": TopicConfig(1, {} if own else self._configs)}

    def partitions(self, _: object) -> list[Any]:
        return []

    def bounds(self, _: object, *, is_committed: bool) -> dict[Any, tuple[int, int]]:
        self._unanswered -= 1
        if self._unanswered >= 0:
            raise UnansweredError("the offsets of partitions could not be read")
        return {TopicPartition("t", 0): (0, self._end)} if self._end else {}


def store_of(
    folder: Path,
    unanswered: int = 0,
    *,
    read_groups: Callable[[], GroupOffsets] = lambda: NO_GROUPS,
    follows: bool = True,
    matches: Callable[[str], bool] = lambda _: True,
    configs: Mapping[str, str] = MappingProxyType({}),
    end: int = 0,
) -> BackupStore:
    """A store of which each commit is due to write a generation.

    read_groups: reads the groups of the cluster. matches: whether a topic is selected. configs: of the topic, defaults
    included. end: of its only partition.
    """
    repository = Repository(folder)
    repository.create()
    cluster: Any = RestartingCluster(unanswered, configs, end)
    source = BackupSource(cluster, matches, read_groups)
    writer: Any = None  # nothing is stored
    return BackupStore(
        repository, source, writer, read_groups(), spool=folder / "spool", generation_age=0.0, follows=follows
    )
