"""What one queue holds, in bytes: counted always, and reserved of a budget where there is one.

A count goes up before memory is taken and down after it was let go of, so that it is never too low.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.memory.errors import MemoryBudgetError

if TYPE_CHECKING:
    from kafkafmt.memory.budget import MemoryBudget


class HeldBytes:
    """Bytes held, `count` of them. With a budget they are one reservation of it, which is made here.

    Raises MemoryBudgetError where the budget is closed.
    """

    __slots__ = ("_budget", "_reservation", "count")

    def __init__(self, budget: MemoryBudget | None) -> None:
        self.count = 0
        self._budget = budget
        self._reservation = None if budget is None else budget.reserve(0, timeout=0)

    def try_add(self, size: int) -> bool:
        """Hold so many more, where the budget has them, or others give them back at once."""
        if self._reservation is not None and not self._reservation.try_resize(self.count + size):
            assert self._budget is not None
            try:
                self._budget.reserve(size, timeout=0).release()
            except MemoryBudgetError:
                return False
            if not self._reservation.try_resize(self.count + size):
                return False
        self.count += size
        return True

    def add(self, size: int) -> None:
        """Hold so many more, whether the budget has them or not: less than that gets nobody any further."""
        self.count += size
        if self._reservation is not None:
            self._reservation.resize(self.count)

    def add_up_to(self, wanted: int, least: int) -> int:
        """Hold `wanted` bytes more, or as many as are to be had, but at the least `least`, be they to be had or not."""
        if self.try_add(wanted):
            return wanted
        assert self._budget is not None
        size = min(wanted, self._budget.available_bytes)
        if size > least and self._reservation is not None and self._reservation.try_resize(self.count + size):
            self.count += size
            return size
        self.add(least)
        return least

    def remove(self, size: int) -> None:
        self.count -= size
        if self._reservation is not None:
            self._reservation.resize(self.count)

    def close(self) -> None:
        """Hold nothing any more. A second call does nothing."""
        self.count = 0
        if self._reservation is not None:
            self._reservation.release()
