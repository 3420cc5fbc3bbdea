"""A limit for the converted chunks of all connections in memory. A conversion waits for memory, and never fails.

The more connections convert, the smaller their chunks are, down to a minimum: many slow consumers share the memory
and do not block each other. If a single batch takes more than the limit, its conversion waits until nothing else is
held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.convert.chunks import ChunkMemory, chunk_memory_bytes
from kafkafmt.memory.admission import AdmissionQueue, MemoryLease

if TYPE_CHECKING:
    from kafkafmt.convert.lazy import LazyDownConvertRecords
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.server.metrics import Metrics

LEAST_CHUNK_BYTES = 16 * 1024
# Buffers that are kept for reuse may take this fraction of the limit (1/4), in addition to it.
SPARE_PART = 4
# Memory is ample while the chunks of all connections that convert take at most this fraction of the limit (1/8).
_AMPLE_PART = 8


class DownConversionMemory(AdmissionQueue):
    """The bytes of a budget for chunks of at most `chunk_bytes` source bytes. For the tasks of one event loop."""

    def __init__(self, budget: MemoryBudget, chunk_bytes: int, metrics: Metrics) -> None:
        super().__init__(budget)
        self._metrics = metrics
        self._chunk_bytes = chunk_bytes
        self._sends = 0
        spare = min(budget.total_bytes // SPARE_PART, 4 * chunk_memory_bytes(chunk_bytes))
        self.chunks = ChunkMemory(chunk_bytes, spare)

    @property
    def is_ample(self) -> bool:
        """Whether the connections that convert now may hold their chunks until their clients have read them."""
        return self._sends * chunk_memory_bytes(self._chunk_bytes) * _AMPLE_PART <= self.budget.total_bytes

    def lease(self) -> Lease:
        """Return the lease of one connection. It holds nothing at first."""
        return Lease(self)

    def count_sends(self, change: int) -> None:
        """Add `change` to the number of connections that convert, and make chunks so small that all fit."""
        self._sends += change
        share = self.budget.total_bytes * 1000 // chunk_memory_bytes(1000) // max(self._sends, 1)
        self.chunks.chunk_size = min(self._chunk_bytes, max(share, LEAST_CHUNK_BYTES))

    def on_change(self) -> None:
        self._metrics.memory_used(self.budget)
        self._metrics.memory_held(self.budget.held_bytes)
        self._metrics.memory_awaited(self.budget.waiting)


class Lease(MemoryLease):
    """What one connection holds of the memory.

    From `acquire` to `resize` no other lease acquires any: the size of a conversion is known only after it.
    Between `begin` and `end` its connection counts as one that converts."""

    def __init__(self, memory: DownConversionMemory) -> None:
        super().__init__(memory)
        self._memory = memory
        self._converts = False

    async def acquire(self, size: int) -> None:
        """Release what is held, wait for the turn, and hold `size` bytes. The turn ends with `resize`."""
        self.resize(0)
        await self._memory.admit(self, size)

    def begin(self) -> None:
        """Count this connection among those that convert, once."""
        if not self._converts:
            self._converts = True
            self._memory.count_sends(1)

    def end(self) -> None:
        """Release everything that is held; the connection no longer counts as one that converts."""
        self.resize(0)
        if self._converts:
            self._converts = False
            self._memory.count_sends(-1)


class KeptConversions:
    """Conversions that were made to learn the sizes in a response, and are kept until they are sent.

    The first one is kept, and those after it while all of them take at most `most_bytes`. A conversion that is not kept
    is made again when it is sent.
    """

    def __init__(self, lease: Lease, most_bytes: int) -> None:
        self._lease, self._most_bytes = lease, most_bytes
        self._kept: list[LazyDownConvertRecords] = []
        self._bytes = 0
        self.is_full = False  # whether no further one is kept

    def add(self, records: LazyDownConvertRecords) -> None:
        """Keep a conversion, or forget it. Call this in the order of the response."""
        size = records.first_bytes
        fits = not self._kept or self._bytes + size <= self._most_bytes
        if size and fits and not self.is_full and self._lease.try_extend(size):
            self._kept.append(records)
            self._bytes += size
        else:
            self.is_full = True  # what is kept is sent before the memory of a chunk is acquired
            records.forget_first()

    def forget(self) -> None:
        """Forget all of them, and release their memory."""
        for records in self._kept:
            records.forget_first()
        self._lease.end()
