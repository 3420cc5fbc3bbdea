"""What requests and their responses take in a process, of all connections: as they arrive, decoded, and until sent.

A connection has some bytes of its own, which are part of what it costs (`memory_plan.py`): requests of a few kilobytes
never wait. What is beyond comes out of one budget, as it is taken, step by step. A task that holds a part may wait for
more, so the tasks in line could all wait for each other: therefore the first of them gets all that it asks for, beyond
the budget, until it holds nothing. So the most that is held is the budget and one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafmt.serve.memory_line import MemoryLease, MemoryLine
from kafkafmt.serve.wire import RequestError

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.serve.metrics import Metrics

# What a connection may take for a request and its response without asking.
OWN_BYTES = 64 * 1024
# A request is held as it is received and as a frame, or as a message and as batches that get offsets.
REQUEST_COPIES = 2
# What an element of a request takes while it is answered: what is looked up for it, its part of the response as an
# object, and that part encoded. Measured by `bench/experiments/serve_hostile.py`.
ANSWER_ELEMENT_BYTES = 768
# Bytes in a response are held where they come from, and encoded in a buffer that grows.
ENCODED_COPIES = 2
# Others that wait for memory are not kept waiting by a client that moves fewer bytes of a large request or response,
# to or fro, in so many seconds.
PATIENCE_SECONDS, LEAST_MOVED_BYTES = 5.0, 64 * 1024


class RequestMemoryError(RequestError):
    """A request takes more memory than it may, or there was none for it in time."""


class RequestMemory(MemoryLine):
    """The bytes of a budget. For the tasks of one event loop.

    most_bytes: what one request may take beyond its connection's own. seconds: how long a request waits for memory.
    """

    def __init__(
        self, budget: MemoryBudget, metrics: Metrics, *, most_bytes: int | None = None, seconds: float = 60.0
    ) -> None:
        super().__init__(budget, metrics)
        self.most_bytes = budget.total_bytes if most_bytes is None else most_bytes
        self.seconds = seconds
        self._first: MemoryLease | None = None
        self._giving_way: set[asyncio.Future[bool]] = set()

    def lease(self) -> RequestLease:
        """What one connection's request takes; nothing at first."""
        return RequestLease(self)

    def _fits(self, size: int, lease: MemoryLease) -> bool:
        if super()._fits(size, lease):
            return True
        if self._first is None:
            self._first = lease
        return self._first is lease

    def _may_overtake(self, lease: MemoryLease) -> bool:
        return self._first is lease or super()._may_overtake(lease)

    def _told(self) -> None:
        super()._told()
        if self.is_awaited:
            for waiting in self._giving_way:
                if not waiting.done():
                    waiting.set_result(False)

    def _end_turn(self, lease: MemoryLease) -> None:
        if self._first is lease:
            self._first = None


class RequestLease(MemoryLease):
    """What one request takes, those bytes included that are its connection's own."""

    def __init__(self, memory: RequestMemory) -> None:
        super().__init__(memory)
        self._memory = memory
        self.taken_bytes = 0

    @property
    def is_wanted(self) -> bool:
        """Do others wait for what is held here?"""
        return self.held > 0 and self._memory.is_awaited

    async def take(self, size: int) -> None:
        """Take `size` bytes more, after others in line. Raises RequestMemoryError."""
        taken = self.taken_bytes + size
        beyond = taken - OWN_BYTES - self.held
        if beyond > 0:
            if taken - OWN_BYTES > self._memory.most_bytes:
                raise RequestMemoryError(
                    f"a request that takes {taken} bytes of memory or more, decoded and answered: expected at most "
                    f"{self._memory.most_bytes + OWN_BYTES}"
                )
            try:
                await self.extend(beyond, self._memory.seconds)
            except TimeoutError as error:
                raise RequestMemoryError(str(error)) from None
        self.taken_bytes = taken

    def keep(self, size: int) -> None:
        """Give back all but `size` bytes."""
        self.taken_bytes = size
        held = max(size - OWN_BYTES, 0)
        if held != self.held:
            if not held:
                self._memory._end_turn(self)
            self.resize(held)

    @contextlib.contextmanager
    def giving_way(self, woken: asyncio.Future[bool]) -> Iterator[None]:
        """Have the future's result set to False once others wait for what is held here."""
        if self.is_wanted:
            woken.set_result(False)
        waiting = self._memory._giving_way
        if self.held:
            waiting.add(woken)
        try:
            yield
        finally:
            waiting.discard(woken)
