"""Caches in bytes: the entries of several stores in the order of their use, under one bound.

Keys and values are raw bytes, as "Memory Management in Kafka Streams" proposes for its caches ("Triggering
based Caches"), so that what an entry takes is known. What was put is dirty until the listener of its cache has
written it: all dirty entries of that cache at once, in the order in which they became dirty (KIP-63), when one
of them would have to leave, or on a flush. Clean entries leave alone, the one not used for longest first,
whichever cache it is in. The bound is strict: room is made before an entry is taken in. One thread uses the
caches of a `ThreadCache`; others may only press for memory.
"""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from _kafkafmt.lru import ENTRY_OVERHEAD_BYTES, EntryOrder, EntryTable
from kafkafmt.sizes import parse_size

if TYPE_CHECKING:
    from _kafkafmt.reservations import Reservation
    from kafkafmt.memory.budget import MemoryBudget

__all__ = ["ENTRY_OVERHEAD_BYTES", "DirtyEntry", "Listener", "NamedCache", "ThreadCache", "prefix_stop"]

# Key, value (None: it was deleted) and the context that was put with them.
DirtyEntry: TypeAlias = "tuple[bytes, bytes | None, Any]"
Listener: TypeAlias = Callable[[Iterator[DirtyEntry]], object]

_LEAST_STEP_BYTES = 64 * 1024
_STEPS = 32
_EVICTIONS_BETWEEN_ATTEMPTS = 256  # to grow, where the budget has nothing left


class NamedCache(EntryTable):
    """The entries of one store in a `ThreadCache`, whose method `cache` makes it.

    `get(key, default=None)` gives the value, None for a key that was deleted, and `default` where the cache
    does not know; `put(key, value, context=None)` and `delete(key, context=None)` make a dirty entry,
    `put_clean(key, value)` keeps what was read from below, `put_if_absent(key, value, context=None)` returns
    the value that is here or puts its own. The listener takes an iterator over `DirtyEntry` and returns once
    all of it is written. Where it raises, what it was handed is dirty as before, and whoever put, flushed or
    resized gets its exception. It may put into the caches itself.
    """

    order: ThreadCache

    def __new__(cls, order: ThreadCache, name: str, listener: Listener) -> NamedCache:
        return super().__new__(cls, order)

    def __init__(self, order: ThreadCache, name: str, listener: Listener) -> None:
        self.name = name
        self._listener = listener

    def flush(self, listener: Listener | None = None) -> bool:
        """Hand all dirty entries to the listener, or to another for this once; False from within a flush of
        this cache.

        Where nothing is dirty the listener is not called.
        """
        with self.order.lock:
            if self.is_flushing:
                return False
            if self.dirty_bytes:
                self._hand_to(listener or self._listener)
            self.order.settle()
        return True

    def remove(self) -> None:
        """Forget this cache and its entries, dirty ones too: flush it first where those are to stay."""
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
        """Keys from `start` to in front of `stop` with their values, ascending.

        below: what the store below has in that range, ascending. Then what is dirty here stands in place of
        what is there, and what was deleted is left out. What is here is copied when this is called.
        """
        keys, values = self.between(start, stop, below is not None)
        entries: list[tuple[bytes, bytes | None]] = sorted(zip(keys, values))  # noqa: B905  one list a column
        return _merged(entries, below or ())

    def prefix(
        self, prefix: bytes, *, below: Iterable[tuple[bytes, bytes]] | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys that begin with `prefix`, as `range` gives them."""
        return self.range(prefix, prefix_stop(prefix), below=below)

    def pass_through(self, key: bytes, value: bytes | None, context: object) -> None:
        """Hand what there is no room for to the listener, behind all that is dirty. The kernel calls it."""
        self.flush()
        self._listener(iter([(key, value, context)]))


class ThreadCache(EntryOrder):
    """Named caches that share `total_bytes`, a number or a text as `512m`, as they are used.

    An entry takes its key, its value and ENTRY_OVERHEAD_BYTES, rounded up as the allocator does; a context in
    addition what `sys.getsizeof` says. With a `budget` the bytes are reserved in a child of it, in steps as the
    cache grows; where the budget has none left the cache stays as it is, and where others want some it gives
    back, clean entries first. Follows `Memory Management in Kafka Streams, "Triggering based Caches"`, and
    KIP-63. Raises ValueError for a total below 0.
    """

    def __init__(
        self, total_bytes: int | str, budget: MemoryBudget | None = None, *, name: str = "cache"
    ) -> None:
        self.total_bytes = parse_size(total_bytes, least=0)
        self.lock = threading.RLock()  # around flushes
        self.caches: dict[str, NamedCache] = {}
        self._is_making_room = False
        self._budget = None if budget is None else budget.child(name)
        self._forget = None if self._budget is None else self._budget.on_pressure(self._give_back)
        self._reservations: list[Reservation] = []
        self._reserving = threading.Lock()  # around those and limit_bytes; nothing waits under it
        self._set_limit(self.total_bytes if budget is None else 0)

    def cache(self, name: str, listener: Listener) -> NamedCache:
        """A new cache under this bound. Raises ValueError where the name is taken."""
        if name in self.caches:
            raise ValueError(f"cache {name!r}: expected a name that no other cache has")
        self.caches[name] = NamedCache(self, name, listener)
        return self.caches[name]

    def flush(self, name: str | None = None) -> None:
        """Flush one cache, or all in the order in which they were made."""
        for cache in list(self.caches.values()) if name is None else [self.caches[name]]:
            cache.flush()

    def resize(self, total_bytes: int | str) -> None:
        """Set the bound; what is too much for it leaves at once."""
        self.total_bytes = parse_size(total_bytes, least=0)
        with self._reserving:
            self._set_limit(
                self.total_bytes if self._budget is None else min(self.limit_bytes, self.total_bytes)
            )
        self.settle()
        self._return_unused()

    def close(self) -> None:
        """Flush and forget all caches, and give the memory back. A second call does nothing."""
        self.flush()
        for cache in list(self.caches.values()):
            cache.remove()
        self.resize(0)
        if self._forget is not None and self._budget is not None:
            self._forget()
            self._budget.close()

    def settle(self) -> None:
        """Come back to the bound, if a listener has put more than there was room for."""
        if self.used_bytes > self.limit_bytes and not self._is_making_room:
            self.make_room(0)

    def make_room(self, needed_bytes: int) -> bool:
        """Grow, or flush and drop what was not used for longest; False for more than the bound. The kernel calls it."""
        if self._grow(needed_bytes):
            return True
        if needed_bytes > self.limit_bytes:
            return any(
                cache.is_flushing for cache in self.caches.values()
            )  # then it leaves behind that flush
        with self.lock:
            was_making_room, self._is_making_room = self._is_making_room, True
            try:
                self._flush_and_drop(needed_bytes)
            finally:
                self._is_making_room = was_making_room
        return True

    def _flush_and_drop(self, needed_bytes: int) -> None:
        flushed: set[int] = set()
        while not self.drop_oldest(needed_bytes):
            oldest = self.oldest_table()
            if oldest is None:
                return
            if id(oldest) in flushed or not oldest.flush():
                # It is flushed already, or its listener put it again: over the bound until that is through.
                self.drop_clean(needed_bytes)
                return
            flushed.add(id(oldest))

    def _grow(self, needed_bytes: int) -> bool:
        """Reserve more where the total allows; whether there is room then."""
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
        """Shrink by what others want. From another thread, while this one flushes, only clean entries leave."""
        with self._reserving:
            self._set_limit(max(self.limit_bytes - wanted_bytes, 0))
        if not self.drop_clean(0) and self.lock.acquire(blocking=False):
            try:
                self.settle()
            finally:
                self.lock.release()
        self._return_unused()

    def _return_unused(self) -> None:
        """Release what is reserved above the bound and not used."""
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
            if self._budget is not None:
                self._set_limit(min(held, self.total_bytes))

    def _set_limit(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.grow_at = self.evictions if limit_bytes < self.total_bytes else sys.maxsize


def prefix_stop(prefix: bytes) -> bytes | None:
    r"""The first key behind all that begin with `prefix`; None where there is none.

    >>> prefix_stop(b"ab"), prefix_stop(b"a\xff"), prefix_stop(b"\xff")
    (b'ac', b'b', None)
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _merged(
    entries: Iterable[tuple[bytes, bytes | None]], below: Iterable[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in one order; of equal keys what `entries` says, and nothing where that is None."""
    last = None
    for key, value in heapq.merge(entries, below, key=lambda entry: entry[0]):
        if key != last and value is not None:
            yield key, value
        last = key
