"""A cap on what large requests of all connections take together: a request is read once there is room for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class RequestMemory:
    """`most_bytes`, in the order in which they are asked for. For the tasks of one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def held(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes within the block; what is larger than all of it has it alone."""
        if self._line or not self._fits(size):
            turn = asyncio.get_running_loop().create_future()
            self._line.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._give_back(size)
                raise
        else:
            self._held_bytes += size
        try:
            yield
        finally:
            self._give_back(size)

    def _fits(self, size: int) -> bool:
        return not self._held_bytes or self._held_bytes + size <= self._most_bytes

    def _give_back(self, size: int) -> None:
        self._held_bytes -= size
        while self._line and (self._line[0][1].done() or self._fits(self._line[0][0])):
            next_size, turn = self._line.popleft()
            if not turn.done():
                self._held_bytes += next_size
                turn.set_result(None)
