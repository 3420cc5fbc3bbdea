"""A target cluster that has lost records, as after an unclean leader election, with --exactly-once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import kafka.errors as kafka_errors
import pytest

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.claims import Claim
from kafkafmt.mirror.offset_map import Changes, MappedRange
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Statistics
from kafkafmt.mirror.targets.transactions import TransactionalTarget, TransactionLostError
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batch
from mirror.test_lost_target_records import Log

PARTITION = TopicPartition("t", 0)


class Cluster(Log):
    """The target with its only topic, and its transactions, whose commits may fail. Offsets of markers are left out."""

    id = "west"

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[bool] = []  # of the next commits
        self.ranges: dict[TopicPartition, dict[int, MappedRange]] = defaultdict(dict)
        self.uncommitted: list[Mapping[TopicPartition, Changes]] = []

    def partition_counts(self, names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, 1)

    def describe_topics(self, names: Iterable[str], *, own: bool = True) -> dict[str, TopicConfig]:
        return {}

    def init_transactions(self, _: float) -> None:
        self.uncommitted.clear()

    def begin_transaction(self) -> None:
        """As a producer does."""

    def flush(self, _: float) -> None:
        """All batches are acknowledged."""

    def commit_transaction(self, _: float) -> None:
        if self.outcomes and not self.outcomes.pop(0):
            self.uncommitted.clear()
            raise kafka_errors.KafkaTimeoutError
        for changes in self.uncommitted:
            for topic_partition, some in changes.items():
                for offset, mapped in some.items():
                    self.ranges[topic_partition].pop(offset, None)
                    if mapped is not None:
                        self.ranges[topic_partition][offset] = mapped
        self.uncommitted.clear()

    @property
    def producer(self) -> Cluster:
        return self

    def configure_topic(self, topic: str, config: TopicConfig) -> None:
        """There are no limits."""

    def send_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """The store keeps them."""

    def close(self, _: float) -> None:
        self.uncommitted.clear()


class Store:
    """The offset map in the transactions of the cluster, of one mirror."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.write: Any = None
        self._own = ""

    def create(self) -> None:
        """The topic is there."""

    def load(self, topic_partition: TopicPartition) -> list[MappedRange]:
        return list(self._cluster.ranges[topic_partition].values())

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        self.write("map", [])
        self._cluster.uncommitted.append(changes)

    def claim(self, _: object, transactional_id: str, value: object) -> None:
        self._own = transactional_id
        self.write("map", [])

    def claims(self, _: object) -> dict[str, Claim]:
        return {self._own: Claim(self._own, 1, None)}

    def read(self) -> None:
        """All was read."""

    read_claims = keep_claims = save_dropped = close = read

    def drop_claim(self, *_: object) -> None:
        """There are no others."""


@pytest.mark.parametrize("outcomes", [[], [False], [True, False], [True, False, False], [True, False] * 2])
def test_partition_when_its_log_was_truncated_and_commits_fail_then_begins_at_the_first_lost_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[bool]
) -> None:
    """An attempt to begin commits a claim, and then the offset map."""
    monkeypatch.setattr("kafkafmt.mirror.targets.transactions.committed_records", lambda *_: 0)
    cluster = Cluster()
    source: Any = SimpleNamespace(name="east", membership=lambda: None)
    target = TransactionalTarget(
        cast("Any", cluster),
        cast("Any", Store(cluster)),
        lambda _: cast("Any", cluster),
        Statistics(MemoryBudget(1, "mirror")),
        MirrorOptions(tmp_path, parse_address("kafka://west:9092"), is_exactly_once=True),
        source,
    )

    def begin() -> int | None:
        target.prepare({})
        assert target.acquire([PARTITION]) == [PARTITION]
        position = target.resume_offset(PARTITION)
        target.begin(PARTITION, position or 0)
        target.make_durable()
        return position

    assert begin() is None
    for base_offset in (0, 10, 20):
        target.take(PARTITION, whole_batches(batch(base_offset)))
    target.make_durable()
    cluster.end = 10  # the last records are lost
    target.take(PARTITION, whole_batches(batch(30)))
    assert list(target.advance()) == []
    assert target.take_lost([PARTITION]) == [PARTITION]
    target.forget([PARTITION])
    cluster.end = 100  # others have written
    cluster.outcomes = list(outcomes)
    for _ in range(outcomes.count(False)):
        with pytest.raises(TransactionLostError):
            begin()
        target.take_lost([])
    assert begin() == 10
    assert cluster.ranges[PARTITION] == {0: MappedRange(0, 0, 10), 10: MappedRange(10, 100, 0)}
