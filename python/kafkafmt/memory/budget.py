"""One budget in bytes for all that holds some, and a fair line in front of it (the pool of Memory Management in Kafka
Streams, "Summary", out of which caches, buffers and stores allocate; Kafka's BufferPool is one without children).

It counts bytes and holds none: who reserves some may allocate as many, wherever it likes. What a child holds counts in
all its parents. The counting, under the GIL and without a lock, is in `_kafkafmt.reservations`; here are the waits, who
is asked to give back before them, and the shares of other processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from _kafkafmt.reservations import Account, Reservation, Waiter
from kafkafmt.memory.errors import MemoryBudgetError
from kafkafmt.sizes import parse_size

_asking = threading.local()


class Usage(NamedTuple):
    """What is known of one budget. name: with those of its parents in front and dots between. waiting: callers."""

    name: str
    total_bytes: int
    held_bytes: int
    peak_bytes: int
    waiting: int


class MemoryBudget(Account):
    """`total_bytes`, handed out in the order in which they are asked for. Safe to use from several threads.

    total_bytes: a number, or a text as `512m`. Of a budget with children, each waits for its own bytes and for those of
    its parents; who waits for those of one child holds up nobody who wants those of another.

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
        """A budget under this one, with a bound of its own or only that of its parents.

        A name that a child has already gets a number behind it, as `cache-2`. `close` takes a child away again.
        """
        size = None if total_bytes is None else parse_size(total_bytes)
        taken = {child.name.removeprefix(f"{self.name}.") for child in self._children}
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        child = type(self).__new__(type(self))
        child._begin(size, unique, self)
        self._children.append(child)
        return child

    def reserve(self, size_bytes: int, timeout: float | None = None) -> Reservation:
        """A reservation of so many bytes, after waiting for them up to `timeout` seconds (None: for ever).

        Those who said `on_pressure` give back first, and the bytes are for those who are in line. With a timeout of 0
        it only comes to that. Raises MemoryBudgetError after the time, once the budget is closed, and at once where
        there are not so many bytes in all; ValueError for a size below 0.
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
        finally:  # which an interrupt may have come to just as the bytes did
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
        """Which of this budget and its parents has the least left."""
        budget = min(self._chain(), key=lambda one: one.total_bytes - one.held_bytes)
        return f"{budget.held_bytes} of {budget.total_bytes} bytes of {budget.name} are held"

    def _chain(self) -> Iterator[MemoryBudget]:
        budget: MemoryBudget | None = self
        while budget is not None:
            yield budget
            budget = budget._above

    def _family(self) -> Iterator[MemoryBudget]:
        """This one and all that are under it."""
        yield self
        for child in tuple(self._children):
            yield from child._family()

    def on_pressure(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Have `callback(bytes_wanted)` called before anyone waits for bytes of this budget or of what it is under.

        It is called in the waiter's thread and outside all locks of the budget; what it lets go of, by `release` or
        `resize`, goes to those who are in line. What it raises, the waiter raises. Where it waits for bytes itself,
        nobody is asked. Returns a function that takes it away again.
        """
        self._callbacks.append(callback)

        def forget() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return forget

    def _ask_for(self, waiter: Waiter) -> None:
        """Ask whoever holds bytes that lack, the budget's own first, until the waiter has them."""
        if getattr(_asking, "is_asking", False):
            return
        _asking.is_asking = True
        try:
            for lacking in self._chain():
                for callback in [callback for budget in lacking._family() for callback in budget._callbacks]:
                    wanted = lacking._missing_bytes(waiter)
                    if wanted > 0:
                        callback(wanted)
                if lacking._missing_bytes(waiter) > 0:
                    break  # what is above is asked once this one has enough
        finally:
            _asking.is_asking = False

    def resize(self, total_bytes: int | str) -> None:
        """Have another total. Where more is held, it stays, and nobody gets any until it has gone.

        Who waits for more than there is then gets MemoryBudgetError.
        """
        self._resize(parse_size(total_bytes))

    def close(self) -> None:
        """Give out no more bytes, here and below: who waits goes without. What is held is until it is released."""
        self._close()
        if self._above is not None and self in self._above._children:
            self._above._children.remove(self)

    def usage(self) -> list[Usage]:
        """What is known of this budget and of all that are under it, parents first."""
        return [
            Usage(one.name, one.total_bytes, one.held_bytes, one.peak_bytes, one.waiting)
            for one in self._family()
        ]

    def divide(self, count: int, total_bytes: int | str | None = None) -> list[BudgetShare]:
        """Shares for `count` processes, of equal size and held here until each is released.

        total_bytes: of all of them; what is available where it is None. Raises MemoryBudgetError where there is less,
        or not a byte for each.
        """
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
    """What another process may hold. Pickled, it is its name and size; the reservation stays where it was divided."""

    def __init__(self, name: str, reservation: Reservation) -> None:
        self.name = name
        self.total_bytes = reservation.size_bytes
        self._reservation: Reservation | None = reservation

    def open(self) -> MemoryBudget:
        """A budget of so many bytes, in the process that calls it."""
        return MemoryBudget(self.total_bytes, self.name)

    def release(self) -> None:
        """Give the bytes back, once that process has ended; a second call does nothing.

        Raises RuntimeError in another process than that which divided.
        """
        if self._reservation is None:
            raise RuntimeError(
                f"{self.name}: expected to be released where it was divided, found a copy of it"
            )
        self._reservation.release()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_reservation": None}
