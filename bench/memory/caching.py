"""The document's second open question, a cache above RocksDB or none: `python -m bench.memory.caching WAY FOLDER`.

A count for each key, as an aggregation keeps it: the value is read, deserialised, changed, serialised and put; keys are
skewed. Every way has the same bytes in all; what has no cache above the store has them in its block cache. It commits
as often, which writes what is dirty. The folder is to be empty.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.memory import limited
from bench.memory.limited import AMPLE_BYTES
from kafkafmt import TopicPartition
from kafkafmt.streams.cache import ENTRY_OVERHEAD_BYTES, ThreadCache
from kafkafmt.streams.store import RocksDBStore

MIB = 1024 * 1024
TOTAL_BYTES = 32 * MIB
OPERATIONS = 400_000
KEYS = 200_000
COMMITTED_OPERATIONS = 50_000

_WRITE_BUFFER_BYTES = 4 * MIB
_SMALL_WRITE_BUFFER_BYTES = MIB
_CACHE_BYTES = 16 * MIB
_WRITE_BUFFERS = 2
_NOTE = "shipped from the warehouse, express; payment confirmed by the customer"
_VALUE_BYTES = 160
_SOURCE = TopicPartition("bench", 0)


class _Objects:
    """Deserialised objects, as many as a cache in bytes has entries; those that leave and those of a commit are put."""

    def __init__(self, store: RocksDBStore, entries: int) -> None:
        self._store, self._entries = store, entries
        self._objects: OrderedDict[bytes, Any] = OrderedDict()
        self._dirty: set[bytes] = set()

    def get(self, key: bytes) -> Any:
        if key in self._objects:
            self._objects.move_to_end(key)
            return self._objects[key]
        found = self._store.get(key)
        return None if found is None else json.loads(found)

    def put(self, key: bytes, value: Any) -> None:
        self._objects[key] = value
        self._objects.move_to_end(key)
        self._dirty.add(key)
        if len(self._objects) > self._entries:
            oldest, old = self._objects.popitem(last=False)
            if oldest in self._dirty:
                self._dirty.remove(oldest)
                self._store.put(oldest, json.dumps(old).encode())

    def commit(self, position: int) -> None:
        entries = [(key, json.dumps(self._objects[key]).encode()) for key in self._dirty]
        self._store.write(entries, {_SOURCE: position})
        self._dirty.clear()


class _Bytes:
    """The store itself, with its cache in bytes or without one."""

    def __init__(self, store: RocksDBStore) -> None:
        self._store = store

    def get(self, key: bytes) -> Any:
        found = self._store.get(key)
        return None if found is None else json.loads(found)

    def put(self, key: bytes, value: Any) -> None:
        self._store.put(key, json.dumps(value).encode())

    def commit(self, position: int) -> None:
        self._store.commit({_SOURCE: position})


@dataclass(frozen=True)
class Way:
    """cache_bytes of objects: what as many entries would take in bytes."""

    label: str
    cache_bytes: int
    write_buffer_bytes: int = _WRITE_BUFFER_BYTES
    has_objects: bool = False

    @property
    def block_cache_bytes(self) -> int:
        return TOTAL_BYTES - self.cache_bytes - _WRITE_BUFFERS * self.write_buffer_bytes

    def opened(self, folder: str) -> tuple[RocksDBStore, _Bytes | _Objects]:
        in_bytes = self.cache_bytes and not self.has_objects
        store = RocksDBStore(
            folder,
            block_cache=self.block_cache_bytes,
            write_buffer_bytes=self.write_buffer_bytes,
            max_write_buffer_number=_WRITE_BUFFERS,
            cache=ThreadCache(self.cache_bytes) if in_bytes else None,
        )
        if not self.has_objects:
            return store, _Bytes(store)
        return store, _Objects(store, self.cache_bytes // (_VALUE_BYTES + 16 + ENTRY_OVERHEAD_BYTES))


WAYS = {
    "none": Way("none, 24 MiB of block cache", 0),
    "bytes": Way("16 MiB in bytes", _CACHE_BYTES),
    "small-memtable": Way("16 MiB in bytes, write buffers of 1 MiB", _CACHE_BYTES, _SMALL_WRITE_BUFFER_BYTES),
    "objects": Way("deserialised objects, as many", _CACHE_BYTES, has_objects=True),
}


def count(keys: Sequence[bytes], state: _Bytes | _Objects) -> None:
    for number, key in enumerate(keys):
        value = state.get(key) or {"key": key.decode(), "count": 0, "note": _NOTE}
        value["count"] += 1
        state.put(key, value)
        if number % COMMITTED_OPERATIONS == COMMITTED_OPERATIONS - 1:
            state.commit(number)


def read(keys: Sequence[bytes], get: Callable[[bytes], Any]) -> int:
    """The sum of all counts."""
    return sum(get(key)["count"] for key in keys)


def written_bytes() -> int:
    """What this process has handed to the system to be written, to logs and tables alike."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def main(way: str, folder: str) -> None:
    chosen = random.Random(1)
    keys = [b"customer-%07d" % int(KEYS * chosen.random() ** 3) for _ in range(OPERATIONS)]
    known = sorted(set(keys))
    start = limited.begin(AMPLE_BYTES)
    before, began = written_bytes(), time.perf_counter()
    store, state = WAYS[way].opened(folder)
    count(keys, state)
    state.commit(len(keys))
    counted = time.perf_counter() - began
    written = written_bytes() - before
    began = time.perf_counter()
    read(keys, state.get)
    seconds = time.perf_counter() - began
    resident = limited.status_bytes()["RssAnon"] - start["RssAnon"]
    total = read(known, state.get)
    store.close()
    limited.end(
        {
            "count_seconds": counted,
            "read_seconds": seconds,
            "written_bytes": written,
            "resident_bytes": resident,
            "total": total,
        }
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
