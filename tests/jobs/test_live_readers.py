"""Readers of a cluster's partitions, with a consumer that returns given batches."""

from __future__ import annotations

from typing import Any

import pytest

from _kafkafmt.batches.scan import BatchRun
from kafkafmt.errors import CorruptRecordError
from kafkafmt.jobs.live_readers import LiveOptions, LiveReadError, LiveReaders
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.memory import MemoryBudget
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from log.samples import batch, batches, unreadable

PARTITION = TopicPartition("orders", 0)
END = 7


class Consumer:
    """Returns these runs with one poll, after polls without any. Each poll takes its time by `clock`."""

    is_receiving = False

    def __init__(self, *runs: BatchRun, empty_polls: int = 0) -> None:
        self.runs = [*runs]
        self.empty_polls, self.seconds = empty_polls, 0.0

    def clock(self) -> float:
        return self.seconds

    def poll_runs(self, timeout_ms: float) -> dict[TopicPartition, list[BatchRun]]:
        self.seconds += timeout_ms / 1000
        if self.empty_polls:
            self.empty_polls -= 1
            return {}
        runs, self.runs = self.runs, []
        return {PARTITION: runs} if runs else {}

    def take_offset_resets(self) -> list[Any]:
        return []

    def position(self, partition: Any, timeout_ms: float) -> None:
        return None

    def ignore(self, *args: Any, **options: Any) -> None:
        pass

    assign = pause = resume = seek = close = ignore


def readers_of(data: bytes, options: LiveOptions, *, empty_polls: int = 0) -> LiveReaders:
    consumer: Any = Consumer(whole_batches(data), empty_polls=empty_polls)
    readers = LiveReaders(consumer, {PARTITION: (0, END)}, options, MemoryBudget(2**20), clock=consumer.clock)
    readers.seek(PARTITION, None)
    return readers


def read_to_end(readers: LiveReaders) -> list[int]:
    """Return the last offsets of all batches."""
    found = list[int]()
    while True:
        assert readers.ready([PARTITION]) == [PARTITION]
        run = readers.read(PARTITION)
        if run is None:
            return found
        found += run.index["last_offset"].tolist()


def test_batch_when_it_contains_the_end_then_its_records_before_the_end_are_read() -> None:
    readers = readers_of(batch(0, 5) + batch(5, 5), LiveOptions())
    assert read_to_end(readers) == [4, 6]
    assert readers.offset(PARTITION) == END


@pytest.mark.parametrize("offset", [0, 5])
def test_batch_when_it_contains_the_end_and_cannot_be_read_then_is_damage_up_to_the_end(offset: int) -> None:
    before = batches(0, offset, 5)
    data = b"".join(before) + unreadable(batch(offset, 10))
    met = list[SourceDamage]()
    readers = readers_of(data, LiveOptions(skips_damage=True, on_damage=met.append))
    assert read_to_end(readers) == [4] * len(before)
    assert readers.offset(PARTITION) == END
    assert [(one.offset, one.next_offset) for one in met] == [(offset, END)]
    with pytest.raises(CorruptRecordError, match=f"orders-0 at offset {offset}: "):
        read_to_end(readers_of(data, LiveOptions()))


@pytest.mark.parametrize("follows", [False, True])
def test_log_when_it_was_truncated_then_the_batches_before_are_read_and_the_position_is_after_them(
    follows: bool,
) -> None:
    """The consumer has begun the log again, in the same poll: it has two responses from the start."""
    consumer: Any = Consumer(*map(whole_batches, (batch(10, 10), batch(0, 5), batch(5, 5))))
    met = list[SourceDamage]()
    options = LiveOptions(follows=follows, idle_seconds=0.0, skips_damage=True, on_damage=met.append)
    readers = LiveReaders(consumer, {PARTITION: (10, 100)}, options, MemoryBudget(2**20))
    readers.seek(PARTITION, None)
    assert read_to_end(readers) == [19]
    assert readers.offset(PARTITION) == 20
    assert [(one.offset, one.next_offset) for one in met] == [(20, None)]


def test_bounded_read_when_nothing_arrives_for_longer_than_idle_seconds_then_waits_for_its_end() -> None:
    readers = readers_of(batch(0, 7), LiveOptions(idle_seconds=1.0), empty_polls=40)
    assert read_to_end(readers) == [6]
    assert readers.offset(PARTITION) == END


def test_followed_read_when_nothing_arrives_for_idle_seconds_then_is_idle() -> None:
    readers = readers_of(batch(0, 7), LiveOptions(follows=True, idle_seconds=1.0), empty_polls=40)
    readies = (readers.ready([PARTITION]) for _ in range(100))
    assert next(filter(None, readies)) == [PARTITION]
    assert readers.read(PARTITION) is None


def test_bounded_read_when_nothing_arrives_for_a_minute_then_is_an_error() -> None:
    readers = readers_of(batch(0, 7), LiveOptions(idle_seconds=1.0), empty_polls=1000)
    message = "orders-0: nothing has arrived for 60 s after offset 0, expected records up to offset 7"
    with pytest.raises(LiveReadError, match=message):
        readers.ready([PARTITION])


def test_bounded_read_when_its_caller_was_slow_then_waits_a_minute_from_then_on() -> None:
    consumer: Any = Consumer(whole_batches(batch(0, 7)))
    readers = LiveReaders(
        consumer, {PARTITION: (0, 14)}, LiveOptions(), MemoryBudget(2**20), clock=consumer.clock
    )
    readers.seek(PARTITION, None)
    assert readers.ready([PARTITION]) == [PARTITION]
    assert readers.read(PARTITION) is not None
    consumer.seconds += 300  # as a target does that takes the records slowly
    consumer.runs, consumer.empty_polls = [whole_batches(batch(7, 7))], 8
    assert readers.ready([PARTITION]) == [PARTITION]


def test_bounded_read_when_a_response_arrives_for_minutes_then_waits_for_it() -> None:
    consumer: Any = Consumer(whole_batches(batch(0, 7)), empty_polls=1000)
    consumer.is_receiving = True
    readers = LiveReaders(
        consumer, {PARTITION: (0, END)}, LiveOptions(), MemoryBudget(2**20), clock=consumer.clock
    )
    readers.seek(PARTITION, None)
    assert read_to_end(readers) == [6]
