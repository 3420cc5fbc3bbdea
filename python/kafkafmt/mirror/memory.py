"""Divide one memory limit among the parts of a mirror (Memory Management in Kafka Streams, "Summary").

A reserve for the process and the allocator is subtracted first. The share "producer" is for batches under way to the
target, "consumer" is for fetched batches, and the rest is for the batch that is opened or decoded. Each byte is held
several times, by factors that were measured. `HeldMemory` counts the bytes held, these factors included.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkafmt._util.sizes import MIB
from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.memory.division import Division, Part

# Bytes that are not counted: modules that are loaded late, connections, metadata, and the allocator's arenas.
_RESERVED = (Part("process", 12 * MIB), Part("allocator", one_in=8))
# Batches are held by the producer, and again by requests while these are sent.
_UNDER_WAY_COPIES = 3
# A response is received while the target takes the last one. A paused partition may keep one more. The last one may
# exceed the bytes that may be under way.
_FETCHED_COPIES = 4
# Copies of one batch: opened and encoded again; as columns; as Python objects, which are large for small records.
_OPENED_COPIES, _COLUMN_COPIES, _RECORD_COPIES = 5, 6, 10
# Well below the largest request that a broker accepts (`socket.request.max.bytes`). One batch may be larger.
_MAX_REQUEST_BYTES = 32 * MIB
_LEAST_BATCH_BYTES = MIB
# The shares of batches under way and of fetched batches, after the reserve.
_RAW_PARTS = (Part("producer", one_in=3), Part("consumer", one_in=6))
_DEEP_PARTS = (Part("producer", one_in=4), Part("consumer", one_in=8))


@dataclass(frozen=True)
class MirrorMemory:
    """The memory limits of a mirror.

    total_bytes: beyond the memory that the process starts with.
    is_deep: records are moved instead of batches.
    as_objects: each record becomes a Python object, for a handler or to choose a partition by its key.

    Raises MemoryPlanError if a batch of 1 MiB has no room.
    """

    total_bytes: int
    is_deep: bool = False
    as_objects: bool = False

    def __post_init__(self) -> None:
        self.division.ensure_rest(self._copies * _LEAST_BATCH_BYTES, "batches of 1M of a mirror")

    @property
    def under_way_bytes(self) -> int:
        """The most bytes of batches that may wait in the producer or be in flight."""
        return self.division.sizes["producer"] // _UNDER_WAY_COPIES

    @property
    def fetch_bytes(self) -> int:
        """The most bytes that all brokers together may return at a time. One batch may be larger."""
        return self.division.sizes["consumer"] // _FETCHED_COPIES

    @property
    def read_ahead_bytes(self) -> int:
        """The most bytes that may be read ahead from a remote folder, which takes the place of fetched batches."""
        return self.division.sizes["consumer"] // 2

    @property
    def max_request_bytes(self) -> int:
        """The largest request to the target, unless one batch is larger."""
        return min(self.under_way_bytes, _MAX_REQUEST_BYTES)

    @property
    def max_decompressed_bytes(self) -> int:
        """The most bytes that a batch may decompress to, if it is opened."""
        return self.division.rest_bytes // self._copies

    @property
    def _copies(self) -> int:
        if not self.is_deep:
            return _OPENED_COPIES
        return _RECORD_COPIES if self.as_objects else _COLUMN_COPIES

    @property
    def division(self) -> Division:
        """The division of the total. Its rest is for the batch that is opened."""
        return Division(
            self.total_bytes, reserved=_RESERVED, parts=_DEEP_PARTS if self.is_deep else _RAW_PARTS
        )


class HeldMemory:
    """Counts the bytes that a mirror holds, in the budgets `mirror.consumer`, `mirror.producer` and `mirror.opened`.

    It never waits for room: the bytes are in memory already, and the same thread would have to release them. The loop
    pauses partitions instead. `mirror.opened` is always reserved whole, because the decompressed size of a batch is
    not known before.
    """

    def __init__(self, memory: MirrorMemory) -> None:
        division = memory.division
        self.budget = MemoryBudget(division.share_bytes, "mirror")
        self._consumer = self.budget.child("consumer", division.sizes["consumer"]).reserve(0)
        self._producer = self.budget.child("producer", division.sizes["producer"]).reserve(0)
        self.budget.child("opened", division.rest_bytes).reserve(division.rest_bytes)

    def fetched(self, size_bytes: int) -> None:
        """Set the size of the fetched batches that the target has not taken yet."""
        self._consumer.resize(size_bytes * _FETCHED_COPIES)

    def under_way(self, size_bytes: int) -> None:
        """Set the size of the batches that wait in the producer or are in flight."""
        self._producer.resize(size_bytes * _UNDER_WAY_COPIES)
