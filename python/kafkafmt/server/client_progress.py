"""Whether a client moves enough of a request or a response while others wait for the memory of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from kafkafmt.server.errors import RefusedError
from kafkafmt.server.request_memory import LEAST_MOVED_BYTES, PATIENCE_SECONDS
from kafkafmt.server.stream import StalledError

if TYPE_CHECKING:
    from kafkafmt.server.request import AnswerMemory

_Made = TypeVar("_Made")


class ClientProgress:
    """Refuses a client that is too slow while others wait for the memory that it holds.

    A client has PATIENCE_SECONDS for LEAST_MOVED_BYTES. The time in which the server waits for memory counts too, if it
    is not `excused`: under such load, clients that move little give way to those that wait.
    way: what the client does, `send` or `take`.
    """

    def __init__(self, memory: AnswerMemory, way: str) -> None:
        self._memory, self._way = memory, way
        self._loop = asyncio.get_running_loop()
        self._begin()

    def _begin(self) -> None:
        self._ends_at, self._moved = self._loop.time() + PATIENCE_SECONDS, 0

    def count(self, size: int) -> None:
        """Count bytes that the client sent or read."""
        self._moved += size

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Give the client more time: as much as the block takes."""
        began = self._loop.time()
        try:
            yield
        finally:
            self._ends_at += self._loop.time() - began

    async def wait_for(self, wait: Callable[[float], Awaitable[_Made]], seconds: float) -> _Made:
        """Return the result of `wait(seconds)`. Raises StalledError after that time, RefusedError for a slow client."""
        deadline = self._loop.time() + seconds
        while True:
            now = self._loop.time()
            if now >= self._ends_at:
                if self._memory.is_wanted and self._moved < LEAST_MOVED_BYTES:
                    raise RefusedError(
                        f"others wait for {self._memory.held} bytes of memory: expected a client to {self._way} "
                        f"{LEAST_MOVED_BYTES} bytes in {PATIENCE_SECONDS} s, found {self._moved}",
                        "memory",
                    )
                self._begin()
            try:
                return await wait(min(self._ends_at, deadline) - now)
            except StalledError:
                if self._loop.time() >= deadline:
                    raise
