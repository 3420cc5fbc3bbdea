"""A client that is slow while others wait for its memory is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kafkafmt.memory import MemoryBudget
from kafkafmt.server.client_progress import ClientProgress
from kafkafmt.server.errors import RefusedError
from kafkafmt.server.metrics import Metrics
from kafkafmt.server.request_memory import OWN_BYTES, PATIENCE_SECONDS, RequestMemory
from kafkafmt.server.stream import StalledError

LONG = 10 * PATIENCE_SECONDS


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time a test sets forward."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


def run(scenario: Callable[[Loop, ClientProgress], Awaitable[None]]) -> None:
    """Run with the progress of a client whose memory another request waits for."""

    async def main() -> None:
        memory = RequestMemory(MemoryBudget(100), Metrics(), seconds=100 * LONG)
        mine, first, other = memory.lease(), memory.lease(), memory.lease()
        await mine.take(OWN_BYTES + 60)
        await first.take(OWN_BYTES + 60)
        waiting = asyncio.create_task(other.take(OWN_BYTES + 60))
        await asyncio.sleep(0)
        assert mine.is_wanted
        await scenario(loop, ClientProgress(mine, "send"))
        waiting.cancel()

    loop = Loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_client_when_it_moves_too_little_then_is_refused() -> None:
    async def scenario(loop: Loop, progress: ClientProgress) -> None:
        async def stall(seconds: float) -> bytes:
            loop.skipped += seconds
            raise StalledError("waited too long")

        progress.count(1)
        with pytest.raises(RefusedError, match=r"others wait for 60 bytes of memory.*found 1$"):
            await progress.wait_for(stall, LONG)

    run(scenario)


def test_client_when_it_stalls_for_all_of_its_time_then_has_stalled() -> None:
    async def scenario(loop: Loop, progress: ClientProgress) -> None:
        async def stall(seconds: float) -> bytes:
            loop.skipped += seconds
            raise StalledError("waited too long")

        with pytest.raises(StalledError):
            await progress.wait_for(stall, PATIENCE_SECONDS / 2)

    run(scenario)
