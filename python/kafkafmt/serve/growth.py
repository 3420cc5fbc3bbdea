"""Long polls wait for logs to grow: the logs that are waited for are looked at again and again, each once for all.

File systems tell of changes each in its own way, and some (NFS) not at all; asking for a size takes a microsecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from kafkafmt.errors import KafkaFormatError
from kafkafmt.serve.catalog import Partition

_INTERVAL_SECONDS = 0.01
# The interval is longer the more logs are waited for, so that looking takes a small part of the time.
_INTERVAL_PER_LOG = 0.0001


class GrowthWatch:
    """For the tasks of one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, dict[asyncio.Future[bool], int]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_over = False

    async def wait(
        self, seen: Mapping[Partition, int], seconds: float, woken: asyncio.Future[bool] | None = None
    ) -> bool:
        """Until one of the logs ends at another offset than was seen, or cannot be read; False where none does so.

        `seen`: end offsets of the logs that are waited for; it may be empty. woken: the caller's, which may end the
        wait by a result of False.
        """
        if self._is_over:
            return False
        loop = asyncio.get_running_loop()
        woken = loop.create_future() if woken is None else woken
        for partition, end_offset in seen.items():
            self._waiting.setdefault(partition, {})[woken] = end_offset
        if seen and (self._looking is None or self._looking.done()):
            self._looking = loop.create_task(self._look())
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

    def look_at(self, partition: Partition) -> None:
        """Wake at once those who wait for a log that was appended to."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            _wake_grown(partition, waiting)

    def wake_all(self) -> None:
        """Let nobody wait any longer, now or later."""
        self._is_over = True
        for waiting in self._waiting.values():
            for woken in waiting:
                if not woken.done():
                    woken.set_result(True)

    async def _look(self) -> None:
        while self._waiting:
            await asyncio.sleep(_INTERVAL_SECONDS + _INTERVAL_PER_LOG * len(self._waiting))
            for partition, waiting in list(self._waiting.items()):
                _wake_grown(partition, waiting)


def _wake_grown(partition: Partition, waiting: Mapping[asyncio.Future[bool], int]) -> None:
    """Wake those who saw another end of a log than it has now."""
    try:
        partition.look()
        end_offset = partition.log.end_offset
    except (KafkaFormatError, OSError):
        end_offset = -1
    for woken, seen in waiting.items():
        if end_offset != seen and not woken.done():
            woken.set_result(True)
