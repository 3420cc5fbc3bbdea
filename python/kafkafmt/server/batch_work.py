"""Threads for work on batches, which clients can make long and large. One batch is decompressed at a time.

A few bytes may decompress to megabytes, so the number of batches in memory is bounded; `memory_plan.py` counts on that.
Codecs and kernels release the GIL, so the event loop runs meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from kafkafmt._util.steps import LargeRead
from kafkafmt.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafkafmt.log.segment_search import Turn
from kafkafmt.memory import MemoryBudget
from kafkafmt.memory.admission import AdmissionQueue, MemoryLease
from kafkafmt.server.metrics import Metrics

if TYPE_CHECKING:
    from concurrent.futures import Executor

_Result = TypeVar("_Result")

# Searches that run at the same time, and beside conversions: each reads through a log, which may take long.
_SEARCHES = 2
# Large batches, or folders of many segments, that are read at the same time.
_READS = 2
# Reads that wait for a remote store at the same time.
_REMOTE_READS = 16


class BatchWork:
    """The threads of one process. `close` ends them.

    read_bytes: the limit for all large batches that are being read. A batch that is larger is read alone.
    is_remote: logs are read from a remote store.
    """

    def __init__(
        self,
        read_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
        metrics: Metrics | None = None,
        *,
        is_remote: bool = False,
    ) -> None:
        self._reads = _ReadMemory(read_bytes, metrics or Metrics())
        self._one_batch = threading.Lock()
        self._searching = ThreadPoolExecutor(_SEARCHES, "search")
        self._reading = ThreadPoolExecutor(_REMOTE_READS if is_remote else _READS, "read")
        self._converting = ThreadPoolExecutor(1, "conversion")

    async def search(self, search: Callable[[Turn], _Result]) -> _Result:
        """Return what `search(turn)` finds in a thread. It enters `turn` while it has a batch decompressed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._searching, search, self._one_batch)

    def read_lease(self) -> MemoryLease:
        """Return a lease for the large batches that one task reads. It holds nothing at first."""
        return MemoryLease(self._reads)

    async def read(self, read: Callable[[], _Result], lease: MemoryLease) -> _Result:
        """Call `read` in a thread; return its result. It decompresses nothing. The lease holds a large read's bytes."""
        if isinstance(read, LargeRead):
            await self._reads.admit(lease, read.size_bytes)
            lease.end_turn()
        return await self.request(read)

    async def request(self, call: Callable[[], _Result]) -> _Result:
        """Call a function that may request from a remote store in a thread; return its result."""
        return await _in_thread(self._reading, call)

    async def convert(self, convert: Callable[[], _Result]) -> _Result:
        """Call `convert` in a thread, while no other batch is decompressed; return its result."""
        return await _in_thread(self._converting, self._alone, convert)

    def _alone(self, convert: Callable[[], _Result]) -> _Result:
        with self._one_batch:
            return convert()

    def close(self) -> None:
        """Cancel the work that waits for a thread. Work that runs ends by itself."""
        for threads in (self._searching, self._reading, self._converting):
            threads.shutdown(wait=False, cancel_futures=True)


class _ReadMemory(AdmissionQueue):
    """The memory for large batches that are being read, over all connections of a process."""

    def __init__(self, total_bytes: int, metrics: Metrics) -> None:
        super().__init__(MemoryBudget(total_bytes, "serve.reads"))
        self._metrics = metrics

    def on_change(self) -> None:
        self._metrics.memory_used(self.budget)


async def _in_thread(threads: Executor, call: Callable[..., _Result], *args: object) -> _Result:
    """Return the result of a call in a thread. A cancelled task waits for the thread, which still uses its memory."""
    running = asyncio.get_running_loop().run_in_executor(threads, call, *args)
    try:
        return await asyncio.shield(running)
    finally:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # it was raised above, or the task is cancelled
