"""Caches bounded in bytes: ours beside cachetools' LRUCache, which is told what an entry takes by `getsizeof`."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from cachetools import LRUCache

from kafkafmt.streams.cache import ENTRY_OVERHEAD_BYTES, NamedCache, ThreadCache

_VALUE = bytes(100)
_KEYS = [b"key-%012d" % number for number in range(200_000)]


def _ours(entries: int) -> NamedCache:
    total = entries * (len(_KEYS[0]) + len(_VALUE) + ENTRY_OVERHEAD_BYTES + 15)
    return ThreadCache(total).cache("bench", lambda dirty: deque(dirty, maxlen=0))


def _theirs(entries: int) -> LRUCache[bytes, bytes]:
    return LRUCache(entries * len(_VALUE), getsizeof=len)


class Caching:
    """A cache that is full; a time is that of as many operations as it has entries."""

    param_names: ClassVar[list[str]] = ["cache", "entries"]
    params: ClassVar[list[list[Any]]] = [["kafkafmt", "cachetools"], [1000, 20_000, 100_000]]

    def setup(self, cache: str, entries: int) -> None:
        self.cache: Any = _ours(entries) if cache == "kafkafmt" else _theirs(entries)
        self.put = self.cache.put if cache == "kafkafmt" else self.cache.__setitem__
        self.there, self.missing = _KEYS[:entries], _KEYS[100_000 : 100_000 + entries]
        for key in self.there:
            self.put(key, _VALUE)

    def time_get_hit(self, cache: str, entries: int) -> None:
        get = self.cache.get
        for key in self.there:
            get(key)

    def time_get_miss(self, cache: str, entries: int) -> None:
        get = self.cache.get
        for key in self.missing:
            get(key)

    def time_put_existing(self, cache: str, entries: int) -> None:
        put = self.put
        for key in self.there:
            put(key, _VALUE)

    def time_put_new_with_eviction(self, cache: str, entries: int) -> None:
        put = self.put
        for key in self.missing:
            put(key, _VALUE)

    # Each round evicts what the next one puts.
    time_put_new_with_eviction.number = 1  # type: ignore[attr-defined]
    time_put_new_with_eviction.warmup_time = 0  # type: ignore[attr-defined]
