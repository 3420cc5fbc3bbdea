"""The kinds of stores of which `MemoryPlan` knows the memory."""

from __future__ import annotations

from enum import Enum


class StoreKind(Enum):
    """Where a store keeps its entries, and what is kept above it.

    Follows `Memory Management in Kafka Streams, "Triggering based Caches"` and "Open Questions", 2.
    """

    CACHED = "RocksDB with a cache"
    UNCACHED = "RocksDB without a cache"  # RocksDB's block cache gets the bytes of the cache
    DIRTY_MAP = "RocksDB with a map of dirty keys"  # the block cache gets most of the bytes of the cache
    IN_MEMORY = (
        "in memory"  # it has all bytes of caches and stores; it moves into RocksDB if they are too few
    )
