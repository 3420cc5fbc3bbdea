"""A tail of a cluster whose topics disappear, for good or for a moment. The brokers are stand-ins."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

import kafkafmt as kf
from kafkafmt.scanning.brokers import source
from kafkafmt.scanning.brokers.listing import Attempts
from kafkafmt.scanning.data_loss import DataLossError

ORDERS, USERS = kf.TopicPartition("orders", 0), kf.TopicPartition("users", 0)


class Brokers:
    """A cluster without sizes of logs. partitions_there: those that exist; each has five records."""

    partitions_there: frozenset[kf.TopicPartition] = frozenset()

    def __init__(self, *arguments: Any) -> None:
        pass

    def partitions(self, topics: Collection[str] | None) -> list[kf.TopicPartition]:
        return sorted(one for one in self.partitions_there if topics is None or one.topic in topics)

    def beginnings(self, partitions: Iterable[kf.TopicPartition]) -> dict[kf.TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Iterable[kf.TopicPartition]) -> dict[kf.TopicPartition, int]:
        return dict.fromkeys(partitions, 5)

    def stored_bytes(self, partitions: Collection[kf.TopicPartition]) -> dict[kf.TopicPartition, int]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "Attempts", lambda: Attempts(interval_seconds=0))


@pytest.mark.parametrize(
    ("path", "arguments"),
    [("/orders", {}), ("/ord*", {}), ("", {}), ("", {"partitions": [ORDERS]})],
    ids=["topic", "glob", "all", "partition"],
)
def test_tail_when_its_topic_is_deleted_then_one_line_says_what_is_lost(
    path: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SourceBrokers", Brokers)
    monkeypatch.setattr(Brokers, "partitions_there", {ORDERS})
    scan = kf.scan(f"kafka://localhost:1{path}", **arguments)
    tail = scan.tail()
    monkeypatch.setattr(Brokers, "partitions_there", frozenset())
    with pytest.raises(DataLossError, match="partition orders-0: expected offset 5, found no such partition"):
        next(tail)
    with pytest.raises(kf.ScanError, match="no topic"):
        kf.scan(f"kafka://localhost:1{path}", **arguments).ranges()


class StaleBrokers(Brokers):
    """Brokers of which some do not know a partition, or its end, for a moment. answers: what each listing has."""

    answers: list[Mapping[kf.TopicPartition, int]]

    def partitions(self, topics: Collection[str] | None) -> list[kf.TopicPartition]:
        return sorted(self.answers[0])

    def ends(self, partitions: Iterable[kf.TopicPartition]) -> dict[kf.TopicPartition, int]:
        return dict(self.answers.pop(0))


@pytest.mark.parametrize("stale", [{USERS: 5}, {ORDERS: 3, USERS: 5}], ids=["partition", "end"])
def test_tail_when_a_listing_lacks_a_known_partition_or_its_end_then_it_is_asked_for_again(
    stale: Mapping[kf.TopicPartition, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {ORDERS: 5, USERS: 5}
    monkeypatch.setattr(source, "SourceBrokers", StaleBrokers)
    monkeypatch.setattr(StaleBrokers, "answers", [whole, stale, whole], raising=False)
    scan = kf.scan("kafka://localhost:1")
    assert list(scan.tail(seconds=0)) == []
    assert StaleBrokers.answers == []
    monkeypatch.setattr(StaleBrokers, "answers", [stale, whole])
    assert scan.present_ends() == whole
