"""The cap on what large requests take together: who waits for room, and who is let in when there is some."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kafkafmt.memory import MemoryBudget
from kafkafmt.serve.metrics import Metrics
from kafkafmt.serve.producing.request_memory import RequestMemory
from serve.groups.requests import heartbeat, join, sync
from serve.raw_client import RawClient
from serve.served import Served

VERSION = 3  # of JoinGroup: no member has to ask twice
LARGE = bytes(100_000)
REBALANCE_IN_PROGRESS = 27


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
