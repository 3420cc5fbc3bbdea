"""Accumulators that share one budget: who waits for what, and that none holds up the others for longer than it must."""

from __future__ import annotations

import threading

import pytest

import kafkafmt as kf
from client.accumulator.partitions import TP, Leaders, Sender, accumulator_of, append
from kafkafmt import BufferExhaustedError, MemoryBudget, RecordTooLargeError

LONG_MS = 60_000


def test_budget_when_shared_then_each_accumulator_has_a_part_by_its_own_name():
    total = MemoryBudget(64 * 1024)
    first = accumulator_of(budget=total, buffer_memory=48 * 1024)
    second = accumulator_of(budget=total, buffer_memory=128 * 1024)
    append(first)
    assert [usage.name for usage in total.usage()] == ["total", "total.accumulator", "total.accumulator-2"]
    assert [budget.total_bytes for budget in (first.budget, second.budget)] == [48 * 1024, 64 * 1024]
    assert total.held_bytes == first.budget.held_bytes > second.budget.held_bytes == 0


def test_budget_when_a_record_is_larger_than_what_is_shared_then_it_is_refused_at_once():
    accumulator = accumulator_of(budget=MemoryBudget(4096), buffer_memory=1024 * 1024)
    with pytest.raises(RecordTooLargeError, match="expected at most 4096"):
        append(accumulator, bytes(5000), max_block_ms=LONG_MS)


def test_budget_when_another_accumulator_holds_all_then_it_is_woken_and_sends_without_lingering():
    total = MemoryBudget(4096)
    awake = threading.Event()
    holder = accumulator_of(budget=total, linger_ms=LONG_MS, wakeup=awake.set)
    append(holder, bytes(3000))
    other = accumulator_of(budget=total)
    assert not holder.ready(Leaders(), 0).nodes  # it lingers
    appended: list[kf.accumulator.RecordFuture] = []
    caller = threading.Thread(
        target=lambda: appended.append(append(other, bytes(3000), max_block_ms=LONG_MS))
    )
    caller.start()
    assert awake.wait(60)
    assert holder.ready(Leaders(), 0).nodes == {0}
    Sender(holder).send()
    caller.join(60)
    assert len(appended) == 1
    assert not other.budget.is_awaited
    assert total.held_bytes == other.budget.held_bytes


def test_budget_when_another_accumulator_keeps_it_then_append_fails_and_says_what_is_held():
    total = MemoryBudget(4096)
    holder, other = accumulator_of(budget=total), accumulator_of(budget=total)
    append(holder, bytes(3000))
    with pytest.raises(
        BufferExhaustedError, match=r"no room after 0 ms: 0 batches .* hold 0 of 4096 bytes"
    ) as error:
        append(other, bytes(3000), max_block_ms=0)
    assert "of 4096 bytes of total are held" in str(error.value.__cause__)


def test_budget_when_an_accumulator_is_closed_then_the_others_go_on():
    total = MemoryBudget(64 * 1024)
    closed, open_one = accumulator_of(budget=total), accumulator_of(budget=total)
    append(closed)
    closed.close()
    append(open_one)
    Sender(closed).send()
    assert [usage.name for usage in total.usage()] == ["total", "total.accumulator-2"]
    assert total.held_bytes == open_one.budget.held_bytes
    with pytest.raises(kf.accumulator.AccumulatorClosedError):
        append(closed, tp=TP)
