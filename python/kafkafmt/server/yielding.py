"""Helpers with which long work yields to the other connections of the event loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kafkafmt._util.steps import Steps

if TYPE_CHECKING:
    from kafkafmt.server.batch_work import BatchWork
    from kafkafmt.server.request_memory import RequestLease

_Item = TypeVar("_Item")

# Work runs for this long before it yields.
_BUDGET_SECONDS = 0.01
# Memory is taken in steps of at least this size.
_TAKEN_BYTES = 16 * 1024
# CPython 3.12 begins with 375 frozen objects, other versions with none.
_FROZEN_BY_PYTHON = 1000


@contextmanager
def frozen_start() -> Iterator[None]:
    """Exclude all current objects from Python's garbage collector, which needs some 30 ms to traverse them.

    They are as before at the end, since the caller may be another program. If that has frozen objects, nothing is
    changed: `gc.unfreeze` would be of its objects, too.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class YieldBudget:
    """The time that work has before it yields. Call `checkpoint` between its steps, however short they are.

    memory: the request's that the work is for; None: its memory is not counted.
    """

    def __init__(self, memory: RequestLease | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + _BUDGET_SECONDS
        self._memory = memory
        self._not_taken = 0

    async def checkpoint(self, size: int = 0) -> None:
        """Yield to other tasks if the time is over.

        size: bytes that the next step adds to the answer. Raises RequestMemoryError.
        """
        self._not_taken += size
        if self._not_taken >= _TAKEN_BYTES and self._memory is not None:
            await self._memory.take(self._not_taken)
            self._not_taken = 0
        if self._loop.time() >= self._ends_at:
            await asyncio.sleep(0)
            self._ends_at = self._loop.time() + _BUDGET_SECONDS


class _EndOfSteps(Exception):
    """The StopIteration of steps that are taken in a thread: a future cannot raise that itself."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _taken(take: Callable[[], Callable[[], Any] | None]) -> Callable[[], Any] | None:
    try:
        return take()
    except StopIteration as end:
        raise _EndOfSteps(end.value) from None


async def run_steps(steps: Steps[_Item], work: BatchWork, *, is_remote: bool = False) -> _Item:
    """Take all steps and return their result. Yields between them; reads that a step requests run in a thread.

    is_remote: each step may request from a remote store, so it runs in a thread, too.
    """
    yields, lease = None, None
    take: Callable[[], Callable[[], Any] | None] = steps.__next__
    try:
        while True:
            try:
                step = await work.request(partial(_taken, take)) if is_remote else take()
            except (StopIteration, _EndOfSteps) as end:  # mostly at the first step
                made: _Item = end.value
                return made
            del take  # it refers to what was read
            if lease is not None:
                lease.resize(0)
            elif step is not None:
                lease = work.read_lease()
            yields = YieldBudget() if yields is None else yields
            try:
                take = partial(
                    steps.send, None if step is None or lease is None else await work.read(step, lease)
                )
            except Exception as error:
                take = partial(steps.throw, error)
            await yields.checkpoint()
    finally:
        if lease is not None:
            lease.resize(0)


async def yielding_between(items: Iterable[_Item]) -> AsyncIterator[_Item]:
    """Yield the items, and yield to other tasks between them."""
    yields = YieldBudget()
    for item in items:
        await yields.checkpoint()
        yield item
