"""The thread in which a client reads and writes the sockets of its own connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_errors


class IoLoop:
    """The event loop in which connections of our own are used, for callbacks in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._shared = memoryview(b"")

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call `callback(*args)` in `seconds`."""
        return self.loop.call_later(seconds, callback, *args)

    def shared_memory(self, size: int) -> memoryview:
        """Return writable memory of `size` bytes, which any callback may use until it returns."""
        if len(self._shared) != size:
            self._shared = memoryview(bytearray(size))
        return self._shared


class IoThread(IoLoop):
    """A daemon thread with an event loop. Callbacks run in it, one at a time.

    Any thread may call `call_soon`, `stop` and `join`. The other methods are for callbacks.
    """

    def __init__(self, name: str) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.RLock()  # a signal handler or a finalizer may call during a call
        self._is_stopping = False
        self._ident = 0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.get_ident() == self._ident

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` in the thread. Raises KafkaConnectionError after `stop`."""
        with self._lock:
            if self._is_stopping:
                raise kafka_errors.KafkaConnectionError("the client is closed")
            if threading.get_ident() == self._ident:
                self.loop.call_soon(callback, *args)
            else:
                self.loop.call_soon_threadsafe(callback, *args)

    def stop(self, timeout: float | None = None) -> None:
        """End the thread after the callbacks that wait already. Wait up to `timeout` seconds for its end.

        A callback may call this; the thread then ends after it has returned.
        """
        with self._lock:
            if not self._is_stopping:
                self._is_stopping = True
                if self._thread.ident is not None:
                    self.loop.call_soon_threadsafe(self.loop.stop)
        if self._thread.ident is None:
            self.loop.close()
        else:
            self.join(timeout)

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for the end of the thread. A callback does not wait."""
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        self._ident = threading.get_ident()
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._cancel_tasks()
            self.loop.close()
            self._ident = 0  # another thread may get the same one

    def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class CoalescedCall:
    """Calls a function in the I/O thread: once for all calls that come before it runs. Any thread may call it.

    Calls after the end of the thread do nothing.
    """

    def __init__(self, io: IoThread, function: Callable[[], object]) -> None:
        self._io = io
        self._function = function
        self._is_due = False

    def __call__(self) -> None:
        if self._is_due:
            return
        self._is_due = True
        try:
            self._io.call_soon(self._run)
        except kafka_errors.KafkaConnectionError:  # the thread has ended
            pass
        except BaseException:  # an interrupt: the next call must not rely on this one
            self._is_due = False
            raise

    def _run(self) -> None:
        # First: a call from now on may be about something that the function does not see any more.
        self._is_due = False
        self._function()
