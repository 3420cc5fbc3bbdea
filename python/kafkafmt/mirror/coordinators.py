"""Wait for brokers that cannot answer yet: coordinators whose topic a cluster must first create, or restarting ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import kafka.errors as kafka_errors

_COORDINATOR_SECONDS = 30.0
_RETRY_SECONDS = 0.2
_MAX_RETRY_SECONDS = 2.0
_T = TypeVar("_T")


def ask_coordinator(ask: Callable[[], _T]) -> _T:
    """Call `ask`, and repeat it for up to 30 s after a retriable error, less and less often. Raises the last error."""
    pause = _RETRY_SECONDS
    deadline = time.monotonic() + _COORDINATOR_SECONDS
    while True:
        try:
            return ask()
        except kafka_errors.RetriableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
