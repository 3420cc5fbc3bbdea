"""A cluster as source of which a topic does not exist: it was deleted while it was mirrored, or will be created."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka.errors as kafka_errors
import pytest
from kafka import TopicPartition as KafkaTopicPartition

from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import TOPICS_AWAITED
from kafkafmt.mirror.sources.cluster import ClusterSource
from kafkafmt.types import TopicPartition
from logged_events import logged_events
from mirror.test_assigned_source import IdleConsumer, OneTopicCluster

MODULE = "kafkafmt.mirror.sources.cluster"
THERE, DELETED = TopicPartition("t", 0), TopicPartition("u", 0)


class GroupConsumer(IdleConsumer):
    """A member of a group. As kafka-python, it cannot end a commit of a topic that does not exist."""

    subscribe = partitions_for_topic = lambda *_, **__: None

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.commits: list[dict[KafkaTopicPartition, Any]] = []

    def commit(self, offsets: dict[KafkaTopicPartition, Any], timeout_ms: float) -> None:
        self.commits.append(offsets)
        if KafkaTopicPartition(*DELETED) in offsets:
            raise kafka_errors.KafkaTimeoutError


def source_of(
    topics: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ClusterSource, GroupConsumer]:
    """Return a source, and its consumer."""
    consumer = GroupConsumer()
    monkeypatch.setattr(f"{MODULE}.RawConsumer", lambda **_: consumer)
    options = MirrorOptions(parse_address(f"kafka://source:9092/{topics}"), folder)
    cluster: Any = OneTopicCluster()
    return ClusterSource(cluster, options.selection, options, "group"), consumer


def test_commit_when_a_topic_was_deleted_then_only_the_others_are_committed_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, consumer = source_of("t", tmp_path, monkeypatch)
    with logged_events(MODULE) as events:
        source.commit({THERE: 5, DELETED: 7})
        source.commit({DELETED: 7})
    assert [{*one} for one in consumer.commits] == [
        {KafkaTopicPartition(*THERE), KafkaTopicPartition(*DELETED)},
        {KafkaTopicPartition(*THERE)},
        {KafkaTopicPartition(*DELETED)},
    ]
    assert [(one["event"], one["topics"]) for one in events] == [
        ("offsets of deleted topics are not committed", ["u"])
    ] * 2


def test_mirror_when_a_named_topic_does_not_exist_then_a_line_says_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logged_events(MODULE) as events:
        source_of("t,u", tmp_path, monkeypatch)
    assert [(one["event"], one["missing"]) for one in events] == [
        (TOPICS_AWAITED, "no topic u, or this user lacks the right Describe on it")
    ]
