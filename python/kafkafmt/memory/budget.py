"""A memory budget in bytes, whose callers wait in a fair queue.

It is the pool of Memory Management in Kafka Streams, "Summary", from which caches, buffers and stores allocate. Kafka's
BufferPool is such a pool without children.

The budget only counts. A caller that has reserved bytes allocates as many itself. Bytes that a child has reserved count
in all its parents. `_kafkafmt.streams.account_tree` counts, and serves the callers that wait. This module adds waiting,
the callbacks that release bytes before a caller waits, and the shares of other processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from _kafkafmt.streams.accounts import Account
from _kafkafmt.streams.reservations import Reservation
from _kafkafmt.streams.waiters import Waiter
from kafkafmt._util.sizes import parse_size
from kafkafmt.memory.errors import MemoryBudgetError
from kafkafmt.types import check_int

_asking = threading.local()
# Guards the lists of children; nothing waits under it. A finalizer may close a child while its thread names another.
_naming = threading.RLock()


class Usage(NamedTuple):
    """The state of one budget. name: `<parent>.<name>`. waiting: the number of callers that wait for bytes."""

    name: str
    total_bytes: int
    held_bytes: int
    peak_bytes: int
    waiting: int


class MemoryBudget(Account):
    """Reserve up to `total_bytes`, in the order of the requests. Safe to use from several threads.

    total_bytes: a number, or a text such as `512m`. A caller of a child waits for bytes of that child and of its
    parents. A caller that waits for bytes of one child does not delay callers of another child.

    >>> budget = MemoryBudget("1m")
    >>> buffers = budget.child("buffers", "768k")
    >>> with buffers.reserve(700_000):
    ...     budget.held_bytes, buffers.try_reserve(100_000), budget.try_reserve(100_000)
    (700000, None, <Reservation of 100000 bytes>)
    >>> [(usage.name, usage.held_bytes, usage.peak_bytes) for usage in budget.usage()]
    [('total', 100000, 800000), ('total.buffers', 0, 700000)]
    """

    def __init__(self, total_bytes: int | str, name: str = "total") -> None:
        self._begin(parse_size(total_bytes), name, None)

    def _begin(self, total_bytes: int | None, name: str, parent: MemoryBudget | None) -> None:
        super().__init__(total_bytes, parent)
        self.name: str = name if parent is None else f"{parent.name}.{name}"
        self._above = parent
        self._children: list[MemoryBudget] = []
        self._callbacks: list[Callable[[int], object]] = []

    def child(self, name: str, total_bytes: int | str | None = None) -> MemoryBudget:
        """Create a budget under this one. total_bytes: its own bound; None: only that of its parents.

        If a child has that name already, a number is appended: `cache-2`. `close` of the child removes it again.
        """
        size = None if total_bytes is None else parse_size(total_bytes)
        with _naming:
            taken = {child.name.removeprefix(f"{self.name}.") for child in tuple(self._children)}
            number, unique = 1, name
            while unique in taken:
                number += 1
                unique = f"{name}-{number}"
            child = type(self).__new__(type(self))
            child._begin(size, unique, self)
            self._children.append(child)
        return child

    def reserve(self, size_bytes: int, timeout: float | None = None) -> Reservation:
        """Reserve `size_bytes`; wait for them up to `timeout` seconds (None: without limit).

        If they are not free, the callbacks of `on_pressure` are called first; callers that wait already are served
        first. With a timeout of 0 the callbacks are called, but nothing is waited for.

        Raises MemoryBudgetError if the bytes are not free in time or the budget is closed, and at once if the total is
        smaller. Raises ValueError for a size below 0.
        """
        return self.try_reserve(size_bytes) or self._wait_for(size_bytes, timeout)

    def _wait_for(self, size_bytes: int, timeout: float | None) -> Reservation:
        self._ensure_possible(size_bytes)
        waiter = Waiter(self, size_bytes)
        began = time.monotonic()
        end = began + (threading.TIMEOUT_MAX if timeout is None else timeout)
        try:
            waiter.enlist()
            while waiter.is_in_line:
                self._ask_for(waiter)
                waiter.wait(min(end - time.monotonic(), threading.TIMEOUT_MAX))
                if time.monotonic() >= end:
                    break
            if waiter.is_served:
                return waiter.take()
        finally:  # an interrupt may arrive together with the bytes
            waiter.leave(time.monotonic() - began)
        self._ensure_possible(size_bytes)
        raise MemoryBudgetError(
            f"{self.name}: {size_bytes} bytes were not free within {timeout} s: expected at most "
            f"{self.available_bytes}, as {self._shortest()} and {self.waiting} others wait"
        )

    def _ensure_possible(self, size_bytes: int) -> None:
        if self.is_closed:
            raise MemoryBudgetError(f"{self.name} is closed and gives out no more bytes")
        for budget in reversed(tuple(self._chain())):
            if size_bytes > budget.total_bytes:
                raise MemoryBudgetError(
                    f"{self.name}: expected at most {budget.total_bytes} bytes, which {budget.name} has in all, "
                    f"found {size_bytes}"
                )

    def _shortest(self) -> str:
        """Return a text on the budget with the fewest free bytes, among this one and its parents."""
        budget = min(self._chain(), key=lambda one: one.total_bytes - one.held_bytes)
        return f"{budget.held_bytes} of {budget.total_bytes} bytes of {budget.name} are held"

    def _chain(self) -> Iterator[MemoryBudget]:
        budget: MemoryBudget | None = self
        while budget is not None:
            yield budget
            budget = budget._above

    def _family(self) -> Iterator[MemoryBudget]:
        """Yield this budget and all budgets under it."""
        yield self
        for child in tuple(self._children):
            yield from child._family()

    def on_pressure(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call `callback(bytes_wanted)` before a caller waits for bytes of this budget or of one of its parents.

        The callback runs in the waiting thread and outside all locks of the budget. Bytes that it releases, by
        `release` or `resize`, go to the waiting callers in their order. An exception of the callback is raised to the
        caller that waits. If the callback itself waits for bytes, no callbacks are called. Returns a function that
        removes the callback.
        """
        self._callbacks.append(callback)

        def forget() -> None:
            with suppress(ValueError):  # a second call finds none
                self._callbacks.remove(callback)

        return forget

    def _ask_for(self, waiter: Waiter) -> None:
        """Call the callbacks of the budgets that lack bytes, this one first, until the waiter has its bytes."""
        if getattr(_asking, "is_asking", False):
            return
        _asking.is_asking = True
        try:
            for lacking in self._chain():
                for callback in [
                    callback for budget in lacking._family() for callback in tuple(budget._callbacks)
                ]:
                    wanted = lacking._missing_bytes(waiter)
                    if wanted > 0:
                        callback(wanted)
                if lacking._missing_bytes(waiter) > 0:
                    break  # the waiter needs bytes of the parents only once this budget has enough
        finally:
            _asking.is_asking = False

    def resize(self, total_bytes: int | str) -> None:
        """Change the total. If more is reserved, nothing is reserved until enough of it was released.

        A caller that waits for more bytes than the new total gets MemoryBudgetError.
        """
        self._resize(parse_size(total_bytes))

    def close(self) -> None:
        """Refuse all further reservations of this budget and its children.

        Callers that wait get MemoryBudgetError. Existing reservations stay valid until they are released.
        """
        self._close()
        if self._above is not None:
            with _naming, suppress(ValueError):  # a second call finds none
                self._above._children.remove(self)

    def usage(self) -> list[Usage]:
        """Return the usage of this budget and of all budgets under it, parents first."""
        return [
            Usage(one.name, one.total_bytes, one.held_bytes, one.peak_bytes, one.waiting)
            for one in self._family()
        ]

    def divide(self, count: int, total_bytes: int | str | None = None) -> list[BudgetShare]:
        """Reserve `count` shares of equal size, one for each process; each counts here until it is released.

        total_bytes: of all shares; None: all bytes that are free. Raises MemoryBudgetError if fewer bytes are free, or
        fewer than one byte for each share; ValueError if `count` is below 1, and TypeError if it is no integer.
        """
        check_int("count", count)
        if count < 1:
            raise ValueError(f"count: expected 1 or more, found {count}")
        size = self.available_bytes if total_bytes is None else parse_size(total_bytes)
        if size < count:
            raise MemoryBudgetError(
                f"{self.name}: expected a byte or more for each of {count} shares, found {size}"
            )
        whole = self.reserve(size // count * count, timeout=0)
        parts = whole.split([size // count] * count)
        return [BudgetShare(f"{self.name}.{number}", part) for number, part in enumerate(parts)]

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.name}: {self.held_bytes} of {self.total_bytes} bytes held>"


class BudgetShare:
    """The bytes that another process may use. Pickling keeps name and size; the reservation stays in this process."""

    def __init__(self, name: str, reservation: Reservation) -> None:
        self.name = name
        self.total_bytes = reservation.size_bytes
        self._reservation: Reservation | None = reservation

    def open(self) -> MemoryBudget:
        """Create a MemoryBudget of `total_bytes` in the calling process."""
        return MemoryBudget(self.total_bytes, self.name)

    def release(self) -> None:
        """Release the bytes. Call it after the other process has ended; a second call does nothing.

        Raises RuntimeError for a pickled copy: only the process that called `divide` can release.
        """
        if self._reservation is None:
            raise RuntimeError(
                f"{self.name}: expected to be released where it was divided, found a copy of it"
            )
        self._reservation.release()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reservation": None}
