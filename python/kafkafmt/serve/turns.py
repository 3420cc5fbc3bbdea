"""Turns on the event loop: work that a client can make long gives the other connections theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")

# Work goes on for so long before others get a turn.
_TURN_SECONDS = 0.01


class Turns:
    """Made where work begins; `give` is called between its steps, however short those are."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + _TURN_SECONDS

    async def give(self) -> None:
        """Let others go on, where this turn has lasted long enough."""
        if self._loop.time() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + _TURN_SECONDS


async def by_turns(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """The items, each a step."""
    turns = Turns()
    for item in items:
        await turns.give()
        yield item
