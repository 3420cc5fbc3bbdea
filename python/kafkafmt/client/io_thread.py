"""The thread in which a client reads and writes the sockets of its own connections."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kafka.errors as kafka_errors


class IoThread:
    """A daemon thread with an event loop. Callbacks run in it, one at a time.

    Any thread may call `call_soon` and `stop`. The other methods are for callbacks.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._lock = threading.Lock()
        self._is_stopping = False

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(*args)` in the thread. Raises KafkaConnectionError after `stop`."""
        with self._lock:
            if self._is_stopping:
                raise kafka_errors.KafkaConnectionError("the client is closed")
            self.loop.call_soon_threadsafe(callback, *args)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call `callback(*args)` in `seconds`. Only callbacks may call this."""
        return self.loop.call_later(seconds, callback, *args)

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
        elif not self.is_current:
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self._cancel_tasks()
            self.loop.close()

    def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
