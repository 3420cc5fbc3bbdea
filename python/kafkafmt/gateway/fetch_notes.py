"""What fetches of a client have found of the records from an offset on. It applies to the same fetch for some seconds.

A broker fills its response in the order of the request. Records that are refused would take the room of those of other
partitions in each response. So they are not requested for some seconds.

An old consumer asks for the same offset until it gets records. So batches without records are not requested again
(KIP-283, "Ensuring Consumer Progress").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

# Seconds for which a note applies.
_SECONDS = 10.0


class FetchNote(NamedTuple):
    """A number that consumers of a message format get for the records from an offset on, such as an error code."""

    topic: str
    partition: int
    offset: int
    magic: int
    value: int


class FetchNotes:
    """The notes of one kind for one client, the newest of each partition."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[tuple[str, int], tuple[float, FetchNote]] = {}
        self._until = 0.0  # no note applies for longer

    def __bool__(self) -> bool:
        """Return whether there may be notes that apply."""
        return bool(self._known) and self._clock() < self._until

    def add(self, notes: Iterable[FetchNote]) -> None:
        """Remember notes, and forget those that apply no longer."""
        now = self._clock()
        self._known = {key: known for key, known in self._known.items() if now < known[0]}
        self._until = now + _SECONDS
        for one in notes:
            self._known[one.topic, one.partition] = self._until, one

    def value(self, topic: str, partition: int, offset: int, magic: int) -> int | None:
        """Return the value for the records from an offset on; None if none is known."""
        until, known = self._known.get((topic, partition), (0.0, None))
        if known is None or self._clock() >= until or (known.offset, known.magic) != (offset, magic):
            return None
        return known.value

    def forget(self, topic: str, partition: int) -> bool:
        """Forget the note of a partition. Return False if there is none."""
        return self._known.pop((topic, partition), None) is not None
