"""A line of tasks in front of a MemoryBudget: who asks for bytes waits for its turn and never fails.

The line is first come, first served. What is larger than the budget waits until nothing else is held, and then has it
alone: the budget is over its total by that one. For the tasks of one event loop; the budget is no other's to reserve.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.serve.metrics import Metrics


class MemoryLine:
    """The bytes of `budget`, whose name and figures `metrics` is told of."""

    def __init__(self, budget: MemoryBudget, metrics: Metrics) -> None:
        self.budget = budget
        self._metrics = metrics
        self._line: deque[tuple[int, asyncio.Future[None], MemoryLease]] = deque()
        # Whose turn has come, and who has not said yet what it takes in truth.
        self._admitted: MemoryLease | None = None

    @property
    def is_awaited(self) -> bool:
        """Does anybody wait for its turn?"""
        return bool(self._line)

    def _fits(self, size: int, lease: MemoryLease) -> bool:
        """Is there room for `size` bytes more for the lease, or does nobody hold any?"""
        held = self.budget.held_bytes
        return held == 0 or held + size <= self.budget.total_bytes

    def _may_overtake(self, lease: MemoryLease) -> bool:
        """Does the lease get what it asks for before those in line?"""
        return not self._line

    def _told(self) -> None:
        self._metrics.memory_used(self.budget)

    async def _wait(self, size: int, lease: MemoryLease, seconds: float | None = None) -> None:
        """Until `size` bytes more are held for the lease. Raises TimeoutError after the time."""
        if self._may_overtake(lease) and self._fits(size, lease):
            lease._hold(lease.held + size)
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append((size, turn, lease))
        self._told()
        timer = None if seconds is None else loop.call_later(seconds, turn.cancel)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line = deque(waiting for waiting in self._line if waiting[1] is not turn)
            else:
                lease._hold(lease.held - size)
            self._settle(lease)
            if timer is not None and timer.when() <= loop.time():
                raise TimeoutError(
                    f"{self.budget.name}: {size} bytes were not free within {seconds} s"
                ) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._told()

    def _settle(self, lease: MemoryLease) -> None:
        """The lease holds what it takes: the next one may have its turn, if there is room."""
        if self._admitted is lease:
            self._admitted = None
        while self._admitted is None and self._line and self._fits(self._line[0][0], self._line[0][2]):
            size, turn, admitted = self._line.popleft()
            if not turn.done():
                admitted._hold(admitted.held + size)
                self._admitted = admitted
                turn.set_result(None)


class MemoryLease:
    """What one task holds; nothing at first."""

    def __init__(self, line: MemoryLine) -> None:
        self._line = line
        reservation = line.budget.try_reserve(0)
        if reservation is None:
            raise ValueError(f"{line.budget.name}: expected a budget that is open")
        self._reservation = reservation

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._reservation.size_bytes

    async def acquire(self, size: int) -> None:
        """Hold `size` bytes in place of what is held, once it is the caller's turn."""
        self.resize(0)
        await self.extend(size)

    async def extend(self, size: int, seconds: float | None = None) -> None:
        """Hold `size` bytes more, once it is the caller's turn. Raises TimeoutError after the time."""
        await self._line._wait(size, self, seconds)
        # What is made at once is told of by `resize`, before the next one in line gets its turn.
        asyncio.get_running_loop().call_soon(self._line._settle, self)

    def try_acquire(self, size: int) -> bool:
        """Hold `size` bytes more, if that is possible at once."""
        if self._line.is_awaited or not self._line._fits(size, self):
            return False
        self.resize(self.held + size)
        return True

    def resize(self, size: int) -> None:
        """Hold what is taken in truth, be it more: others wait then."""
        self._hold(size)
        self._line._settle(self)

    def _hold(self, size: int) -> None:
        if size != self.held:
            self._reservation.resize(size)
            self._line._told()
