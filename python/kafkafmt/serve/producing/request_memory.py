"""A cap on what large requests of all connections take together: a request is read once there is room for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from kafkafmt.serve.memory_line import MemoryLease, MemoryLine


class RequestMemory(MemoryLine):
    """The bytes of a budget, in the order in which they are asked for. For the tasks of one event loop."""

    @contextlib.asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[MemoryLease]:
        """Hold `size` bytes within the block, or less from when the lease is resized; what is larger than all of it has
        it alone.
        """
        lease = MemoryLease(self)
        await lease.acquire(size)
        try:
            yield lease
        finally:
            lease.resize(0)
