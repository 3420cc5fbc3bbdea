"""A tail of a cluster whose topics disappear. The brokers are stand-ins."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

import kafkafmt as kf
from kafkafmt.scanning.brokers import source
from kafkafmt.scanning.data_loss import DataLossError

ORDERS = kf.TopicPartition("orders", 0)


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
