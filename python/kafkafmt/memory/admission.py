"""Reserve bytes of a MemoryBudget for the asyncio tasks of one event loop; a task waits until its bytes are free.

Tasks are served one at a time, in the order of their requests. The next task is served after the turn of the previous
one. So a task can first change its reservation to the bytes that it really needs. A task that requests more than the
total waits until nothing is reserved. Then it alone is served, and the budget exceeds its total by that task's excess.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from _kafkafmt.streams.waiters import Waiter

if TYPE_CHECKING:
    from kafkafmt.memory.budget import MemoryBudget


class AdmissionQueue:
    """Admit tasks to the bytes of `budget`, which has no parent and is used through this queue only."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for its turn, or for bytes."""
        return self.budget.is_awaited

    async def admit(self, lease: MemoryLease, size: int, seconds: float | None = None) -> None:
        """Reserve `size` bytes more for the lease, after earlier tasks were served. Its turn lasts until `end_turn`.

        Raises TimeoutError if the bytes are not free within `seconds`; with None it waits without limit.
        """
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()
        least = min(size, self.budget.total_bytes)
        waiter = Waiter(self.budget, least, woken.set, takes_turn=True, owner=lease)
        timer = None if seconds is None else loop.call_later(seconds, woken.set)
        try:
            waiter.enlist()
            self.on_change()
            await woken.wait()
            if not waiter.is_served:
                raise TimeoutError(f"{self.budget.name}: {size} bytes were not free within {seconds} s")
            lease.absorb(waiter, size, loop.time() - began)
        except BaseException:
            waiter.leave(loop.time() - began)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self.on_change()

    def overdraw_first(self) -> MemoryLease | None:
        """Serve the first waiting task, even beyond the total, unless another task has the turn.

        Returns the lease of that task, or None if no task was served.
        """
        waiter = None if self.budget._is_turn_taken else self.budget._overdraw_first()
        return None if waiter is None else waiter.owner

    def on_change(self) -> None:
        """Called after bytes were reserved or released, and after a task began or ended to wait. For subclasses."""


class MemoryLease:
    """The bytes that one task has reserved, 0 at first. Raises MemoryBudgetError if the budget is closed."""

    def __init__(self, queue: AdmissionQueue) -> None:
        self._queue = queue
        self._reservation = queue.budget.reserve(0, timeout=0)
        self._leave: Callable[[], None] | None = None

    @property
    def held(self) -> int:
        """Reserved bytes."""
        return self._reservation.size_bytes

    def try_extend(self, size: int) -> bool:
        """Reserve `size` bytes more if no task waits, and if they are free or nothing is reserved.

        Returns whether they were reserved.
        """
        budget = self._queue.budget
        if self._queue.is_awaited or (budget.held_bytes and size > budget.available_bytes):
            return False
        self.extend(size)
        return True

    def extend(self, size: int) -> None:
        """Reserve `size` bytes more, even beyond the total; other tasks wait then."""
        self._reservation.resize(self.held + size)
        self._queue.on_change()

    def resize(self, size: int) -> None:
        """Change the reservation to `size` bytes, even beyond the total, and end the turn."""
        if size != self.held:
            self._reservation.resize(size)
            self._queue.on_change()
        self.end_turn()

    def absorb(self, waiter: Waiter, size: int, waited_seconds: float) -> None:
        """Add `size` bytes, including those of the served `waiter`, and take over its turn.

        waited_seconds: how long the task waited.
        """
        held = self.held
        self._reservation.absorb(waiter.take())
        self._reservation.resize(held + size)
        self._leave = partial(waiter.leave, waited_seconds)

    def end_turn(self) -> None:
        """End the turn, so that the next task is served. A second call does nothing."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            leave()
            self._queue.on_change()
