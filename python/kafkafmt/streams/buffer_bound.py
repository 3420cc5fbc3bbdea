"""One bound in bytes for the buffers of all partitions (`buffered.records.bytes`).

Each partition may always hold its part: `least_bytes`, or an equal share of the bound if that is less. The bytes that
remain are shared: each partition takes what it needs, until they are used up. A partition that holds less than its part
still counts with the whole part. So a partition that becomes empty can always take a batch, whatever the others hold.
A quarter of a part is left for the buffer in which the first batch is decoded:

    sum of max(batches + max(buffer, part / 4), part) over all partitions <= total_bytes

One large decompressor is kept beyond the parts: that of the buffer that was filled last (`idle_stream.py`). It counts
as a part of that buffer, so batches get fewer shared bytes. For the buffers of others its bytes are free. So the sum
exceeds the total by its size at most. Before the group waits for batches, the decompressor is closed if the sum exceeds
the total.

A finished partition has no part, as it takes no more batches. Follows `Memory Management in Kafka Streams, "Summary"`:
buffers are configured "at the global level".
"""

from __future__ import annotations

from typing import Protocol

from kafkafmt.streams.idle_stream import IdleStream

# One in so many bytes, of a part and of the shared bytes, is left for decode buffers: batches never take it.
_LEFT_FOR_BUFFERS = 4
# One buffer takes at most one in so many of the shared bytes that are free, so that some are left for the next ones.
_BUFFER_SHARE = 4


class Holder(Protocol):
    """A partition that holds `count` bytes, of which `batch_bytes` are batches. The others are its decode buffer.

    has_part: whether it has a part of the bound. weight: the bytes with which it counts.
    """

    count: int
    batch_bytes: int
    has_part: bool
    weight: int


class BufferBound:
    """Divide `total_bytes` over the holders that entered it. Not safe to use from several threads.

    least_bytes: the part of each, if the total has as many bytes for all.

    Attributes:
        idle_stream: the large decompressor that the holders share.
    """

    def __init__(self, total_bytes: int, least_bytes: int) -> None:
        self.total_bytes, self.least_bytes = total_bytes, least_bytes
        self.idle_stream = IdleStream()
        self._holders: set[Holder] = set()
        self._part_bytes = self._parts = self._free_bytes = 0
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

    def batch_room(self, holder: Holder, *, is_shared: bool = True) -> int:
        """Return the bytes that the batches of a partition may grow by; without `is_shared`, within its part."""
        self._divide()
        room = holder.weight - holder.batch_bytes - self._buffer_bytes(holder)
        if not is_shared:
            return room
        shared = self.total_bytes - self._part_bytes * self._parts
        return room + max(self._free_bytes - shared // _LEFT_FOR_BUFFERS, 0)

    def buffer_room(self, holder: Holder) -> int:
        """Return the bytes that the decode buffer of a partition may have in all.

        Of the shared bytes it gets as many as the partition has batches, so that quiet partitions leave them to others.
        """
        self._divide()
        part = self._part_bytes if holder.has_part else 0
        own = max(part - holder.batch_bytes, self._part_bytes // _LEFT_FOR_BUFFERS)
        owner: Holder | None = self.idle_stream.owner
        free_bytes = self._free_bytes
        if owner is not None and owner is not holder:
            free_bytes += owner.weight - self._weight(owner, self.idle_stream.size)
        free = max(free_bytes, 0) // min(len(self._holders), _BUFFER_SHARE)
        shared = max(holder.count - holder.batch_bytes - own, 0) + free
        return own + (shared if len(self._holders) == 1 else min(shared, holder.batch_bytes))

    def release_excess(self) -> None:
        """Close the idle decompressor if the bytes exceed the total."""
        self._divide()
        if self._free_bytes < 0:
            self.idle_stream.release()

    def change(self, holder: Holder) -> None:
        """Count a partition whose bytes have changed."""
        if self._is_divided:
            self._free_bytes += holder.weight
            holder.weight = self._weight(holder)
            self._free_bytes -= holder.weight

    def change_part(self) -> None:
        """Divide again, because a partition was finished or is fed again."""
        self._is_divided = False

    def _buffer_bytes(self, holder: Holder, freed_bytes: int = 0) -> int:
        """Return the bytes of the decode buffer, or those that are left for it, after some of them are freed."""
        left = self._part_bytes // _LEFT_FOR_BUFFERS if holder.count or holder.has_part else 0
        return max(holder.count - freed_bytes - holder.batch_bytes, left)

    def _weight(self, holder: Holder, freed_bytes: int = 0) -> int:
        part = self._part_bytes if holder.has_part else 0
        return max(holder.batch_bytes + self._buffer_bytes(holder, freed_bytes), part)

    def _divide(self) -> None:
        if self._is_divided:
            return
        self._parts = sum(holder.has_part for holder in self._holders)
        self._part_bytes = min(self.least_bytes, self.total_bytes // max(len(self._holders), 1))
        self._free_bytes = self.total_bytes
        for holder in self._holders:
            holder.weight = self._weight(holder)
            self._free_bytes -= holder.weight
        self._is_divided = True
