"""Turns on the event loop: work that a client can make long gives the other connections theirs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, TypeVar

from kafkafmt._util.steps import Steps

if TYPE_CHECKING:
    from kafkafmt.serve.request_memory import RequestLease

_Item = TypeVar("_Item")

# Work goes on for so long before others get a turn.
_TURN_SECONDS = 0.01
# Memory is taken for so much at a time.
_TAKEN_BYTES = 16 * 1024


def freeze_start() -> None:
    """Have Python's collector pass over all that there is now: to look through it takes some 30 ms."""
    gc.collect()
    gc.freeze()


class Turns:
    """Made where work begins; `give` is called between its steps, however short those are.

    memory: of the request that the work is for; None: what it takes is not counted.
    """

    def __init__(self, memory: RequestLease | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + _TURN_SECONDS
        self._memory = memory
        self._not_taken = 0

    async def give(self, size: int = 0) -> None:
        """Let others go on, where this turn has lasted long enough.

        size: bytes that the next step adds to the answer. Raises RequestMemoryError.
        """
        self._not_taken += size
        if self._not_taken >= _TAKEN_BYTES and self._memory is not None:
            await self._memory.take(self._not_taken)
            self._not_taken = 0
        if self._loop.time() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + _TURN_SECONDS


async def by_steps(steps: Steps[_Item], turns: Turns | None = None) -> _Item:
    """What steps make: others have their turns between them, and what may go on in a thread does."""
    result = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:  # most often at once
            made: _Item = end.value
            return made
        turns = Turns() if turns is None else turns
        result = None if step is None else await asyncio.to_thread(step)
        await turns.give()


async def by_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """The items, each a step."""
    turns = Turns()
    for item in items:
        await turns.give()
        yield item
