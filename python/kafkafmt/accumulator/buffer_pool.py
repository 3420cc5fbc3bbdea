"""One budget in bytes for all batches, and a fair queue in front of it (Kafka's BufferPool).

It counts bytes and holds none: who reserves some may allocate as many, wherever it likes.
"""

from __future__ import annotations

import threading
import time
from collections import deque


class BufferPool:
    """`total` bytes, handed out in the order in which they are asked for.

    Safe to use from several threads. The time that callers wait is the clock's, since they wait for threads.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"buffer_memory: expected 1 byte or more, found {total}")
        self.total = total
        self.waited_seconds = 0.0
        self._available = total
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def available(self) -> int:
        """Bytes that nobody holds; below 0 while a split batch takes more than what it was split from."""
        return self._available

    @property
    def queued(self) -> int:
        """Callers that wait for bytes."""
        return len(self._waiting)

    def try_reserve(self, size: int) -> bool:
        """Take `size` bytes where there are as many and nobody waits for them."""
        with self._lock:
            if self._waiting or size > self._available:
                return False
            self._available -= size
            return True

    def reserve(self, size: int, max_block_ms: float) -> bool:
        """Take `size` bytes, at most `total`, after waiting for them; False after `max_block_ms` without."""
        with self._lock:
            if not self._waiting and size <= self._available:
                self._available -= size
                return True
            waiter = _Waiter(size)
            self._waiting.append(waiter)
        began = time.monotonic()
        waiter.served.wait(max_block_ms / 1000)
        with self._lock:
            self.waited_seconds += time.monotonic() - began
            if not waiter.served.is_set():
                self._waiting.remove(waiter)
                self._serve()  # those behind it may want less
                return False
            return True

    def exchange(self, held: int, wanted: int) -> None:
        """Hold `wanted` bytes in the place of `held`, whatever is available: what was made of them exists."""
        with self._lock:
            self._available += held - wanted
            self._serve()

    def release(self, size: int) -> None:
        """Give back bytes that were taken."""
        self.exchange(size, 0)

    def _serve(self) -> None:
        while self._waiting and self._waiting[0].size <= self._available:
            waiter = self._waiting.popleft()
            self._available -= waiter.size
            waiter.served.set()


class _Waiter:
    __slots__ = ("served", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.served = threading.Event()
