"""Partitions whose next records a client cannot get. For some seconds they are not requested for it.

A broker fills its response in the order of the request. Records that are refused would take the room of those of other
partitions in each response, and consumers of these would not get on (KIP-283, "Ensuring Consumer Progress").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

# Seconds for which a refusal holds.
_SECONDS = 10.0


class Refusal(NamedTuple):
    """The error code, of Kafka 4, of the records from an offset on, for consumers of a message format."""

    topic: str
    partition: int
    offset: int
    magic: int
    error_code: int


class Refusals:
    """The refusals of one client, the newest of each partition."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, Refusal]] = {}

    def add(self, refusals: Iterable[Refusal]) -> None:
        """Remember refusals, and forget those that hold no longer."""
        now = self._clock()
        self._known = {key: known for key, known in self._known.items() if now < known[0]}
        for one in refusals:
            self._known[one.topic, one.partition] = now + _SECONDS, one

    def error_code(self, topic: str, partition: int, offset: int, magic: int) -> int:
        """Return the error code of the records from an offset on; 0 if none is known."""
        until, known = self._known.get((topic, partition), (0.0, None))
        if known is None or self._clock() >= until or (known.offset, known.magic) != (offset, magic):
            return 0
        return known.error_code
