"""A cap on what the chunks of all connections take together: a conversion waits its turn for it and never fails.

Chunks are smaller the more conversions there are, down to a least size, so that many slow consumers share the cap
rather than block each other; where a single batch alone takes more than the cap, its conversion waits until nothing
else is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafmt.converted_chunks import ChunkMemory, chunk_memory_bytes
from kafkafmt.serve.memory_line import MemoryLease, MemoryLine

if TYPE_CHECKING:
    from kafkafmt.memory import MemoryBudget
    from kafkafmt.serve.metrics import Metrics

LEAST_CHUNK_BYTES = 16 * 1024
# Of the cap, what buffers that wait to be used again may take beside it.
SPARE_PART = 4


class DownConversionMemory(MemoryLine):
    """The bytes of a budget for chunks of at most `chunk_bytes` source bytes. For the tasks of one event loop."""

    def __init__(self, budget: MemoryBudget, chunk_bytes: int, metrics: Metrics) -> None:
        super().__init__(budget, metrics)
        self._chunk_bytes = chunk_bytes
        self._sends = 0
        spare = min(budget.total_bytes // SPARE_PART, 4 * chunk_memory_bytes(chunk_bytes))
        self.chunks = ChunkMemory(chunk_bytes, spare)

    def lease(self) -> Lease:
        """What one connection holds; nothing at first."""
        return Lease(self)

    def _may_overtake(self, lease: MemoryLease) -> bool:
        return super()._may_overtake(lease) and self._admitted in (None, lease)

    async def _wait(self, size: int, lease: MemoryLease, seconds: float | None = None) -> None:
        await super()._wait(size, lease, seconds)
        self._admitted = lease

    def _count(self, change: int) -> None:
        """So many more connections convert: a chunk gets so small that those of all of them fit."""
        self._sends += change
        share = self.budget.total_bytes * 1000 // chunk_memory_bytes(1000) // max(self._sends, 1)
        self.chunks.chunk_size = min(self._chunk_bytes, max(share, LEAST_CHUNK_BYTES))

    def _told(self) -> None:
        super()._told()
        self._metrics.memory_held(self.budget.held_bytes)
        self._metrics.memory_awaited(len(self._line))


class Lease(MemoryLease):
    """What one connection holds of the memory.

    From `acquire` to `resize` nobody else acquires any: what the conversion of a batch takes is known then.
    Between `begin` and `end` it counts among those that convert."""

    def __init__(self, memory: DownConversionMemory) -> None:
        super().__init__(memory)
        self._memory = memory
        self._converts = False

    async def acquire(self, size: int) -> None:
        """Hold `size` bytes in place of what is held, once it is the caller's turn, which ends with `resize`."""
        self.resize(0)
        await self._line._wait(size, self)

    def begin(self) -> None:
        if not self._converts:
            self._converts = True
            self._memory._count(1)

    def end(self) -> None:
        """Give back all that is held."""
        self.resize(0)
        if self._converts:
            self._converts = False
            self._memory._count(-1)
