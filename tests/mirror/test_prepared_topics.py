"""Topics at a target cluster before their first batch: what is requested, and what a refused configuration means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.addresses import ClusterAddress
from kafkafmt.mirror.admin_client import UnansweredError
from kafkafmt.mirror.clusters import ConfigRefusedError
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import SourceTopic
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.cluster import ClusterTarget

WANTED = {"t": SourceTopic(TopicConfig(2, {"retention.ms": "5"}))}


class Topics:
    """The topics of the target, by name, without configuration. Changes raise `error`, if there is one."""

    def __init__(self, counts: Mapping[str, int], error: MirrorError | None = None) -> None:
        self._counts, self.error = dict(counts), error
        self.requests: list[str] = []

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        self.requests.append("Metadata")
        return {name: self._counts[name] for name in names if name in self._counts}

    def describe_topics(self, counts: Mapping[str, int], *, own: bool = True) -> dict[str, TopicConfig]:
        return {name: TopicConfig(count) for name, count in counts.items()}

    def create_topic(self, name: str, topic: TopicConfig) -> None:
        self.requests.append("CreateTopics")
        self._counts[name] = topic.partitions or 1

    def alter_topic(self, name: str, changes: Mapping[str, str | None]) -> None:
        if self.error is not None:
            raise self.error

    def add_partitions(self, name: str, partitions: int) -> None:
        self._counts[name] = partitions

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID | None]:
        return dict.fromkeys(names)


class LaggingTopics(Topics):
    """After a change, the next request for counts or for ids has a broker that does not know the change yet."""

    def __init__(self, counts: Mapping[str, int], request: str) -> None:
        super().__init__(counts)
        self._earlier, self._request = dict(counts), request

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return self._earlier if self._is_lagging("counts") else super().partition_counts(names)

    def topic_ids(self, names: Iterable[str]) -> dict[str, UUID | None]:
        return dict.fromkeys(self._earlier) if self._is_lagging("ids") else super().topic_ids(names)

    def _is_lagging(self, request: str) -> bool:
        if request != self._request or self._counts == self._earlier:
            return False
        self._request = ""
        return True


class Configured:
    """A sender that keeps the configuration of topics."""

    keeps_partitions = True

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}

    def configure_topic(self, topic: str, config: TopicConfig) -> None:
        self.topics[topic] = config


def target_of(topics: Topics, sender: Configured) -> ClusterTarget:
    options = MirrorOptions(Path("east"), ClusterAddress(("west:9092",)), syncs_topics=True)
    statistics = Statistics(MemoryBudget(1, "mirror"))
    offsets: Any = None
    return ClusterTarget(cast("Any", topics), offsets, cast("Any", sender), statistics, options)


@pytest.mark.parametrize(
    ("there", "requests"),
    [({"t": 2}, ["Metadata"]), ({}, ["Metadata", "CreateTopics", "Metadata"])],
)
def test_topics_when_they_are_prepared_then_their_metadata_is_requested_again_only_after_a_change(
    there: Mapping[str, int], requests: list[str]
) -> None:
    topics, sender = Topics(there), Configured()
    target_of(topics, sender).prepare(WANTED)
    assert topics.requests == requests
    assert sender.topics == {"t": TopicConfig(2)}


@pytest.mark.parametrize("error", [RefusedError("no right"), ConfigRefusedError("not valid")])
def test_topic_when_its_configuration_is_refused_then_is_reported_until_it_is_accepted(
    error: MirrorError,
) -> None:
    topics = Topics({"t": 2}, error)
    target = target_of(topics, Configured())
    target.prepare(WANTED)
    assert target.statistics.as_dict()["unsynced_topics"] == {"t": str(error)}
    topics.error = None
    target.prepare(WANTED, again=True)
    assert target.statistics.unsynced_topics == {}


def test_topic_when_a_broker_cannot_change_it_now_then_the_mirror_may_try_again() -> None:
    target = target_of(Topics({"t": 2}, UnansweredError("a controller is elected")), Configured())
    with pytest.raises(UnansweredError):
        target.prepare(WANTED)


@pytest.mark.parametrize(("there", "request_name"), [({}, "counts"), ({"t": 1}, "counts"), ({}, "ids")])
def test_topic_when_a_broker_does_not_know_its_change_yet_then_it_is_prepared_again(
    there: Mapping[str, int], request_name: str
) -> None:
    topics, sender = LaggingTopics(there, request_name), Configured()
    target = target_of(topics, sender)
    expected = f"topic t: .* expected 2 partitions, found {there.get('t', 0)}$"
    with pytest.raises(UnansweredError, match=expected):
        target.prepare(WANTED)
    assert sender.topics == {}
    target.prepare(WANTED)
    assert sender.topics == {"t": TopicConfig(2)}
