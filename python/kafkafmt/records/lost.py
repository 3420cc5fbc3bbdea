"""Bytes of a stored file that cannot be read, although the store answers: their object is missing or damaged."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from kafkafmt.errors import CorruptRecordError
from kafkafmt.records.search import find_valid_batch


class StoredObjectError(OSError):
    """An object of a store is missing, damaged, or cannot be decoded. The message is one line and names the object.

    lost: the range of the file that cannot be read for this reason; None for all of it.
    """

    def __init__(self, path: object, message: str, lost: tuple[int, int] | None = None) -> None:
        super().__init__(errno.EIO, message, str(path))
        self.lost = lost

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.filename, self.strerror, self.lost)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class LostBytesError(CorruptRecordError):
    """The bytes of a file from `lost_start` to before `next_position` are lost, so records there are damaged."""

    lost_start: int
    next_position: int

    @classmethod
    def of(cls, error: StoredObjectError, position: int, end: int) -> LostBytesError:
        """Return the error of a read from `position`, of a file that ends at `end`."""
        start, stop = error.lost or (position, end)
        lost = cls(str(error), position=position, next_position=min(max(stop, position + 1), end))
        lost.lost_start = max(start, position)
        return lost


def read_before_loss(
    read_at: Callable[[int, int, bytearray | None], memoryview | bytes],
    position: int,
    size: int,
    memory: bytearray | None,
) -> tuple[memoryview | bytes, LostBytesError | None]:
    """Return the bytes from `position` up to those that are lost, and the error of these.

    read_at, memory: `Records.read_at`. Raises LostBytesError if the first byte is lost.
    """
    try:
        return read_at(position, size, memory), None
    except LostBytesError as lost:
        if lost.lost_start == position:
            raise
        return read_at(position, lost.lost_start - position, memory), lost


def find_batch_beyond_loss(read_at: Callable[[int, int], memoryview | bytes], position: int, end: int) -> int:
    """Return the position of the first valid batch, as `find_valid_batch`, but skip lost bytes."""
    while position < end:
        try:
            return find_valid_batch(read_at, position, end)
        except LostBytesError as lost:
            found = find_valid_batch(read_at, position, lost.lost_start)
            if found < lost.lost_start:
                return found
            position = lost.next_position
    return end
