"""The store of a backup, without a mirror, and its source: a cluster with one topic, which has no records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from kafkafmt.backup.groups import GroupOffsets
from kafkafmt.backup.repository import Repository
from kafkafmt.backup.store import BackupSource, BackupStore
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.types import TopicPartition

NO_GROUPS = GroupOffsets(0, {})

# unlisted: known to a broker that does not answer listings. hidden: the user lacks the right Describe.
Visibility = Literal["listed", "unlisted", "hidden", "deleted"]


class RestartingCluster:
    """A cluster of one topic, whose leader does not answer the first requests for offsets."""

    id = "cluster"

    def __init__(
        self, unanswered: int, configs: Mapping[str, str], end: int, shown: Sequence[Visibility]
    ) -> None:
        self._unanswered = unanswered
        self._configs, self._end = configs, end
        self._shown = [*shown]
        self._topic = shown[0]

    def topic_names(self) -> list[str]:
        self._topic = self._shown.pop(0) if len(self._shown) > 1 else self._shown[0]
        return ["t"] if self._topic == "listed" else []

    def has_topic(self, _: str) -> bool:
        return self._topic in ("listed", "unlisted")

    def ensure_describable(self, names: Collection[str]) -> None:
        if names and self._topic == "hidden":
            raise RefusedError("this user needs the right Describe on t")

    def topic_ids(self, _: object) -> dict[str, Any]:
        return {}

    def partition_counts(self, names: Collection[str]) -> dict[str, int]:
        return {"t": 1} if "t" in names else {}

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
    shown: Sequence[Visibility] = ("listed",),
) -> BackupStore:
    """A store of which each commit is due to write a generation.

    read_groups: reads the groups of the cluster. matches: whether a topic is selected. configs: of the topic, defaults
    included. end: of its only partition. shown: whether the source shows the topic at the
    first listing, the second one, and so on.
    """
    repository = Repository(folder)
    repository.create()
    cluster: Any = RestartingCluster(unanswered, configs, end, shown)
    source = BackupSource(cluster, matches, read_groups)
    writer: Any = None  # nothing is stored
    return BackupStore(
        repository, source, writer, read_groups(), spool=folder / "spool", generation_age=0.0, follows=follows
    )
