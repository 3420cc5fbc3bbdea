"""The clock of the producer: kafka-python's, in the accumulator's unit."""

from __future__ import annotations

import time


def monotonic_ms() -> float:
    """Now, in milliseconds of `time.monotonic`."""
    return time.monotonic() * 1000
