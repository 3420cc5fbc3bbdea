"""A source that takes all partitions of a cluster, whose topic is deleted and created again while the mirror runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.admission import Admission
from kafkafmt.mirror.loop import Mirror
from kafkafmt.mirror.memory import HeldMemory
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import EpochAt, Reached, Source, SourceRun, SourceTopic, Target
from kafkafmt.mirror.sources.assigned import AssignedClusterSource
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.upkeep import TopicUpkeep
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from logged_events import logged_events
from mirror.folders import KEPT, batch

PARTITION = TopicPartition("t", 0)
MOST_POLLS = 20


class OneTopicCluster:
    """A cluster with topic `t`, which has no records."""

    id = "cluster"
    brokers = 1

    def __init__(self) -> None:
        self.topic_id = uuid4()

    def config_of(self, _: object) -> dict[str, Any]:
        return {}

    def topic_names(self) -> list[str]:
        return ["t"]

    def topic_ids(self, _: object) -> dict[str, UUID]:
        return {"t": self.topic_id}

    def partitions(self, _: object) -> list[TopicPartition]:
        return [PARTITION]

    def partition_counts(self, _: object) -> dict[str, int]:
        return {"t": 1}

    def describe_topics(self, _: object) -> dict[str, TopicConfig]:
        return {"t": TopicConfig(1)}


class HidingCluster(OneTopicCluster):
    """Its user lacks the right DescribeConfigs."""

    def describe_topics(self, _: object) -> dict[str, TopicConfig]:
        return {}


class IdleConsumer:
    """Returns no batches. `on_poll` is called at each poll."""

    fetched_bytes = 0
    has_unknown_topic = False

    def __init__(self, **_: object) -> None:
        self.config = {"metadata_max_age_ms": 10_000}
        self.on_poll = lambda: None

    def poll_runs(self, _: float) -> dict[Any, Any]:
        self.on_poll()
        return {}

    def take_unknown_topics(self) -> set[str]:
        """The topics of which a fetch with the old id has failed."""
        had, self.has_unknown_topic = self.has_unknown_topic, False
        return {"t"} if had else set()

    def take_fetched_by_name(self) -> set[str]:
        return set()

    def take_offset_resets(self) -> list[Any]:
        return []

    def beginning_offsets(self, asked: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(asked, 0)

    end_offsets = beginning_offsets

    def position(self, _: object, **options: object) -> int:
        return 0

    highwater = position

    def assign(self, _: object) -> None:
        """As the consumer of a cluster."""

    pause = resume = seek = pin_topic_id = close = lambda *_, **__: None


class NotingTarget(Target):
    """Notes which topics its partition was begun for."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.begun: list[UUID | None] = []

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        """As if all topics were there."""

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        self.begun.append(topic_id)

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return None


def mirror_of(source: Source, options: MirrorOptions) -> Mirror:
    memory = HeldMemory(options.memory)
    target = NotingTarget(Statistics(memory.budget))
    return Mirror(
        options,
        source,
        target,
        memory,
        upkeep=TopicUpkeep(options, source, target, target.statistics, Admission(options.names, set)),
        transform=lambda _, run: iter([run]),
        report=lambda _: None,
    )


def test_topic_when_created_again_while_a_mirror_takes_all_partitions_then_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", IdleConsumer)
    address = parse_address("kafka://source:9092")
    options = MirrorOptions(address, tmp_path, follows=True, shares_partitions=False, commit_interval=1e-9)
    cluster: Any = OneTopicCluster()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    mirror = mirror_of(source, options)
    target: Any = mirror._target
    consumer: Any = source._consumer
    ids, polls = [cluster.topic_id], iter(range(MOST_POLLS))

    def poll() -> None:
        number = next(polls, None)
        if number == 1:
            cluster.topic_id = uuid4()
            ids.append(cluster.topic_id)
            consumer.has_unknown_topic = True
        if number is None or len(target.begun) == 2:
            mirror.end()

    consumer.on_poll = poll
    mirror.run()
    assert target.begun == ids


def test_topic_when_its_configuration_is_hidden_then_it_is_not_known_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", IdleConsumer)
    options = MirrorOptions(parse_address("kafka://source:9092"), tmp_path, shares_partitions=False)
    cluster: Any = HidingCluster()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    assert source.topics() == {"t": SourceTopic(TopicConfig(1, KEPT), is_known=False)}


class ShorterConsumer(IdleConsumer):
    """Of a log that was truncated from offset 900 on, and ends at 950."""

    def epoch_ends(self, asked: Mapping[Any, int]) -> dict[Any, tuple[int, int]]:
        return dict.fromkeys(asked, (0, 900))

    def end_offsets(self, asked: Iterable[Any]) -> dict[Any, int]:
        return dict.fromkeys(asked, 950)


class LongerCluster(OneTopicCluster):
    """As it was at the start."""

    def bounds(
        self, partitions: Iterable[TopicPartition], **_: object
    ) -> dict[TopicPartition, tuple[int, int]]:
        return dict.fromkeys(partitions, (0, 1000))


def test_goal_when_the_log_has_lost_its_end_then_is_the_end_that_it_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", ShorterConsumer)
    options = MirrorOptions(
        parse_address("kafka://source:9092"), tmp_path, follows=False, shares_partitions=False
    )
    cluster: Any = LongerCluster()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    assert source.goals() == {PARTITION: 1000}
    with logged_events("kafkafmt.mirror.sources.goals") as logged:
        assert source.kept_ends({PARTITION: Reached(1000, EpochAt(1000, 0))}) == {PARTITION: 900}
    assert source.goals() == {PARTITION: 950}
    source.seek(PARTITION, 950)
    assert source.is_at_end(PARTITION)
    assert logged == []  # the lost records are at the target


class EndedConsumer(ShorterConsumer):
    """Has read all of it."""

    def position(self, _: object, **options: object) -> int:
        return 950

    highwater = position

    def position_epoch(self, _: object) -> int:
        return 0


class EndedCluster(LongerCluster):
    """Its log was truncated at offset 950 since then."""

    def end_offset(self, _: TopicPartition) -> int:
        return 950


def test_once_when_the_log_has_lost_its_end_before_it_was_read_then_ends_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster._STILL_SECONDS", 0)
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", EndedConsumer)
    options = MirrorOptions(
        parse_address("kafka://source:9092"), tmp_path, follows=False, shares_partitions=False
    )
    cluster: Any = EndedCluster()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    mirror = mirror_of(source, options)
    polls = iter(range(MOST_POLLS))
    consumer: Any = source._consumer
    consumer.on_poll = lambda: mirror.end() if next(polls, None) is None else None
    with logged_events("kafkafmt.mirror.sources.goals") as logged:
        mirror.run()
    assert next(polls, None) is not None, "it would not have ended"
    (warning,) = logged
    assert (warning["partition"], warning["from_offset"], warning["to_offset"]) == ("t-0", 950, 1000)
    assert (mirror.statistics.unreached, mirror.statistics.lag) == ([], {PARTITION: 0})


class TruncatedConsumer(IdleConsumer):
    """Has read up to offset 150 in epoch 1. The next leader has records of epoch 2 from offset 100 on."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        runs = (batch(140, partition_leader_epoch=1), batch(100, 100, partition_leader_epoch=2))
        self._polls = [{KafkaTopicPartition(*PARTITION): [whole_batches(data)]} for data in runs]

    def poll_runs(self, _: float) -> dict[Any, Any]:
        return self._polls.pop(0)

    def position(self, _: object, **options: object) -> int:
        return 150 if self._polls else 200

    def position_epoch(self, _: object) -> int:
        return 1 if self._polls else 2

    def epoch_ends(self, asked: Mapping[Any, int]) -> dict[Any, tuple[int, int]]:
        ends = {1: (1, 100), 2: (2, 200)}
        return {one: ends[epoch] for one, epoch in asked.items()}


@pytest.mark.parametrize("comes_back", [True, False])
def test_source_when_a_commit_is_due_before_a_truncated_partition_begins_again_then_still_knows_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", TruncatedConsumer)
    options = MirrorOptions(
        parse_address("kafka://source:9092"), tmp_path, follows=True, shares_partitions=False
    )
    cluster: Any = OneTopicCluster()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    source.seek(PARTITION, 140)
    assert [found.position for found in source.poll(0) if isinstance(found, SourceRun)] == [140]
    assert list(source.poll(0)) == []
    assert source.take_rewound() == {PARTITION}
    source.refresh_positions()  # as each commit does
    if comes_back:
        asyncio.run(source.revoked({PARTITION}, is_lost=False))
    assert source.kept_ends({PARTITION: Reached(150, None)}) == {PARTITION: 100}
