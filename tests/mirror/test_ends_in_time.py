"""A cluster as source of a mirror that ends at a time within a batch, without a broker."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import TopicPartition as KafkaTopicPartition

import kafkafmt as kf
from _kafkafmt.batches.producer_state import set_producer_state
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.time_range import TimeRange
from kafkafmt.mirror.addresses import parse_address
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import SourceRun
from kafkafmt.mirror.sources.assigned import AssignedClusterSource
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from mirror.folders import NOW, batch
from mirror.test_assigned_source import PARTITION, IdleConsumer, OneTopicCluster
from mirror.test_wrappers import unreadable

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun

END = 15


class ClusterWithRecords(OneTopicCluster):
    """Its log has offsets 0 to 29."""

    def bounds(self, *_: object, **options: object) -> dict[TopicPartition, tuple[int, int]]:
        return {PARTITION: (0, 30)}

    def offsets_at(self, topic_partitions: Iterable[TopicPartition], _: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, END)


def source_of(data: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch) -> AssignedClusterSource:
    """A source that has fetched these batches, and ends at offset `END`."""

    class Consumer(IdleConsumer):
        def poll_runs(self, _: float) -> dict[Any, list[BatchRun]]:
            return {KafkaTopicPartition(*PARTITION): [whole_batches(data)]}

    monkeypatch.setattr("kafkafmt.mirror.sources.cluster.RawConsumer", Consumer)
    address = parse_address("kafka://source:9092/t")
    options = MirrorOptions(address, folder, times=TimeRange(None, NOW + END), shares_partitions=False)
    cluster: Any = ClusterWithRecords()
    source = AssignedClusterSource(cluster, options.selection, options, None)
    source.seek(PARTITION, 0)
    return source


def test_batch_when_it_contains_the_end_then_is_cut_and_the_position_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(batch(0) + batch(10) + batch(20), tmp_path, monkeypatch)
    runs = [one for one in source.poll(0) if isinstance(one, SourceRun)]
    assert [(one.run.index["last_offset"].tolist(), one.position) for one in runs] == [([9], 0), ([14], 10)]
    assert source.position(PARTITION) == END
    assert source.is_at_end(PARTITION)


def test_wrapper_when_it_begins_at_the_end_then_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(batch(0, END) + unreadable(END), tmp_path, monkeypatch)
    (found,) = source.poll(0)
    assert isinstance(found, SourceRun)
    assert found.run.index["last_offset"].tolist() == [END - 1]
    assert source.is_at_end(PARTITION)


def test_batch_when_it_contains_the_end_and_cannot_be_opened_then_is_damage_up_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(batch(10))
    damaged[22] |= kf.Codec.GZIP
    set_producer_state(damaged, -1, -1, -1)  # the CRC matches
    source = source_of(batch(0) + damaged + batch(20), tmp_path, monkeypatch)
    before, damage = source.poll(0)
    assert isinstance(before, SourceRun)
    assert before.run.index["last_offset"].tolist() == [9]
    assert isinstance(damage, SourceDamage)
    assert damage[:3] == (PARTITION, 10, END)
    assert source.is_at_end(PARTITION)
