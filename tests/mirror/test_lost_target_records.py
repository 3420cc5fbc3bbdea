"""A target cluster whose log was truncated, as after an unclean leader election, while a mirror sends to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from kafka.errors import KafkaTimeoutError

from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.memory import MemoryBudget
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.offset_map import Changes, MappedRange, OffsetMap
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import FROM_START, SourceTopic
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
    is_there: bool = True

    def topic_ids(self, _: object) -> dict[str, UUID]:
        return {"t": self.topic_id}

    def end_offset(self, _: TopicPartition) -> int:
        if not self.is_there:
            raise KafkaTimeoutError
        return self.end

    def bounds(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        return {PARTITION: (0, self.end)} if topic_partitions else {}

    def at_target(self, topic_partition: TopicPartition) -> TopicPartition:
        return topic_partition

    def send(self, _: TopicPartition, run: BatchRun) -> Iterator[Sent]:
        row = run.index[0]
        first, count = int(row["base_offset"]), int(row["count"])
        offsets = np.full(count, -1) if self.is_offset_lost else np.arange(self.end, self.end + count)
        outcome = SimpleNamespace(exceptions={}, offsets=offsets)
        future: Any = SimpleNamespace(is_done=True, outcome=lambda _: outcome)
        self.end += count
        sources, counts = np.array([first]) if self.keeps_partitions else None, np.array([count])
        yield Sent(first, first + count, [future], Moved(1, count, 1), "raw", sources, counts, 0)


@dataclass
class Store:
    """Keeps the ranges of partitions, while it is there."""

    ranges: defaultdict[TopicPartition, dict[int, MappedRange]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    is_there: bool = True

    def load(self, topic_partition: TopicPartition) -> list[MappedRange]:
        return list(self.ranges[topic_partition].values())

    def save(self, changes: dict[TopicPartition, Changes]) -> None:
        if not self.is_there:
            raise KafkaTimeoutError
        for topic_partition, some in changes.items():
            ranges = self.ranges[topic_partition]
            for offset, mapped in some.items():
                if mapped is None:
                    ranges.pop(offset, None)
                else:
                    ranges[offset] = mapped

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
    target.forget([PARTITION])  # also what is not saved yet of the map
    assert target.take_lost({PARTITION}) == set()
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
    assert store.ranges[PARTITION] == {0: MappedRange(0, 0, 10)}
    store.ranges[PARTITION] = {
        0: MappedRange(0, 0, 10),
        10: MappedRange(10, 20, 10),
    }  # what the other one has sent
    target._cluster.end = 30  # type: ignore[attr-defined]
    assert target.resume_offset(PARTITION) == 20


def test_partition_when_its_log_was_truncated_just_before_a_kill_then_the_next_mirror_begins_at_the_first_lost_record(
    target: ClusterTarget, tmp_path: Path
) -> None:
    store: Any = target._offsets._store
    assert target_of(target._cluster, store, tmp_path).resume_offset(PARTITION) == 10


def test_partition_when_the_map_without_lost_records_is_not_saved_then_begins_at_the_first_lost_record(
    tmp_path: Path,
) -> None:
    log, store = Log(), Store()
    target = target_of(log, store, tmp_path)
    target.begin(PARTITION, 0)
    for base_offset in (0, 10, 20):
        target.take(PARTITION, whole_batches(batch(base_offset)))
        assert list(target.advance()) == []
    target.make_durable()
    log.end, store.is_there = 10, False
    target.take(PARTITION, whole_batches(batch(30)))
    assert list(target.advance()) == []
    log.end = 100
    for _ in range(2):  # without `take_lost`, as if the source had lost records, too
        target.forget([PARTITION])
        assert target.resume_offset(PARTITION) == 10
    store.is_there = True
    target.begin(PARTITION, 10)
    target.make_durable()
    store.ranges[PARTITION] = {0: MappedRange(0, 0, 10), 10: MappedRange(10, 100, 10)}
    log.end = 110  # another mirror has begun it
    target.forget([PARTITION])
    assert target.resume_offset(PARTITION) == 20


def test_partition_when_the_target_has_its_first_records_and_it_begins_again_then_repartitioning_continues(
    tmp_path: Path,
) -> None:
    log, store = Log(keeps_partitions=False), Store()
    target = target_of(log, store, tmp_path)
    target._topics["t"] = SourceTopic(TopicConfig(2))
    other = TopicPartition("t", 1)
    assert target.resume_offset(PARTITION) is None
    target.begin(PARTITION, 0)
    target.take(PARTITION, whole_batches(batch(0)))
    assert list(target.advance()) == []
    assert target.take_unknown_records() == {}
    target.make_durable()
    target.forget([PARTITION])
    assert target.resume_offset(PARTITION) == 10
    target.begin(PARTITION, 10)
    target.begin(other, 0)
    assert target.take_unknown_records() == {}


def test_partition_when_another_mirror_has_moved_it_on_then_repartitioning_continues_there(
    tmp_path: Path,
) -> None:
    log, store = Log(keeps_partitions=False), Store()
    here, there = (target_of(log, store, tmp_path) for _ in range(2))
    for target in (here, there):
        target._topics["t"] = SourceTopic(TopicConfig(2))
    there.begin(PARTITION, 0)
    there.make_durable()
    here.begin(TopicPartition("t", 1), 0)  # looks for records that the map does not know
    there.take(PARTITION, whole_batches(batch(0)))
    assert list(there.advance()) == []
    there.make_durable()
    assert here.resume_offset(PARTITION) == 10


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
    assert all(mapped.target_offset >= 0 for mapped in store.ranges[PARTITION].values())
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


def test_topic_when_it_was_created_again_at_the_source_and_does_not_begin_at_once_then_begins_at_its_start(
    tmp_path: Path,
) -> None:
    log, store = Log(), Store()
    store.ranges[PARTITION] = {0: MappedRange(0, 0, 10, str(OLD))}
    target = target_of(log, store, tmp_path)
    target.identify(PARTITION, NEW)
    assert target.resume_offset(PARTITION) == FROM_START
    log.is_there = False
    with pytest.raises(KafkaTimeoutError):
        target.begin(PARTITION, 0)
    log.is_there = True
    target.identify(PARTITION, NEW)
    assert target.resume_offset(PARTITION) == FROM_START
    target.begin(PARTITION, 0)
    assert target.resume_offset(PARTITION) == 0
