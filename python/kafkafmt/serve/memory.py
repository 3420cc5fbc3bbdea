"""A cap on what the chunks of all connections take together: a conversion waits its turn for it and never fails.

The line is first come, first served. Chunks are smaller the more conversions there are, down to a least size, so that
many slow consumers share the cap rather than block each other; where a single batch alone takes more than the cap, its
conversion waits until nothing else is held.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kafkafmt.converted_chunks import ChunkMemory, chunk_memory_bytes
from kafkafmt.serve.metrics import Metrics

LEAST_CHUNK_BYTES = 16 * 1024


class DownConversionMemory:
    """`most_bytes` for chunks of at most `chunk_bytes` source bytes. For the tasks of one event loop."""

    def __init__(self, most_bytes: int, chunk_bytes: int, metrics: Metrics) -> None:
        self._most_bytes = most_bytes
        self._chunk_bytes = chunk_bytes
        self._metrics = metrics
        self._held_bytes = 0
        self._sends = 0
        self._line: deque[tuple[int, asyncio.Future[None], Lease]] = deque()
        # Whose turn has come, and who has not said yet what it takes in truth.
        self._admitted: Lease | None = None
        self.chunks = ChunkMemory(chunk_bytes, min(most_bytes // 4, 4 * chunk_memory_bytes(chunk_bytes)))

    def lease(self) -> Lease:
        """What one connection holds; nothing at first."""
        return Lease(self)

    def _count(self, change: int) -> None:
        """So many more connections convert: a chunk gets so small that those of all of them fit."""
        self._sends += change
        share = self._most_bytes * 1000 // chunk_memory_bytes(1000) // max(self._sends, 1)
        self.chunks.chunk_size = min(self._chunk_bytes, max(share, LEAST_CHUNK_BYTES))

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._metrics.memory_held(self._held_bytes)

    def _fits(self, size: int) -> bool:
        return self._held_bytes == 0 or self._held_bytes + size <= self._most_bytes

    @property
    def is_awaited(self) -> bool:
        """Does a conversion wait for its turn?"""
        return bool(self._line)

    async def _wait(self, size: int, lease: Lease) -> None:
        """Until `size` bytes are held for the caller."""
        if not self._line and self._fits(size):
            self._hold(size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append((size, turn, lease))
        self._metrics.memory_awaited(len(self._line))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line = deque(waiting for waiting in self._line if waiting[1] is not turn)
            else:
                self._hold(-size)
            self._settle(lease)
            raise
        finally:
            self._metrics.memory_awaited(len(self._line))

    def _settle(self, lease: Lease) -> None:
        """The lease holds what it takes: the next one may have its turn, if there is room."""
        if self._admitted is lease:
            self._admitted = None
        while self._admitted is None and self._line and self._fits(self._line[0][0]):
            size, turn, admitted = self._line.popleft()
            if not turn.done():
                self._hold(size)
                self._admitted = admitted
                turn.set_result(None)


class Lease:
    """What one connection holds of the memory. Between `begin` and `end` it counts among those that convert."""

    def __init__(self, memory: DownConversionMemory) -> None:
        self._memory = memory
        self._held = 0
        self._converts = False

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

    async def acquire(self, size: int) -> None:
        """Hold `size` bytes, once it is the caller's turn."""
        self.resize(0)
        await self._memory._wait(size, self)
        self._held = size
        # What is converted at once is told of by `resize`, before the next one in line gets its turn.
        asyncio.get_running_loop().call_soon(self._memory._settle, self)

    @property
    def held(self) -> int:
        """Bytes that the connection holds."""
        return self._held

    def try_acquire(self, size: int) -> bool:
        """Hold `size` bytes more, if that is possible at once."""
        if self._memory._line or not self._memory._fits(size):
            return False
        self.resize(self._held + size)
        return True

    def resize(self, size: int) -> None:
        """Hold what is taken in truth, be it more: others wait then."""
        change, self._held = size - self._held, size
        if change:
            self._memory._hold(change)
        self._memory._settle(self)
