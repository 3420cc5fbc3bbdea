"""A target cluster whose log was truncated, as after an unclean leader election, while a mirror sends to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest

from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.offset_map import Changes, MappedRange, OffsetMap
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.statistics import Moved, Statistics
from kafkafmt.mirror.targets.cluster import ClusterTarget
from kafkafmt.mirror.targets.sender import Sent
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import batch

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

PARTITION = TopicPartition("t", 0)
OLD, NEW = UUID(int=1), UUID(int=2)


@dataclass
class Log:
    """The only partition of the target, as its cluster and as the sender that appends to it."""

    end: int = 0
    keeps_partitions: bool = True
    is_offset_lost: bool = False  # the broker has the batch, but the producer does not know where

    topic_id: UUID = OLD

    def topic_ids(self, _: object) -> dict[str, UUID]:
        return {"t": self.topic_id}

    def end_offset(self, _: TopicPartition) -> int:
        return self.end

    def bounds(self, _: object) -> dict[TopicPartition, tuple[int, int]]:
        return {PARTITION: (0, self.end)}

    def send(self, _: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        row = run.index[0]
        first, count = int(row["base_offset"]), int(row["count"])
        offsets = np.full(count, -1) if self.is_offset_lost else np.arange(self.end, self.end + count)
        outcome = SimpleNamespace(exceptions={}, offsets=offsets)
        future: Any = SimpleNamespace(is_done=True, outcome=lambda _: outcome)
        self.end += count
        sources, counts = np.array([first]), np.array([count])
        yield Sent(first, first + count, [future], Moved(1, count, 1), "raw", sources, counts, 0)


@dataclass
class Store:
    """Keeps the ranges of the partition."""

    ranges: dict[int, MappedRange] = field(default_factory=dict)

    def load(self, _: TopicPartition) -> list[MappedRange]:
        return list(self.ranges.values())

    def save(self, changes: dict[TopicPartition, Changes]) -> None:
        for offset, mapped in changes[PARTITION].items():
            if mapped is None:
                self.ranges.pop(offset, None)
            else:
                self.ranges[offset] = mapped

    def close(self) -> None:
        """Nothing is open."""


def target_of(log: Any, store: Any, folder: Path) -> ClusterTarget:
    options = MirrorOptions(folder, parse_address("kafka://west:9092"))
    return ClusterTarget(log, OffsetMap(store), log, Statistics(MemoryBudget(1, "mirror")), options)


@pytest.fixture
def target(tmp_path: Path) -> ClusterTarget:
    """Has 30 records, whose ranges are saved, when it loses the last 20, and gets 10 more."""
    log = Log()
    target = target_of(log, Store(), tmp_path)
    assert target.resume_offset(PARTITION) is None
    target.begin(PARTITION, 0)
    for base_offset in (0, 10, 20):
        target.take(PARTITION, whole_batches(batch(base_offset)))
    assert list(target.advance()) == []
    target.make_durable()
    log.end = 10
    target.take(PARTITION, whole_batches(batch(30)))
    assert list(target.advance()) == []
    return target


def test_partition_when_its_log_was_truncated_then_begins_again_at_the_first_lost_record(
    target: ClusterTarget,
) -> None:
    assert target.pending(PARTITION) == 10
    assert target.take_lost({PARTITION}) == {PARTITION}
    assert target.take_lost({PARTITION}) == set()
    target.forget([PARTITION])  # also what is not saved yet of the map
    assert target.resume_offset(PARTITION) == 10
    target.begin(PARTITION, 10)
    assert target.statistics.possibly_doubled == 10
    target.take(PARTITION, whole_batches(batch(10)))
    assert list(target.advance()) == []
    assert target.take_lost({PARTITION}) == set()
    assert target.pending(PARTITION) is None


def test_partition_when_its_log_was_truncated_before_another_mirror_begins_it_then_the_map_is_right(
    target: ClusterTarget,
) -> None:
    target.finish([PARTITION])
    target.make_durable()
    target.forget([PARTITION])
    assert target.take_lost({PARTITION}) == set()
    store: Any = target._offsets._store
    assert store.ranges == {0: MappedRange(0, 0, 10)}
    store.ranges = {0: MappedRange(0, 0, 10), 10: MappedRange(10, 20, 10)}  # what the other one has sent
    target._cluster.end = 30  # type: ignore[attr-defined]
    assert target.resume_offset(PARTITION) == 20


def test_partition_when_acknowledgements_have_no_offset_then_has_lost_nothing_and_continues_after_them(
    tmp_path: Path,
) -> None:
    """As for a batch that its broker has refused as a duplicate, if another producer writes to the partition, too."""
    log, store = Log(), Store()
    target = target_of(log, store, tmp_path)
    target.begin(PARTITION, 0)
    for base_offset, is_lost in ((0, False), (10, True), (20, False), (30, True)):
        log.is_offset_lost = is_lost
        log.end += 5  # of the other producer
        target.take(PARTITION, whole_batches(batch(base_offset)))
        assert list(target.advance()) == []
    assert target.take_lost({PARTITION}) == set()
    assert target.pending(PARTITION) is None
    target.finish([PARTITION])
    target.make_durable()
    assert all(mapped.target_offset >= 0 for mapped in store.ranges.values())
    again = target_of(log, store, tmp_path)
    assert again.resume_offset(PARTITION) == 40
    again.begin(PARTITION, 40)  # does not stop because of records after the end of the map
    assert again.take_unknown_records() == {}


def test_topic_when_it_was_created_again_just_before_the_mirror_ends_then_the_next_one_sends_all_records(
    tmp_path: Path,
) -> None:
    log, store = Log(), Store()
    target = target_of(log, store, tmp_path)
    target._topic_ids["t"] = OLD
    target.begin(PARTITION, 0)
    for base_offset in (0, 10, 20):
        target.take(PARTITION, whole_batches(batch(base_offset)))
    assert list(target.advance()) == []
    target.make_durable()
    log.topic_id, log.end = NEW, 5  # of another producer
    target.take(PARTITION, whole_batches(batch(30)))
    assert list(target.advance()) == []
    target.finish([PARTITION])
    target.make_durable()
    again = target_of(log, store, tmp_path)
    again._topic_ids["t"] = NEW
    assert again.resume_offset(PARTITION) == 0
    again.begin(PARTITION, 0)
    assert again.statistics.possibly_doubled == 15
