"""The cap on what large requests take together: who waits for room, and who is let in when there is some."""

from __future__ import annotations

import asyncio

from kafkafmt.memory import MemoryBudget
from kafkafmt.serve.metrics import Metrics
from kafkafmt.serve.producing.request_memory import RequestMemory


class Holder:
    """A request that holds memory until it is let go."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.holds, self._may_end = False, asyncio.Event()
        self.task = asyncio.create_task(self._hold(memory, size))

    async def _hold(self, memory: RequestMemory, size: int) -> None:
        async with memory.held(size):
            self.holds = True
            await self._may_end.wait()
        self.holds = False

    async def end(self) -> None:
        self._may_end.set()
        await self.task


async def settle() -> None:
    """Let all tasks come as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_memory_when_it_is_taken_then_others_wait_in_their_order() -> None:
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics())
        holders = [Holder(memory, size) for size in (60, 40, 70, 10, 500)]
        await settle()
        assert [holder.holds for holder in holders] == [True, True, False, False, False]
        await holders[1].end()
        await settle()
        assert not holders[2].holds  # 60 and 70 are more than 100, and 10 does not overtake
        assert not holders[3].holds
        await holders[0].end()
        await settle()
        assert [holder.holds for holder in holders] == [False, False, True, True, False]
        await holders[2].end()
        await holders[3].end()
        await settle()
        assert holders[4].holds  # more than there is: it has it alone
        await holders[4].end()

    asyncio.run(run())


def test_memory_when_one_that_waits_is_cancelled_then_those_behind_it_go_on() -> None:
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics())
        first, second, third = (Holder(memory, size) for size in (60, 60, 60))
        await settle()
        second.task.cancel()
        await settle()
        await first.end()
        await settle()
        assert third.holds
        await third.end()
        last = Holder(memory, 100)
        await settle()
        assert last.holds
        await last.end()

    asyncio.run(run())
