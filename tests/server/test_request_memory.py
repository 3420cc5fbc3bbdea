"""The cap on what requests take together: who waits for room, and who is let in when there is some."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from endpoints.group_requests import heartbeat, join, sync
from endpoints.raw_client import RawClient
from endpoints.served import Served
from kafkafmt.memory import MemoryBudget
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.request_memory import OWN_BYTES, RequestMemory, RequestMemoryError

VERSION = 3  # of JoinGroup: no member has to ask twice
LARGE = bytes(100_000)
REBALANCE_IN_PROGRESS = 27


class Holder:
    """A request that holds memory until it is let go."""

    def __init__(self, memory: RequestMemory, size: int) -> None:
        self.holds, self._may_end = False, asyncio.Event()
        self.task = asyncio.create_task(self._hold(memory, size))

    async def _hold(self, memory: RequestMemory, size: int) -> None:
        lease = memory.lease()
        await lease.take(OWN_BYTES + size)
        self.holds = True
        await self._may_end.wait()
        lease.keep(0)
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
        holders = [Holder(memory, size) for size in (60, 40, 70, 10, 90)]
        await settle()
        # The first that does not fit has what it asks for.
        assert [holder.holds for holder in holders] == [True, True, True, False, False]
        await holders[1].end()
        await holders[0].end()
        await settle()
        assert [holder.holds for holder in holders] == [False, False, True, True, False]
        await holders[3].end()
        await settle()
        assert not holders[4].holds
        await holders[2].end()
        await settle()
        assert holders[4].holds
        await holders[4].end()

    asyncio.run(run())


def test_memory_when_all_who_hold_a_part_wait_for_more_then_one_after_the_other_gets_it() -> None:
    async def run() -> None:
        memory, held = RequestMemory(MemoryBudget(100), Metrics()), []

        async def grow() -> None:
            lease = memory.lease()
            await lease.take(OWN_BYTES + 20)
            await asyncio.sleep(0)
            await lease.take(60)
            held.append(memory.budget.held_bytes)
            await asyncio.sleep(0)
            lease.keep(0)

        await asyncio.wait_for(asyncio.gather(*(grow() for _ in range(5))), 60)
        assert len(held) == 5
        assert max(held) <= 200  # all of the budget, and one
        assert memory.budget.held_bytes == 0

    asyncio.run(run())


def test_request_when_it_takes_more_than_one_may_then_is_refused() -> None:
    async def run() -> None:
        lease = RequestMemory(MemoryBudget(100), Metrics(), max_bytes=150).lease()
        await lease.take(OWN_BYTES + 150)
        with pytest.raises(RequestMemoryError, match="expected at most"):
            await lease.take(1)

    asyncio.run(run())


def test_request_when_it_gets_no_memory_in_time_then_is_refused() -> None:
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics(), seconds=0.01)
        first, second, third = memory.lease(), memory.lease(), memory.lease()
        await first.take(OWN_BYTES + 80)
        await second.take(OWN_BYTES + 80)
        with pytest.raises(RequestMemoryError, match="were not free within"):
            await third.take(OWN_BYTES + 80)
        second.keep(0)
        await third.take(OWN_BYTES + 20)
        assert memory.budget.held_bytes == 100

    asyncio.run(run())


def test_long_poll_when_others_wait_for_its_memory_then_is_woken() -> None:
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics())
        polling, first, other = memory.lease(), memory.lease(), memory.lease()
        await polling.take(OWN_BYTES + 60)
        woken = asyncio.get_running_loop().create_future()
        with polling.yielding_to_others(woken):
            await first.take(OWN_BYTES + 60)
            assert not woken.done()
            waiting = asyncio.create_task(other.take(OWN_BYTES + 60))
            assert await asyncio.wait_for(woken, 60) is False
        polling.keep(0)
        first.keep(0)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(run())


def test_memory_when_one_that_waits_is_cancelled_then_those_behind_it_go_on() -> None:
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics())
        full, first, second, third = (Holder(memory, size) for size in (100, 60, 60, 60))
        await settle()
        assert (first.holds, second.holds, third.holds) == (True, False, False)
        await full.end()
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


def test_memory_when_the_first_is_cancelled_as_it_gets_bytes_then_the_next_gets_all_that_it_asks_for() -> (
    None
):
    async def run() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics())
        full, first = memory.lease(), memory.lease()
        await full.take(OWN_BYTES + 100)
        await first.take(OWN_BYTES + 60)
        cancelled, last = Holder(memory, 70), Holder(memory, 80)
        await settle()
        first.keep(0)
        cancelled.task.cancel()
        await settle()
        assert last.holds
        assert memory.budget.held_bytes == 180
        await last.end()

    asyncio.run(run())


def test_members_when_their_requests_are_large_then_join_though_the_memory_holds_only_one(
    tmp_path: Path,
) -> None:
    """The answer to the second waits for the first to join again."""
    with (
        Served(tmp_path, max_produce_memory_bytes=1) as served,
        RawClient(served.address) as first,
        RawClient(served.address) as second,
    ):
        leader = first.ask(join(metadata=LARGE), VERSION)
        member_id, generation = leader.member_id, leader.generation_id
        assert first.ask(sync(member_id, generation, {member_id: b""}), VERSION).error_code == 0
        other = join(metadata=LARGE)
        sent = second.send(other, VERSION)
        while first.ask(heartbeat(member_id, generation), VERSION).error_code != REBALANCE_IN_PROGRESS:
            pass
        rejoined = first.ask(join(member_id, metadata=LARGE), VERSION)
        joined = second.receive(other, VERSION, sent)
    assert (rejoined.error_code, joined.error_code) == (0, 0)
    assert len(rejoined.members) == 2
    assert rejoined.generation_id == joined.generation_id
