"""Tasks of an event loop that wait for bytes of a budget, in the one line of the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from _kafkafmt.streams.waiters import Waiter
from kafkafmt import MemoryBudget
from kafkafmt.memory.admission import AdmissionQueue, MemoryLease

TOTAL = 100


class Counted(AdmissionQueue):
    """What is held and whether a task waits, after each change."""

    def __init__(self) -> None:
        super().__init__(MemoryBudget(TOTAL))
        self.changes: list[tuple[int, bool]] = []

    def on_change(self) -> None:
        self.changes.append((self.budget.held_bytes, self.is_awaited))


def run(scenario: Callable[[Counted], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario(Counted()))


async def admitted(queue: AdmissionQueue, size: int) -> asyncio.Task[MemoryLease]:
    """A task that asks for bytes, and that has come as far as it can."""

    async def admit() -> MemoryLease:
        lease = MemoryLease(queue)
        await queue.admit(lease, size)
        lease.end_turn()
        return lease

    task = asyncio.create_task(admit())
    await asyncio.sleep(0)
    return task


def test_tasks_when_bytes_are_free_again_then_are_admitted_in_their_order() -> None:
    async def scenario(queue: Counted) -> None:
        tasks = [await admitted(queue, size) for size in (TOTAL, 70, 20, 30, 10)]
        assert [task.done() for task in tasks] == [True, False, False, False, False]
        tasks[0].result().resize(0)
        await asyncio.wait(tasks[:3])
        assert queue.budget.held_bytes == 90
        assert not tasks[4].done(), "it would fit, but another one was there before"
        tasks[1].result().resize(0)
        await asyncio.wait(tasks)
        assert (queue.budget.held_bytes, queue.is_awaited) == (60, False)

    run(scenario)


def test_task_when_another_has_its_turn_then_waits_though_bytes_are_free() -> None:
    async def scenario(queue: Counted) -> None:
        lease = MemoryLease(queue)
        await queue.admit(lease, 10)
        other = await admitted(queue, 10)
        assert (other.done(), queue.is_awaited) == (False, True)
        lease.resize(50)
        await other
        assert queue.budget.held_bytes == 60

    run(scenario)


def test_task_when_it_asks_for_more_than_the_total_then_has_it_alone() -> None:
    async def scenario(queue: Counted) -> None:
        one, huge, last = [await admitted(queue, size) for size in (1, 10 * TOTAL, 1)]
        one.result().resize(0)
        await huge
        assert queue.budget.held_bytes == 10 * TOTAL
        assert not last.done()
        huge.result().resize(0)
        await last

    run(scenario)


def test_task_when_bytes_are_not_free_in_time_then_raises_and_those_after_it_are_admitted() -> None:
    async def scenario(queue: Counted) -> None:
        held, hasty = MemoryLease(queue), MemoryLease(queue)
        held.extend(60)
        hasty_task = asyncio.create_task(queue.admit(hasty, 50, 0.01))
        await asyncio.sleep(0)
        small = await admitted(queue, 40)
        assert not small.done()
        with pytest.raises(TimeoutError, match=r"total: 50 bytes were not free within 0\.01 s"):
            await hasty_task
        await small
        assert (hasty.held, queue.budget.held_bytes) == (0, 100)

    run(scenario)


def test_queue_when_tasks_wait_and_are_admitted_then_is_told_of_each_change() -> None:
    async def scenario(queue: Counted) -> None:
        lease = MemoryLease(queue)
        lease.extend(80)
        task = await admitted(queue, 50)
        lease.resize(0)
        await task
        assert queue.changes == [(80, False), (80, True), (50, False), (50, False), (50, False)]

    run(scenario)


def test_waiters_when_a_release_serves_several_then_are_woken_in_order_after_the_counts_are_whole() -> None:
    """What a waiter is woken by may use the budget itself."""
    budget = MemoryBudget(TOTAL)
    held, seen = budget.reserve(TOTAL), []

    def wake(number: int) -> None:
        seen.append((number, budget.held_bytes, budget.waiting))
        if number == 0:
            waiters[0].take().release()

    waiters = [Waiter(budget, 40, partial(wake, number)) for number in range(3)]
    for waiter in waiters:
        waiter.enlist()
    held.release()
    assert seen == [(0, 80, 1), (2, 80, 0), (1, 80, 0)]
    assert [waiter.is_served for waiter in waiters] == [False, True, True]


def test_waiters_when_one_raises_as_it_is_woken_then_the_others_are_woken_too() -> None:
    budget = MemoryBudget(TOTAL)
    held, woken = budget.reserve(TOTAL), []

    def wake(number: int) -> None:
        woken.append(number)
        if number < 2:
            raise OSError(f"waiter {number}")

    for number in range(3):
        Waiter(budget, TOTAL // 3, partial(wake, number)).enlist()
    with pytest.raises(OSError, match="waiter 0"):
        held.release()
    assert woken == [0, 1, 2]
