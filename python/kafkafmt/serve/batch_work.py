"""Work on single batches that a client can make long and large: done in threads, one batch decompressed at a time.

A few bytes may decompress to megabytes: so what batches take at a time is bounded in number, and that is part of the
memory plan (`memory_plan.py`). Codecs and kernels release the GIL, so the loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kafkafmt.log.segment import Turn

_Result = TypeVar("_Result")

# Searches read through logs, which may take long: some of them go on beside each other, and beside conversions.
_SEARCHES = 2


class BatchWork:
    """The threads of one process. `close` ends them."""

    def __init__(self) -> None:
        self._one_batch = threading.Lock()
        self._searching = ThreadPoolExecutor(_SEARCHES, "search")
        self._converting = ThreadPoolExecutor(1, "conversion")

    async def search(self, search: Callable[[Turn], _Result]) -> _Result:
        """What `search(turn)` finds in a thread: it enters `turn` while it has a batch decompressed."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._searching, search, self._one_batch)

    async def convert(self, convert: Callable[[], _Result]) -> _Result:
        """What `convert()` gives in a thread, while no other batch is decompressed.

        A task that is cancelled waits for the thread: what that reads is others' to write to afterwards.
        """
        converting = asyncio.get_running_loop().run_in_executor(self._converting, self._alone, convert)
        try:
            return await asyncio.shield(converting)
        finally:
            while not converting.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([converting])
            if not converting.cancelled():
                converting.exception()  # was raised, or is nobody's concern

    def _alone(self, convert: Callable[[], _Result]) -> _Result:
        with self._one_batch:
            return convert()

    def close(self) -> None:
        for threads in (self._searching, self._converting):
            threads.shutdown(wait=False, cancel_futures=True)
