"""A RocksDB store above which only a map of dirty keys is kept.

Memory Management in Kafka Streams asks ("Open Questions", 2): "should we consider removing this cache at all and only
relying on the state store (RocksDB)'s own block caching, while only keeping the dirty map in bytes and pay the get()
values for all dirty keys ... upon flushing?" This store does so:

- A put goes to RocksDB's write buffer at once, without its write-ahead log, and the key is marked as dirty.
- A flush gets the values of all dirty keys, and writes them with the log. So it writes each key once, however often it
  was put since the last flush.

After a kill, values that were not flushed may be lost, but never those of a commit. The positions are those of the last
commit, so the values are read again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kafkafmt.streams.rocksdb import SharedBlockCache, rocksdict
from kafkafmt.streams.store import RocksDBStore, closed_error

if TYPE_CHECKING:
    from kafkafmt.streams.cache import DirtyEntry, ThreadCache
    from kafkafmt.types import TopicPartition

__all__ = ["DirtyMapStore"]


class DirtyMapStore(RocksDBStore):
    """A `RocksDBStore` whose `dirty_keys` has no values. Other arguments and errors are those of RocksDBStore.

    dirty_keys: a `ThreadCache`, which bounds the bytes of the keys. A map that is full is flushed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dirty_keys: ThreadCache,
        block_cache: SharedBlockCache | int | str = 8 * 1024 * 1024,
        write_buffer_bytes: int | str = 1024 * 1024,
        max_write_buffer_number: int = 2,
    ) -> None:
        super().__init__(
            path,
            block_cache=block_cache,
            write_buffer_bytes=write_buffer_bytes,
            max_write_buffer_number=max_write_buffer_number,
            cache=dirty_keys,
        )
        self._unlogged = rocksdict().WriteOptions()
        self._unlogged.disable_wal = True

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it has none."""
        return self._read(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set the value of a key; None deletes it."""
        if self._cache is None:
            raise closed_error(self.path)
        order = self._cache.order
        with order.lock:  # a flush that another thread demands reads and writes the value of a dirty key
            self._put(key, value, self._unlogged)
            self._cache.delete(key)  # an entry without a value, which a flush removes
        order.repay()

    def range(self, start: bytes | None = None, stop: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys from `start` to before `stop` and their values, ascending; None is unbounded.

        The iterator shows the store as it was at the call.
        """
        return self._scan(start, stop)

    def _write_dirty(
        self, entries: Iterable[DirtyEntry], positions: Mapping[TopicPartition, int] | None = None
    ) -> None:
        super()._write_dirty(((key, self._read(key), None) for key, _, _ in entries), positions)
