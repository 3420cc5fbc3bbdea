"""The memory for requests and responses of all connections of a process: as they arrive, decoded, and until sent.

A connection has some bytes of its own, which are part of its cost in `memory_plan.py`: requests of a few kilobytes
never wait. Further bytes come from one budget, step by step. Tasks that hold some bytes may wait for more, and could
wait for each other. Therefore the first of them gets all that it asks for, even beyond the budget, until it holds
nothing. So the most that is held is the budget and one request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kafkafmt.memory.admission import AdmissionQueue, MemoryLease
from kafkafmt.server.errors import RequestError

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.server.metrics import Metrics

# The bytes that a connection may take for a request and its response without the budget.
OWN_BYTES = 64 * 1024
# A request is held as it is received and as a frame, or as a message and as batches that get offsets.
REQUEST_COPIES = 2
# Bytes that an element of a request takes while it is answered: what is looked up for it, and its part of the response
# as an object and encoded. Measured by `bench/experiments/serve_hostile.py`.
ANSWER_ELEMENT_BYTES = 768
# Bytes that the records of a partition take until they are sent: ranges of files, and the objects that read them.
RECORDS_BYTES = 1536
# Bytes in a response are held at their source, and in the growing buffer of the encoded response.
ENCODED_COPIES = 2
# While others wait for memory, a client must send or read this many bytes of a large request or response in this time.
PATIENCE_SECONDS, LEAST_MOVED_BYTES = 5.0, 64 * 1024


class RequestMemoryError(RequestError):
    """A request takes more memory than its limit, or there was no memory for it in time."""


class RequestMemory(AdmissionQueue):
    """The budget for requests. For the tasks of one event loop.

    max_bytes: the limit for one request beyond its connection's own bytes. seconds: the longest wait for memory.
    """

    def __init__(
        self, budget: MemoryBudget, metrics: Metrics, *, max_bytes: int | None = None, seconds: float = 60.0
    ) -> None:
        super().__init__(budget)
        self._metrics = metrics
        self.max_bytes = budget.total_bytes if max_bytes is None else max_bytes
        self.seconds = seconds
        self._first: MemoryLease | None = None
        self._yielding: set[asyncio.Future[bool]] = set()

    def lease(self) -> RequestLease:
        """Return the lease of one request. It holds nothing at first."""
        return RequestLease(self)

    @contextlib.contextmanager
    def yield_when_awaited(self, woken: asyncio.Future[bool]) -> Iterator[None]:
        """Set the future's result to False as soon as a task waits for memory, within the block."""
        self._yielding.add(woken)
        try:
            yield
        finally:
            self._yielding.discard(woken)

    async def admit(self, lease: MemoryLease, size: int, seconds: float | None = None) -> None:
        """Extend a lease by `size` bytes, and wait for memory if needed, `seconds` at most."""
        if self._first is lease:
            lease.extend(size)
        elif lease.try_extend(size):
            return
        elif self._first is None and not self.is_awaited:
            self._first = lease
            lease.extend(size)
        else:
            try:
                await super().admit(lease, size, seconds)
            except BaseException:
                if self._first is lease:  # it became the first during the wait
                    self._first = None
                    self.on_change()
                raise
            # The next task is served after this one has run up to its next wait.
            asyncio.get_running_loop().call_soon(lease.end_turn)

    def end_first(self, lease: MemoryLease) -> None:
        """End the lease's right to exceed the budget. The next one with it is the first task that lacks bytes."""
        if self._first is lease:
            self._first = None

    def on_change(self) -> None:
        if self._first is None and self.is_awaited:
            self._first = self.overdraw_first()
        self._metrics.memory_used(self.budget)
        if self.is_awaited:
            for waiting in self._yielding:
                if not waiting.done():
                    waiting.set_result(False)


class RequestLease(MemoryLease):
    """The memory of one request, including its connection's own bytes."""

    def __init__(self, memory: RequestMemory) -> None:
        super().__init__(memory)
        self._memory = memory
        self._taking = asyncio.Lock()  # several tasks may answer parts of one request
        self.taken_bytes = 0

    @property
    def available_bytes(self) -> int:
        """Return the bytes that are free, without waiting."""
        return self._memory.budget.available_bytes

    @property
    def is_wanted(self) -> bool:
        """Do others wait for what is held here?"""
        return self.held > 0 and self._memory.is_awaited

    async def take(self, size: int) -> None:
        """Take `size` bytes more, after waiting tasks. Raises RequestMemoryError."""
        async with self._taking:
            await self._take(size)

    async def _take(self, size: int) -> None:
        taken = self.taken_bytes + size
        beyond = taken - OWN_BYTES - self.held
        if beyond > 0:
            if taken - OWN_BYTES > self._memory.max_bytes:
                raise RequestMemoryError(
                    f"a request that takes {taken} bytes of memory or more, decoded and answered: expected at most "
                    f"{self._memory.max_bytes + OWN_BYTES}"
                )
            try:
                await self._memory.admit(self, beyond, self._memory.seconds)
            except TimeoutError as error:
                raise RequestMemoryError(str(error)) from None
        self.taken_bytes = taken

    def keep(self, size: int) -> None:
        """Release all but `size` bytes."""
        self.taken_bytes = size
        held = max(size - OWN_BYTES, 0)
        if held != self.held:
            if not held:
                self._memory.end_first(self)
            self.resize(held)

    @contextlib.contextmanager
    def yielding_to_others(self, woken: asyncio.Future[bool]) -> Iterator[None]:
        """Set the future's result to False as soon as others wait for what is held here, within the block."""
        if self.is_wanted:
            woken.set_result(False)
        with self._memory.yield_when_awaited(woken) if self.held else contextlib.nullcontext():
            yield
