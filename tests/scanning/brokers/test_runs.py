"""Answers without batches: which of them mean that the log has none, and which that the broker sends them later."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest
from kafka import TopicPartition

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.scan import BatchRun, scan
from kafkafmt.client.raw_consumer import RawConsumer
from kafkafmt.scanning.brokers import runs
from kafkafmt.scanning.brokers.clients import ClientConfig
from kafkafmt.scanning.brokers.errors import BrokerError
from kafkafmt.scanning.brokers.options import BrokerOptions
from kafkafmt.scanning.brokers.records import read_ranges
from kafkafmt.scanning.brokers.runs import PartitionRange, RangeReader
from log.samples import batch
from scanning.brokers.topics import NAMES, read_columns

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
END = 30


class Consumer:
    """A consumer of partitions with batches of ten records up to END, whose broker answers at once.

    most_partitions: of how many a response has batches: then it is full. empty_polls: how many polls have no batches,
    because tiered storage is slow. gap: from this offset on compaction left no batch.
    """

    def __init__(self, most_partitions: int = 9, empty_polls: int = 0, gap: int = END) -> None:
        self.most_partitions, self.empty_polls, self.gap = most_partitions, empty_polls, gap
        self.positions: dict[TopicPartition, int] = {}
        self.highwaters: dict[TopicPartition, int] = {}
        self.is_paused: set[TopicPartition] = set()

    def assign(self, keys: Iterable[TopicPartition]) -> None:
        kept = set(keys)
        for state in (self.positions, self.highwaters):
            for key in state.keys() - kept:
                del state[key]
        self.is_paused &= kept
        self.positions.update((key, -1) for key in kept - self.positions.keys())

    def assignment(self) -> set[TopicPartition]:
        return set(self.positions)

    def paused(self) -> set[TopicPartition]:
        return set(self.is_paused)

    def pause(self, *keys: TopicPartition) -> None:
        self.is_paused.update(keys)

    def resume(self, *keys: TopicPartition) -> None:
        self.is_paused.difference_update(keys)

    def seek(self, key: TopicPartition, offset: int) -> None:
        self.positions[key] = offset

    def stop_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert set(offsets.values()) == {END}

    def position(self, key: TopicPartition) -> int:
        return self.positions[key]

    def highwater(self, key: TopicPartition) -> int | None:
        return self.highwaters.get(key)

    def poll_runs(self, timeout_ms: float, most: int) -> dict[TopicPartition, list[BatchRun]]:
        fetched = [key for key in sorted(self.positions) if key not in self.is_paused]
        self.highwaters.update(dict.fromkeys(fetched, END))
        self.empty_polls -= 1
        if self.empty_polls >= 0:
            return {}
        found = {}
        for key in fetched[: self.most_partitions]:
            position = self.positions[key]
            if position < self.gap:
                found[key] = [scan(batch(position, 10))[0]]
                self.positions[key] = position + 10
        return found

    def close(self) -> None:
        pass


class ConsumerOfTimes(Consumer):
    """A consumer of batches of one record. A fetch has one batch. Records without a given timestamp have 0."""

    def __init__(self, times: Mapping[int, int]) -> None:
        super().__init__()
        self.times = times

    def poll_runs(self, timeout_ms: float, most: int) -> dict[TopicPartition, list[BatchRun]]:
        (key,) = self.positions
        self.highwaters[key] = END
        offset = self.positions[key]
        if offset == END:
            return {}
        self.positions[key] = offset + 1
        stored = ref.batch_of([ref.Row(offset, self.times.get(offset, 0), None, b"v")])
        return {key: [scan(stored)[0]]}


class Brokers:
    """The disks of the leader begin at an offset; records before it are in tiered storage."""

    local_start = 0

    def __init__(self, options: BrokerOptions) -> None:
        pass

    def local_beginning(self, one: kf.TopicPartition) -> int:
        return self.local_start

    def close(self) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> type[Brokers]:
    monkeypatch.setattr(runs, "SourceBrokers", Brokers)
    monkeypatch.setattr(Brokers, "local_start", 0)
    return Brokers


def broker_options(timeout_ms: int = 60_000) -> BrokerOptions:
    config = ClientConfig.parse({"bootstrap.servers": "127.0.0.1:1"}, RawConsumer, {})
    return BrokerOptions(config, NAMES, poll_timeout_ms=timeout_ms)


def offsets(
    consumer: Any, *keys: TopicPartition, ahead: int = 1, options: BrokerOptions | None = None
) -> dict[str, list[int]]:
    """The base offsets of the batches that are read, by topic."""
    wanted = [PartitionRange(kf.TopicPartition(*key), 0, END) for key in keys]
    found: dict[str, list[int]] = {key.topic: [] for key in keys}
    for one, run in RangeReader(consumer, wanted, options or broker_options(), ahead).runs():
        found[one.topic_partition.topic] += run.index["base_offset"].tolist()
    return found


WHOLE = [0, 10, 20]


def test_read_when_responses_are_full_with_another_partition_then_has_all_batches(
    brokers: type[Brokers],
) -> None:
    # The response with the last batches of a has none of b. Then b answers late.
    consumer = Consumer(most_partitions=1)
    polls = consumer.poll_runs

    def late(timeout_ms: float, most: int) -> dict[TopicPartition, list[BatchRun]]:
        if consumer.positions[A] == END and consumer.positions[B] == 0 and B in consumer.highwaters:
            return {}
        return polls(timeout_ms, most)

    consumer.poll_runs = late  # type: ignore[method-assign]
    assert offsets(consumer, A, B) == {"a": WHOLE, "b": WHOLE}


def test_read_when_compaction_left_no_batch_up_to_the_end_then_ends(brokers: type[Brokers]) -> None:
    assert offsets(Consumer(gap=10), A, B) == {"a": [0], "b": [0]}
    assert offsets(Consumer(gap=0), A, ahead=0) == {"a": []}


def test_read_when_tiered_storage_is_slow_then_waits_for_it(brokers: type[Brokers]) -> None:
    brokers.local_start = END
    assert offsets(Consumer(empty_polls=5), A, ahead=0) == {"a": WHOLE}


def test_read_when_tiered_storage_gives_nothing_then_one_line_says_so(brokers: type[Brokers]) -> None:
    brokers.local_start = END
    with pytest.raises(
        BrokerError, match=r"^partition a-0, offsets 0 to 29: at offset 10 nothing came in 200 ms"
    ):
        offsets(Consumer(gap=10), A, ahead=0, options=broker_options(200))


def test_read_when_the_system_has_no_affinity_of_processes_then_has_all_records(
    brokers: type[Brokers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)  # as on macOS
    monkeypatch.setattr(ClientConfig, "consumer", lambda *arguments, **settings: Consumer())
    ranges = [PartitionRange(kf.TopicPartition("a", 0), 0, END)]
    rows = list(read_ranges(ranges, broker_options(), read_columns("offset"), 2**20))
    assert [offset for part in rows for offset in part.column("offset").to_pylist()] == list(range(END))


@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
def test_read_when_timestamps_do_not_fit_into_arrow_then_fails_unless_they_are_not_selected(
    brokers: type[Brokers], monkeypatch: pytest.MonkeyPatch, on_corrupt: Literal["fail", "skip"]
) -> None:
    monkeypatch.setattr(
        ClientConfig, "consumer", lambda *arguments, **settings: ConsumerOfTimes({1: 2**62, 3: 2**62})
    )
    ranges = [PartitionRange(kf.TopicPartition("a", 0), 0, END)]
    options = replace(broker_options(), on_corrupt=on_corrupt)
    found: list[int] = []
    times = read_ranges(ranges, options, read_columns("offset", "timestamp"), 2**20)
    with pytest.raises(kf.InvalidRecordError, match=r"^a-0: timestamp for Arrow.* offsets 1 to 1\b"):
        found.extend(offset for rows in times for offset in rows.column("offset").to_pylist())
    assert found == [0]
    untimed = read_ranges(ranges, options, read_columns("offset"), 2**20)
    assert [offset for rows in untimed for offset in rows.column("offset").to_pylist()] == list(range(END))
