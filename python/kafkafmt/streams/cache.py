"""LRU caches for several stores, which share one bound in bytes.

Keys and values are raw bytes, as "Memory Management in Kafka Streams" proposes for its caches ("Triggering based
Caches"). So the size of each entry is known. An entry that was put is dirty until the listener of its cache has written
it. The listener gets all dirty entries of its cache at once, in the order in which they became dirty (KIP-63): on a
flush, or when one of them would be evicted. Clean entries are evicted one by one, the least recently used of all caches
first. The bound is strict: entries are evicted before a new one is added.

Only one thread uses the caches of a `ThreadCache`. Other threads may only demand memory back through the budget.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from _kafkafmt.streams.lru import ENTRY_OVERHEAD_BYTES, EntryOrder, EntryTable
from kafkafmt._util.sizes import parse_size

if TYPE_CHECKING:
    from _kafkafmt.streams.reservations import Reservation
    from kafkafmt.memory.budget import MemoryBudget

__all__ = ["ENTRY_OVERHEAD_BYTES", "DirtyEntry", "Listener", "NamedCache", "ThreadCache", "prefix_stop"]

# Key, value (None if the key was deleted), and the context that was put with them.
DirtyEntry: TypeAlias = "tuple[bytes, bytes | None, Any]"
Listener: TypeAlias = Callable[[Iterator[DirtyEntry]], object]

_LEAST_STEP_BYTES = 64 * 1024
_STEPS = 32
_EVICTIONS_BETWEEN_ATTEMPTS = 256  # before the cache tries again to grow, if the budget had no bytes free


class NamedCache(EntryTable):
    """The entries of one store in a `ThreadCache`. Create it with `ThreadCache.cache()`.

    - `get(key, default=None)` returns the value, None for a deleted key, and `default` for a key that is not cached.
    - `put(key, value, context=None)` and `delete(key, context=None)` add a dirty entry.
    - `put_clean(key, value)` adds a clean entry, with a value that was read from the store.
    - `put_if_absent(key, value, context=None)` returns the cached value; if there is none, it puts `value`.

    The listener takes an iterator over `DirtyEntry`, and returns after it has written all of them. If it raises, the
    entries stay dirty, and the call that caused the flush (put, flush or resize) raises its exception. It may put
    entries into the caches itself.
    """

    order: ThreadCache

    def __new__(cls, order: ThreadCache, name: str, listener: Listener) -> NamedCache:
        return super().__new__(cls, order)

    def __init__(self, order: ThreadCache, name: str, listener: Listener) -> None:
        self.name = name
        self._listener = listener

    def flush(self, listener: Listener | None = None) -> bool:
        """Pass all dirty entries to the listener. listener: used instead of the cache's own, for this call only.

        If no entry is dirty, the listener is not called. Returns False if a flush of this cache is already running.
        """
        with self.order.lock:
            if self.is_flushing:
                return False
            if self.dirty_bytes:
                self._hand_to(listener or self._listener)
            self.order.drop_excess()
        self.order.repay()
        return True

    def remove(self) -> None:
        """Remove this cache with its entries. Dirty entries are lost: flush before, to keep them."""
        self.clear()
        if self.order.caches.get(self.name) is self:
            del self.order.caches[self.name]

    def _hand_to(self, listener: Listener) -> None:
        is_written = False
        self.begin_flush()
        try:
            listener(iter(self.next_dirty, None))
            is_written = True
        finally:
            self.end_flush(is_written)

    def range(
        self,
        start: bytes | None = None,
        stop: bytes | None = None,
        *,
        below: Iterable[tuple[bytes, bytes]] | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys from `start` to before `stop` and their values, ascending; None is unbounded.

        below: the entries of the store in that range, ascending. Dirty entries of the cache replace them, and deleted
        keys are left out. The entries of the cache are copied when this is called.
        """
        keys, values = self.between(start, stop, below is not None)
        entries: list[tuple[bytes, bytes | None]] = sorted(zip(keys, values))  # noqa: B905  one list a column
        return _merged(entries, below or ())

    def prefix(
        self, prefix: bytes, *, below: Iterable[tuple[bytes, bytes]] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over the keys that begin with `prefix` and their values, as `range` does."""
        return self.range(prefix, prefix_stop(prefix), below=below)

    def pass_through(self, key: bytes, value: bytes | None, context: object) -> None:
        """Pass an entry larger than the bound to the listener, after all dirty entries. The kernel calls this."""
        self.flush()
        self._listener(iter([(key, value, context)]))


class ThreadCache(EntryOrder):
    """Named caches that share `total_bytes`, a number or a text such as `512m`.

    The size of an entry is that of its key and value plus ENTRY_OVERHEAD_BYTES, rounded up as the allocator does. A
    context adds its `sys.getsizeof`.

    budget: the cache reserves its bytes in a child of it, in steps as it grows. If the budget has no bytes free, the
    cache does not grow. If other callers wait for bytes, the cache evicts entries and releases their bytes; it evicts
    clean entries first. name: that of the child.

    Follows `Memory Management in Kafka Streams, "Triggering based Caches"`, and KIP-63. Raises ValueError for a total
    below 0.
    """

    def __init__(
        self, total_bytes: int | str, budget: MemoryBudget | None = None, *, name: str = "cache"
    ) -> None:
        self.total_bytes = parse_size(total_bytes, least=0)
        self.lock = threading.RLock()  # around flushes
        self.caches: dict[str, NamedCache] = {}
        self._is_making_room = False
        self._is_owing = False  # whether other callers demanded bytes that are still used
        self._budget = None if budget is None else budget.child(name)
        self._forget = None if self._budget is None else self._budget.on_pressure(self._give_back)
        self._reservations: list[Reservation] = []
        self._reserving = threading.Lock()  # guards _reservations and limit_bytes; nothing waits under it
        self._set_limit(self.total_bytes if budget is None else 0)

    def cache(self, name: str, listener: Listener) -> NamedCache:
        """Create a cache under this bound. Raises ValueError if another cache has that name."""
        if name in self.caches:
            raise ValueError(f"cache {name!r}: expected a name that no other cache has")
        self.caches[name] = NamedCache(self, name, listener)
        return self.caches[name]

    def flush(self, name: str | None = None) -> None:
        """Flush the cache of that name; None: all caches, in the order of their creation.

        Raises KeyError if no cache has that name, and what a listener raises.
        """
        for cache in list(self.caches.values()) if name is None else [self.caches[name]]:
            cache.flush()

    def resize(self, total_bytes: int | str) -> None:
        """Set the bound. Entries beyond it are evicted at once."""
        self.total_bytes = parse_size(total_bytes, least=0)
        with self._reserving:
            self._set_limit(
                self.total_bytes if self._budget is None else min(self.limit_bytes, self.total_bytes)
            )
        self.drop_excess()
        self._return_unused()

    def close(self) -> None:
        """Flush and remove all caches, and release their memory. A second call does nothing.

        If a listener raises, the other caches are flushed, and all are removed, nevertheless.
        """
        with ExitStack() as closing:
            closing.callback(self._release)
            for cache in list(self.caches.values()):
                closing.callback(cache.remove)
                closing.callback(cache.flush)

    def _release(self) -> None:
        self.resize(0)
        if self._forget is not None and self._budget is not None:
            self._forget()
            self._budget.close()

    def drop_excess(self) -> None:
        """Evict entries down to the bound, if a listener has put more than fits."""
        if self.used_bytes > self.limit_bytes and not self._is_making_room:
            self.make_room(0)

    def make_room(self, needed_bytes: int) -> bool:
        """Make room for `needed_bytes`: grow, or flush and evict the least recently used entries.

        Returns False if they exceed the bound. The kernel calls this.
        """
        if self._grow(needed_bytes):
            return True
        if needed_bytes > self.limit_bytes:
            return any(
                cache.is_flushing for cache in self.caches.values()
            )  # then the entry is added beyond the bound, and evicted after that flush
        with self.lock:
            was_making_room, self._is_making_room = self._is_making_room, True
            try:
                self._flush_and_drop(needed_bytes)
            finally:
                self._is_making_room = was_making_room
        self.repay()
        return True

    def repay(self) -> None:
        """Release the bytes that other callers demanded while a flush was running."""
        if self._is_owing and not self._is_making_room:
            self._is_owing = False
            self.drop_excess()
            self._return_unused()

    def _flush_and_drop(self, needed_bytes: int) -> None:
        flushed: set[int] = set()
        while not self.drop_oldest(needed_bytes):
            oldest = self.oldest_table()
            if oldest is None or id(oldest) in flushed or not oldest.flush():
                # The table is deallocated, its flush is running, or its listener put the entry again: the bound is
                # exceeded until that has ended.
                self.drop_clean(needed_bytes)
                return
            flushed.add(id(oldest))

    def _grow(self, needed_bytes: int) -> bool:
        """Reserve more bytes, up to the total. Returns whether `needed_bytes` now fit."""
        with self._reserving:
            lacking = self.used_bytes + needed_bytes - self.limit_bytes
            possible = self.total_bytes - self.limit_bytes
            if lacking <= 0 or self._budget is None or possible <= 0 or needed_bytes > self.total_bytes:
                return lacking <= 0
            step = max(_LEAST_STEP_BYTES, self.total_bytes // _STEPS)
            wanted = min(possible, -(-lacking // step) * step, self._budget.available_bytes)
            reservation = self._budget.try_reserve(wanted) if wanted > 0 else None
            if reservation is None:
                self.grow_at = self.evictions + _EVICTIONS_BETWEEN_ATTEMPTS
                return False
            self._reservations.append(reservation)
            self._set_limit(self.limit_bytes + reservation.size_bytes)
            return self.used_bytes + needed_bytes <= self.limit_bytes

    def _give_back(self, wanted_bytes: int) -> None:
        """Shrink by `wanted_bytes`. While another thread is flushing, only clean entries are evicted.

        That thread evicts the others after its flush, in `repay`.
        """
        with self._reserving:
            self._set_limit(max(self.limit_bytes - wanted_bytes, 0))
            # Set before the lock is tried, because the thread that holds it looks here after it has released it.
            self._is_owing = True
        if not self.drop_clean(0) and self.lock.acquire(blocking=False):
            try:
                self.drop_excess()
            finally:
                self.lock.release()
        self._return_unused()

    def _return_unused(self) -> None:
        """Release reserved bytes that are above the bound and not used."""
        with self._reserving:
            held = sum(reservation.size_bytes for reservation in self._reservations)
            kept = max(self.limit_bytes, self.used_bytes)
            while self._reservations and held > kept:
                last = self._reservations.pop()
                held -= last.size_bytes
                if held < kept:
                    last.resize(kept - held)
                    self._reservations.append(last)
                    held = kept
                else:
                    last.release()
            self._is_owing = self.used_bytes > self.limit_bytes
            if self._budget is not None and not self._is_owing:
                self._set_limit(min(held, self.total_bytes))

    def _set_limit(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.grow_at = self.evictions if limit_bytes < self.total_bytes else sys.maxsize


def prefix_stop(prefix: bytes) -> bytes | None:
    r"""Return the first key after all keys that begin with `prefix`; None if there is no such key.

    >>> prefix_stop(b"ab"), prefix_stop(b"a\xff"), prefix_stop(b"\xff")
    (b'ac', b'b', None)
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _merged(
    entries: Iterable[tuple[bytes, bytes | None]], below: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Merge both by key. For equal keys, `entries` wins; keys with the value None are left out."""
    last = None
    for key, value in heapq.merge(entries, below, key=lambda entry: entry[0]):
        if key != last and value is not None:
            yield key, value
        last = key
