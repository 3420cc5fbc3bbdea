"""One budget in bytes for all batches, and a fair queue in front of it (Kafka's BufferPool).

It counts bytes and holds none: who reserves some may allocate as many, wherever it likes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


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
        self._closed = False
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
            return self._take(size)

    def reserve(self, size: int, max_block_ms: float, on_wait: Callable[[], None] = lambda: None) -> bool:
        """Take `size` bytes, at most `total`, after waiting for them.

        False after `max_block_ms` without, and once the pool is closed. on_wait: called when the wait has begun.
        """
        with self._lock:
            if self._take(size):
                return True
            if self._closed:
                return False
            waiter = _Waiter(size)
            self._waiting.append(waiter)
        began = time.monotonic()
        has_bytes = False
        try:
            on_wait()
            waiter.woken.wait(min(max_block_ms / 1000, threading.TIMEOUT_MAX))
            has_bytes = waiter.is_served
            return has_bytes
        finally:
            self._end_wait(waiter, time.monotonic() - began, keeps=has_bytes)

    def close(self) -> None:
        """Give out no more bytes: who waits for some goes without them."""
        with self._lock:
            self._closed = True
            for waiter in self._waiting:
                waiter.woken.set()

    def exchange(self, held: int, wanted: int) -> None:
        """Hold `wanted` bytes in the place of `held`, whatever is available: what was made of them exists."""
        with self._lock:
            self._available += held - wanted
            self._serve()

    def release(self, size: int) -> None:
        """Give back bytes that were taken."""
        self.exchange(size, 0)

    def _take(self, size: int) -> bool:
        if self._closed or self._waiting or size > self._available:
            return False
        self._available -= size
        return True

    def _end_wait(self, waiter: _Waiter, seconds: float, *, keeps: bool) -> None:
        """Stop waiting, which may have been interrupted just as the bytes came."""
        with self._lock:
            self.waited_seconds += seconds
            if not waiter.is_served:
                self._waiting.remove(waiter)
            elif not keeps:
                self._available += waiter.size
            self._serve()  # those behind it may want less

    def _serve(self) -> None:
        while self._waiting and not self._closed and self._waiting[0].size <= self._available:
            waiter = self._waiting.popleft()
            self._available -= waiter.size
            waiter.is_served = True
            waiter.woken.set()


class _Waiter:
    __slots__ = ("is_served", "size", "woken")

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_served = False
        self.woken = threading.Event()
