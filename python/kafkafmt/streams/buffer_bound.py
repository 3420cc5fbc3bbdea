"""One bound in bytes for the buffers of all partitions (`buffered.records.bytes`).

Each partition may always hold its part: `least_bytes`, or an equal share of the bound if that is less. The bytes that
remain are shared: each partition takes what it needs, until they are used up. A partition that holds less than its part
still counts with the whole part. So a partition that becomes empty can always take a batch, whatever the others hold:

    sum of max(held, part) over all partitions <= total_bytes

A finished partition has no part, as it takes no more batches. Follows `Memory Management in Kafka Streams, "Summary"`:
buffers are configured "at the global level".
"""

from __future__ import annotations

from typing import Protocol

# One in so many shared bytes is left for decode buffers: raw batches never take it.
_LEFT_FOR_DECODING = 4
# One buffer takes at most one in so many of the shared bytes that are free, so that some are left for the next ones.
_BUFFER_SHARE = 4


class Holder(Protocol):
    """A partition that holds `count` bytes. has_part: whether it has a part of the bound."""

    count: int
    has_part: bool


class BufferBound:
    """Divide `total_bytes` over the holders that entered it. Not safe to use from several threads.

    least_bytes: the part of each, if the total has as many bytes for all.
    """

    __slots__ = (
        "_holders",
        "_is_divided",
        "_part_bytes",
        "_parts",
        "_used_bytes",
        "least_bytes",
        "total_bytes",
    )

    def __init__(self, total_bytes: int, least_bytes: int) -> None:
        self.total_bytes, self.least_bytes = total_bytes, least_bytes
        self._holders: set[Holder] = set()
        self._part_bytes = self._parts = self._used_bytes = 0
        self._is_divided = False

    def resize(self, total_bytes: int) -> None:
        """Change the total. Bytes beyond it stay until they are released."""
        self.total_bytes, self._is_divided = total_bytes, False

    def enter(self, holder: Holder) -> None:
        """Divide among one more."""
        self._holders.add(holder)
        self._is_divided = False

    def leave(self, holder: Holder) -> None:
        """Divide among the others."""
        self._holders.discard(holder)
        self._is_divided = False

    @property
    def part_bytes(self) -> int:
        """The bytes that each partition may always hold."""
        self._divide()
        return self._part_bytes

    @property
    def free_bytes(self) -> int:
        """The shared bytes that no partition holds. Negative after `resize`, until the excess is released."""
        self._divide()
        return self.total_bytes - self._used_bytes

    @property
    def free_bytes_for_batches(self) -> int:
        """The shared bytes that raw batches may take."""
        self._divide()
        shared = self.total_bytes - self._part_bytes * self._parts
        return self.total_bytes - self._used_bytes - shared // _LEFT_FOR_DECODING

    @property
    def free_bytes_for_buffer(self) -> int:
        """The shared bytes that one decode buffer may take."""
        return max(self.free_bytes, 0) // min(max(len(self._holders), 1), _BUFFER_SHARE)

    def part_of(self, holder: Holder) -> int:
        """Return the bytes that count for a partition even if it holds less."""
        return self.part_bytes if holder.has_part else 0

    def change(self, holder: Holder, before: int, after: int) -> None:
        """Count that a partition holds `after` bytes, and held `before`."""
        if self._is_divided:
            part = self._part_bytes if holder.has_part else 0
            self._used_bytes += max(after, part) - max(before, part)

    def change_part(self) -> None:
        """Divide again, because a partition was finished or is fed again."""
        self._is_divided = False

    def _divide(self) -> None:
        if self._is_divided:
            return
        self._parts = sum(holder.has_part for holder in self._holders)
        self._part_bytes = min(self.least_bytes, self.total_bytes // max(len(self._holders), 1))
        self._used_bytes = sum(
            max(holder.count, self._part_bytes if holder.has_part else 0) for holder in self._holders
        )
        self._is_divided = True
