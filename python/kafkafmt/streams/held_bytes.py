"""Count the bytes that one queue uses, and reserve them of a budget if there is one.

The count is raised before memory is allocated, and lowered after it was freed. So it is never too low.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkafmt.memory.errors import MemoryBudgetError

if TYPE_CHECKING:
    from kafkafmt.memory.budget import MemoryBudget
    from kafkafmt.streams.buffer_bound import BufferBound


class HeldBytes:
    """A count of bytes in use. With a budget, they are one reservation of it.

    bound: the bound that all partitions share. The count never prevents `add`: the caller asks for room before.

    Attributes:
        count: all bytes.
        batch_bytes: those of raw batches.
        has_part: whether this has a part of the bound.
        weight: the bytes with which this counts in the bound, which sets it.

    Raises MemoryBudgetError if the budget is closed.
    """

    __slots__ = ("_bound", "_budget", "_reservation", "batch_bytes", "count", "has_part", "weight")

    def __init__(self, budget: MemoryBudget | None, bound: BufferBound) -> None:
        self.count = self.batch_bytes = self.weight = 0
        self.has_part = True
        self._budget = budget
        self._reservation = None if budget is None else budget.reserve(0, timeout=0)
        self._bound = bound
        bound.enter(self)

    def keep_part(self, has_part: bool) -> None:
        """Take a part of the bound, or leave it to the others."""
        if has_part != self.has_part:
            self.has_part = has_part
            self._bound.change_part()

    def count_batches(self, size: int) -> None:
        """Count `size` of the bytes as batches; a negative number after they were released."""
        self.batch_bytes += size
        self._bound.change(self)

    def try_add(self, size: int) -> bool:
        """Add `size` bytes if they are free, or if callbacks of the budget release them at once; False otherwise."""
        if self._reservation is not None and not self._reservation.try_resize(self.count + size):
            assert self._budget is not None
            try:
                self._budget.reserve(size, timeout=0).release()
            except MemoryBudgetError:
                return False
            if not self._reservation.try_resize(self.count + size):
                return False
        self._set_count(self.count + size)
        return True

    def add(self, size: int) -> None:
        """Add `size` bytes, even beyond the total: without them the queue could make no progress."""
        self._set_count(self.count + size)
        if self._reservation is not None:
            self._reservation.resize(self.count)

    def add_up_to(self, wanted: int, least: int) -> int:
        """Add `wanted` bytes, or as many as are free, but always `least`, even beyond the total. Returns how many."""
        if self.try_add(wanted):
            return wanted
        assert self._budget is not None
        size = min(wanted, self._budget.available_bytes)
        if size > least and self._reservation is not None and self._reservation.try_resize(self.count + size):
            self._set_count(self.count + size)
            return size
        self.add(least)
        return least

    def remove(self, size: int) -> None:
        """Subtract bytes that were released."""
        self._set_count(self.count - size)
        if self._reservation is not None:
            self._reservation.resize(self.count)

    def keep_stream(self, close: Callable[[], None], size: int) -> None:
        """Keep a large decompressor of `size` counted bytes until another one is opened; see `IdleStream`."""
        self._bound.idle_stream.keep(close, self, size, self._budget)

    def take_stream(self, close: Callable[[], None]) -> bool:
        """Take the decompressor that `keep_stream` kept. Returns False if it was closed since, or never kept."""
        return self._bound.idle_stream.take(close)

    def release_stream(self) -> None:
        """Close the kept decompressor, of whichever partition."""
        self._bound.idle_stream.release()

    def close(self) -> None:
        """Release all bytes. A second call does nothing."""
        self.count = self.batch_bytes = 0
        self._bound.leave(self)
        if self._reservation is not None:
            self._reservation.release()

    def _set_count(self, count: int) -> None:
        self.count = count
        self._bound.change(self)
