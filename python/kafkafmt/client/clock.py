"""The clock of the producer: kafka-python's clock, in milliseconds as the accumulator expects."""

from __future__ import annotations

import time


def monotonic_ms() -> float:
    """Return the time of `time.monotonic` in milliseconds."""
    return time.monotonic() * 1000
