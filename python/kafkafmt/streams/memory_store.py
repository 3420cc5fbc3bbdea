"""A key-value store in memory, which moves into RocksDB when it outgrows its memory.

All entries are dirty entries of one cache, so that none is dropped, and each counts with its bytes in the allocator. If
the cache has no room for another entry, it flushes. This writes all entries to RocksDB, in the order of their keys, so
that RocksDB need not sort them again. It takes two write buffers beside the memory of the entries. The store continues
in RocksDB, with a cache.

Until then nothing is on disk: a store that was not moved is empty after it was closed or killed. A store that was moved
has what its `RocksDBStore` has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from _kafkafmt.streams.lru import ORDERED_ENTRY_BYTES
from kafkafmt._util.closing import Closing
from kafkafmt.streams.cache import ENTRY_OVERHEAD_BYTES, prefix_stop
from kafkafmt.streams.rocksdb import LEAST_WRITE_BUFFER_BYTES
from kafkafmt.streams.store import RocksDBStore, checked_positions, closed_error

if TYPE_CHECKING:
    from kafkafmt.streams.cache import DirtyEntry, NamedCache, ThreadCache
    from kafkafmt.types import TopicPartition

__all__ = ["MemoryStore"]

_WRITE_BUFFERS = 2
# An ordered range needs a pointer for each entry: at most one in so many bytes of the entries.
ORDER_SHARE = ENTRY_OVERHEAD_BYTES // ORDERED_ENTRY_BYTES


class MemoryStore(Closing):
    """Keep keys and values in `memory`; move them into a `RocksDBStore` at `path` if they need more.

    memory: a `ThreadCache` that no other store uses. Its bound is that of the store. One in `ORDER_SHARE` bytes should
        be left for `range`.
    open_rocksdb: opens the RocksDBStore at `path` after the move. The entries have left `memory` then.
    write_buffer_bytes: each of two write buffers that are used during the move.
    on_move: called with the number of entries, once, when the move begins.

    A store at `path` is used from the start. Only one thread may use a MemoryStore. Others may demand memory back
    through the budget of `memory`: the store then moves. Raises what `open_rocksdb` raises, and StoreError if the store
    is closed.

    Follows `Memory Management in Kafka Streams, "Triggering based Caches"`: a store in memory has no cache above it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        memory: ThreadCache,
        open_rocksdb: Callable[[], RocksDBStore],
        *,
        write_buffer_bytes: int = LEAST_WRITE_BUFFER_BYTES,
        on_move: Callable[[int], object] = lambda entries: None,
    ) -> None:
        self.path = Path(path)
        self._open_rocksdb, self._on_move = open_rocksdb, on_move
        self._write_buffer_bytes = write_buffer_bytes
        self._positions: dict[TopicPartition, int] = {}
        self._loading: RocksDBStore | None = None  # gets the entries during the move
        self._is_closed = False
        self._is_moved = self.path.exists()  # whether the entries have left the memory
        self._rocksdb: RocksDBStore | None = None  # has them then
        self._memory = memory
        self._entries: NamedCache = memory.cache(str(self.path), self._load)
        if self._is_moved:
            self._entries.remove()
            self._rocksdb = open_rocksdb()

    @property
    def is_in_memory(self) -> bool:
        """Whether the entries are in memory only."""
        return not self._is_closed and self._moved() is None

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
        with self._memory.lock:
            rocksdb = self._moved()
            found = self._entries.get(key) if rocksdb is None else None
        self._memory.repay()
        return found if rocksdb is None else rocksdb.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None deletes it. Raises StoreError if the entries cannot be moved into RocksDB."""
        with self._memory.lock:
            rocksdb = self._moved()
            if rocksdb is None and value is None:
                self._entries.discard(key)
            elif rocksdb is None:
                self._entries.put(key, value)
        self._memory.repay()
        if rocksdb is not None:
            rocksdb.put(key, value)

    def delete(self, key: bytes) -> None:
        """Delete a key, as `put` with None. A key that is missing is no error."""
        self.put(key, None)

    def put_if_absent(self, key: bytes, value: bytes) -> bytes | None:
        """Return the value of the key; if it has none, put `value` and return None."""
        found = self.get(key)
        if found is None:
            self.put(key, value)
        return found

    def range(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys from `start` to before `stop` and their values, ascending; None is unbounded.

        In memory, the iterator raises RuntimeError if the store was changed since the call.
        """
        with self._memory.lock:
            rocksdb = self._moved()
            found = self._entries.ordered(start, stop) if rocksdb is None else rocksdb.range(start, stop)
        self._memory.repay()
        return found

    def prefix(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys that begin with `prefix` and their values, as `range` does."""
        return self.range(prefix, prefix_stop(prefix))

    def commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the positions: the next offset to read, by partition. Positions of other partitions stay.

        In memory, nothing is written. Otherwise as `RocksDBStore.commit`. Raises ValueError for an invalid position.
        """
        rocksdb = self._moved()
        if rocksdb is None:
            self._positions.update(checked_positions(positions))
        else:
            rocksdb.commit(positions)

    def positions(self) -> dict[TopicPartition, int]:
        """Return the committed positions: the next offset to read, by partition."""
        rocksdb = self._moved()
        return dict(self._positions) if rocksdb is None else rocksdb.positions()

    def close(self) -> None:
        """Drop the entries in memory, or close the RocksDBStore. A second call does nothing."""
        self._is_closed = True
        self._entries.remove()
        if self._loading is not None:
            self._loading.close()
        if self._rocksdb is not None:
            self._rocksdb.close()

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<MemoryStore {self.path}, closed>"
        return f"<MemoryStore {self.path}{', in memory' if self.is_in_memory else ', moved into RocksDB'}>"

    def _moved(self) -> RocksDBStore | None:
        """Return the RocksDBStore; None if the entries are in memory. Ends a move that has begun, and opens the store.

        Another thread may begin a move until the lock of `memory` is taken. Raises StoreError if this store is closed.
        """
        if self._is_closed:
            raise closed_error(self.path)
        if self._loading is not None:
            with self._memory.lock:  # which a move holds
                self._finish_move(self._loading)
        if self._is_moved and self._rocksdb is None:
            self._rocksdb = self._open_rocksdb()
        return self._rocksdb

    def _load(self, entries: Iterator[DirtyEntry]) -> None:
        """Write entries to RocksDB: the listener of the cache. The first call begins the move, with all entries."""
        if self._loading is None:
            self._on_move(len(self._entries))
            self._loading = RocksDBStore(
                self.path,
                block_cache=0,
                write_buffer_bytes=self._write_buffer_bytes,
                max_write_buffer_number=_WRITE_BUFFERS,
            )
            self._loading.load(self._entries.ordered())
            entries = (entry for entry in entries if entry[0] not in self._entries)  # one that never had room
        self._loading.load((key, value) for key, value, _ in entries)

    def _finish_move(self, loading: RocksDBStore) -> None:
        """Write the entries that were put since, and release the memory."""
        self._entries.flush()
        loading.commit(self._positions)
        self._entries.remove()
        loading.close()
        self._loading, self._is_moved = None, True
