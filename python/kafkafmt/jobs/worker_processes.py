"""Processes that work for this one: they end with it, and only this process handles an interrupt."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def die_with_parent() -> None:
    """In a worker: end this process as soon as its parent has ended."""
    threading.Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT during the block. Processes that are started in it inherit the mask, and never get SIGINT."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Delay SIGINT and SIGTERM until the yielded function is called, if handlers of Python get them.

    An exception of a handler during `concurrent.futures.wait` would leave locks held, for which the shutdown of the
    executor waits.
    """
    if threading.current_thread() is not threading.main_thread():  # no handler can be set
        yield lambda: None
        return
    known = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in known.items() if callable(handler)}
    held: list[tuple[int, FrameType | None]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: held.append((number, frame)))

    def let_through() -> None:
        if held:
            number, frame = held.pop(0)
            handlers[signal.Signals(number)](number, frame)

    try:
        yield let_through
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
