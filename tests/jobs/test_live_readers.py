"""Readers of a cluster's partitions, with a consumer that returns given batches."""

from __future__ import annotations

from typing import Any

import pytest

from _kafkafmt.batches.scan import BatchRun
from kafkafmt.errors import CorruptRecordError
from kafkafmt.jobs.live_readers import LiveOptions, LiveReaders
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.memory import MemoryBudget
from kafkafmt.records.runs import whole_batches
from kafkafmt.types import TopicPartition
from log.samples import batch, batches, unreadable

PARTITION = TopicPartition("orders", 0)
END = 7


class Consumer:
    """Returns these runs with its first poll."""

    def __init__(self, *runs: BatchRun) -> None:
        self.runs = [*runs]

    def poll_runs(self, timeout_ms: float) -> dict[TopicPartition, list[BatchRun]]:
        runs, self.runs = self.runs, []
        return {PARTITION: runs} if runs else {}

    def take_offset_resets(self) -> list[Any]:
        return []

    def position(self, partition: Any, timeout_ms: float) -> None:
        return None

    def ignore(self, *args: Any, **options: Any) -> None:
        pass

    assign = pause = resume = seek = close = ignore


def readers_of(data: bytes, options: LiveOptions) -> LiveReaders:
    consumer: Any = Consumer(whole_batches(data))
    readers = LiveReaders(consumer, {PARTITION: (0, END)}, options, MemoryBudget(2**20))
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
