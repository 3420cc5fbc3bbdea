"""Walks over responses that arrive in pieces, from the first field to the fields at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FIRST_WINDOW_BYTES = 1024


class Walk(Protocol):
    """A walk of the kernel `fetch_walk`."""

    @property
    def is_at_end(self) -> bool: ...

    def step(self, data: Buffer) -> tuple[int, int]: ...


class ResponseWalker:
    """Finds the end of a response's topics while it arrives in pieces of any size.

    has_records: whether any partition has records, as far as the response was walked over.
    """

    def __init__(self, walk: Walk) -> None:
        self.has_records = False
        self._walk = walk
        self._records_left = 0
        self._unwalked = b""

    @property
    def is_at_end(self) -> bool:
        """Whether all topics were walked over."""
        return self._walk.is_at_end and not self._records_left

    def count(self, data: memoryview) -> int:
        """Walk over the next bytes. Returns how many of them are before the fields at the end.

        Raises ResponseWalkError.
        """
        position = min(self._records_left, len(data))
        self._records_left -= position
        window = _FIRST_WINDOW_BYTES
        while position < len(data) and not self._walk.is_at_end:
            before = len(self._unwalked)
            unwalked: bytes | memoryview = data[position:]
            if before:  # only the start of what follows can belong to the fields that were cut
                unwalked = self._unwalked + bytes(data[position : position + window])
            walked, records = self._walk.step(unwalked)
            self.has_records = self.has_records or records > 0
            if walked < before:
                is_all = position + window >= len(data)
                self._unwalked = bytes(unwalked[walked:]) if is_all else self._unwalked[walked:]
                if is_all:
                    return len(data)
                window *= 2
                continue
            position += walked - before
            self._unwalked, window = b"", _FIRST_WINDOW_BYTES
            taken = min(records, len(data) - position)
            position += taken
            self._records_left = records - taken
            if not records and not self._walk.is_at_end and (not before or position + window >= len(data)):
                self._unwalked = bytes(data[position:])
                return len(data)
        if not (self._records_left or self._unwalked):
            self._walk.step(b"")  # before version 12 nothing follows the records of the last partition
        return position
