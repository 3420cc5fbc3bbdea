"""Long polls wait for logs to grow. One task polls each awaited log, once for all requests that wait for it.

Change notifications differ between file systems, and NFS has none; asking for a size takes a microsecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from kafkafmt.errors import KafkaFormatError
from kafkafmt.serve.partition import Partition

_log = structlog.get_logger()

_INTERVAL_SECONDS = 0.01
# The interval grows with the number of awaited logs, so that polling takes a small part of the time.
_INTERVAL_PER_LOG = 0.0001


class GrowthWatch:
    """Wakes the tasks that wait for logs to grow. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, dict[asyncio.Future[bool], int]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._waking: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def wait(
        self, seen: Mapping[Partition, int], seconds: float, woken: asyncio.Future[bool] | None = None
    ) -> bool:
        """Wait until one of the logs has another end offset than was seen, or cannot be read.

        Returns False if that does not happen within `seconds`. seen: the end offsets of the awaited logs; it may be
        empty. woken: a future of the caller's, which ends the wait when its result is set to False.
        """
        if self._is_over:
            return False
        loop = asyncio.get_running_loop()
        woken = loop.create_future() if woken is None else woken
        for partition, end_offset in seen.items():
            self._waiting.setdefault(partition, {})[woken] = end_offset
        if seen and (self._polling is None or self._polling.done()):
            self._polling = loop.create_task(self._poll())
        try:
            done, _ = await asyncio.wait([woken], timeout=seconds)
            return bool(done) and woken.result() and not self._is_over
        finally:
            woken.cancel()
            for partition in seen:
                waiting = self._waiting[partition]
                del waiting[woken]
                if not waiting:
                    del self._waiting[partition]

    def notify(self, partition: Partition) -> None:
        """Look at this log now, and wake the tasks that wait for it. Called after an append to it."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            task = asyncio.get_running_loop().create_task(_wake_grown(partition, waiting))
            self._waking.add(task)
            task.add_done_callback(self._waking.discard)

    def wake_all(self) -> None:
        """End all waits; later ones return False at once."""
        self._is_over = True
        for waiting in self._waiting.values():
            for woken in waiting:
                if not woken.done():
                    woken.set_result(True)

    async def close(self) -> None:
        """End the tasks that look at logs. Called after `wake_all`, when no task waits any more."""
        tasks = [*self._waking] if self._polling is None else [*self._waking, self._polling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self) -> None:
        while self._waiting:
            await asyncio.sleep(_INTERVAL_SECONDS + _INTERVAL_PER_LOG * len(self._waiting))
            for partition, waiting in list(self._waiting.items()):
                if not partition.is_being_followed:  # others must not wait for a long read of one log
                    await _wake_grown(partition, waiting)


async def _wake_grown(partition: Partition, waiting: Mapping[asyncio.Future[bool], int]) -> None:
    """Wake the tasks that saw another end offset than the log has now."""
    try:
        end_offset = (await partition.follow()).end_offset
    except (KafkaFormatError, OSError):
        end_offset = -1
    except Exception as error:  # the tasks that wait for other logs must not lose the poll
        event, name = "a log cannot be followed", str(partition.topic_partition)
        partition.limited_log.write(_log.exception, repr(error), event, partition=name)
        end_offset = -1
    for woken, seen in list(waiting.items()):
        if end_offset != seen and not woken.done():
            woken.set_result(True)
