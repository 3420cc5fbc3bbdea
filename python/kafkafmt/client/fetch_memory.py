"""The bytes of responses that are on their way or wait for the caller, reserved from a budget."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import kafka.errors as kafka_errors

from _kafkafmt.columns.arrays import lend
from _kafkafmt.streams.waiters import Waiter
from kafkafmt.memory.errors import MemoryBudgetError

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.client.io_thread import IoThread
    from kafkafmt.memory.budget import MemoryBudget


class FetchMemory:
    """Reserves the bytes of responses. Only callbacks in the I/O thread call it.

    Any thread may call `is_waiting` and `ask_holders`.

    on_memory: called in the I/O thread when a reservation that was refused may be tried again.
    retry_s: after this time a reservation is tried again that the budget cannot give.
    """

    def __init__(
        self, budget: MemoryBudget, io: IoThread, on_memory: Callable[[], object], retry_s: float
    ) -> None:
        self._budget = budget
        self._io = io
        self._on_memory = on_memory
        self._retry_s = retry_s
        self._waiter: Waiter | None = None
        self._wanted_bytes = 0
        self._served: Reservation | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a reservation of this consumer, or of another user of the budget, waits for bytes."""
        return self._budget.is_awaited

    def reserve(self, most: int) -> Reservation | None:
        """Reserve up to `most` bytes, at most half of the budget; None if they are not free, until `on_memory`.

        A reservation that was waited for may have fewer or more bytes.

        Raises MemoryBudgetError if the budget is closed.
        """
        if self._served is not None:
            served, self._served = self._served, None
            return served
        if self._waiter is not None:
            return None
        if self._budget.is_closed:
            raise MemoryBudgetError(f"{self._budget.name} is closed: the consumer can fetch no more records")
        size = min(most, max(self._budget.total_bytes // 2, 1))
        found = self._budget.try_reserve(size)
        if found is None:
            self._wanted_bytes = size
            self._waiter = Waiter(self._budget, size, self._wake)
            self._waiter.enlist()
        return found

    def ask_holders(self) -> None:
        """Ask the other users of the budget for the bytes that are waited for (`MemoryBudget.on_pressure`).

        The caller's thread calls this: what the users do may take long.
        """
        if self._waiter is None:
            return
        with suppress(MemoryBudgetError):  # the bytes go to the waiter, which is first in line
            self._budget.reserve(self._wanted_bytes, timeout=0).release()

    def _wake(self) -> None:
        """Take the bytes in the I/O thread: a waiter is woken in the thread that releases bytes."""
        with suppress(kafka_errors.KafkaConnectionError):  # the thread has ended
            self._io.call_soon(self._take)

    def _take(self) -> None:
        waiter = self._waiter
        if waiter is None:
            return
        self._waiter = None
        if waiter.is_in_line:  # bytes of a parent are missing now: a waiter is woken for that only once
            waiter.leave(0)
            self._on_memory()
        elif waiter.is_served:
            self._served = waiter.take()
            self._on_memory()
        elif self._budget.is_closed:
            self._on_memory()
        else:  # the budget has become smaller
            self._io.call_later(self._retry_s, self._on_memory)

    def release_unused(self) -> None:
        """Release bytes that were waited for, and that no request needs now."""
        if self._served is not None:
            self._served.release()
            self._served = None

    def close(self) -> None:
        """Wait for no more bytes."""
        if self._waiter is not None:
            self._waiter.leave(0)
            self._waiter = None
        self.release_unused()


class ResponseMemory:
    """The reserved bytes of one response. They are released when no part of it waits any more."""

    def __init__(self, reservation: Reservation) -> None:
        self._reservation = reservation
        self._parts = 1
        self._lock = threading.Lock()

    def add_part(self) -> None:
        """Keep the bytes until one more call of `release`."""
        with self._lock:
            self._parts += 1

    def release(self) -> None:
        """Release a part, and the bytes with the last one."""
        with self._lock:
            self._parts -= 1
            is_last = self._parts == 0
        if is_last:
            self._reservation.release()


def lend_reserved(reservation: Reservation, size: int) -> memoryview:
    """Return memory for a response, and let the reservation have its size."""
    reservation.resize(size)
    return lend(size).data
