"""What the parts cost: a reservation and its release, and the cache beside cachetools' with bounds in bytes.

Seconds are those of the thread on its core, so that what else the machine runs does not count, and ours and theirs take
turns within one loop, so that what it does to caches and clock comes to both.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from bench.results import Figure, Table
from kafkafmt.memory import MemoryBudget
from kafkafmt.streams.cache import NamedCache, ThreadCache

MOST_NANOSECONDS = 1000.0
LEAST_RATIO = 2.0

_ROUNDS = 7
_OPERATIONS = 100_000
_ENTRIES = 20_000
_VALUE = bytes(200)
_ENTRY_BYTES = len(_VALUE) + 16


@dataclass(frozen=True)
class Cost:
    """Nanoseconds an operation of ours, and of cachetools where it has one. is_hit: of the target."""

    label: str
    ours: float
    theirs: float | None
    is_hit: bool


def measured(text: str = "") -> Iterator[Cost]:
    """The rows whose name has `text`."""
    for label, work in _RESERVATIONS.items():
        if text in label:
            (ours,) = _best(work)
            yield Cost(label, ours, None, ours <= MOST_NANOSECONDS)
    for label, (work_of_ours, work_of_theirs) in _CACHES.items():
        if text in label:
            ours, theirs = _best(work_of_ours, work_of_theirs)
            yield Cost(label, ours, theirs, theirs >= LEAST_RATIO * ours)


def as_table(costs: Sequence[Cost]) -> Table:
    rows: list[tuple[str, ...]] = [("operation", "ours", "cachetools", "ratio", "target", "verdict")]
    for cost in costs:
        theirs = "" if cost.theirs is None else _nanoseconds(cost.theirs)
        ratio = "" if cost.theirs is None else f"{cost.theirs / cost.ours:.1f}x"
        target = f"<= {MOST_NANOSECONDS:.0f} ns" if cost.theirs is None else f">= {LEAST_RATIO:g}x"
        verdict = "hit" if cost.is_hit else "MISSED"
        rows.append((cost.label, _nanoseconds(cost.ours), theirs, ratio, target, verdict))
    return Table("costs", "What a reservation and the cache cost, in time of one thread", rows)


def _nanoseconds(value: float) -> Figure:
    return Figure(value, f"{value:.0f} ns", "ns")


def _best(*works: Callable[[int], Callable[[], object]]) -> list[float]:
    """Nanoseconds an operation of each: the best of rounds in which all take turns, each time with new things."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(_ROUNDS):
        for work, of_work in zip(works, seconds, strict=True):
            run = work(_OPERATIONS)
            started = time.thread_time()
            run()
            of_work.append(time.thread_time() - started)
    return [min(of_work) / _OPERATIONS * 1e9 for of_work in seconds]


def _reserving(depth: int) -> Callable[[int], Callable[[], object]]:
    def prepared(operations: int) -> Callable[[], object]:
        budget = MemoryBudget(1 << 30)
        for number in range(depth):
            budget = budget.child(f"child{number}")

        def run() -> None:
            reserve = budget.reserve
            for _ in range(operations):
                reserve(4096).release()

        return run

    return prepared


def _trying(operations: int) -> Callable[[], object]:
    budget = MemoryBudget(1 << 30)

    def run() -> None:
        try_reserve = budget.try_reserve
        for _ in range(operations):
            reservation = try_reserve(4096)
            assert reservation is not None
            reservation.release()

    return run


def _ours(operations: int) -> NamedCache:
    """With room for as many entries as cachetools' has, whatever one takes beside its key and value."""
    cache = ThreadCache(_ENTRIES * (_ENTRY_BYTES + 300)).cache("bench", lambda dirty: deque(dirty, 0))
    for key in _keys(_ENTRIES):
        cache.put_clean(key, _VALUE)
    cache.order.resize(cache.order.used_bytes)
    return cache


def _theirs(operations: int) -> LRUCache[bytes, bytes]:
    """Sized by len alone, the fastest there is: it counts no keys."""
    cache: LRUCache[bytes, bytes] = LRUCache(_ENTRIES * len(_VALUE), getsizeof=len)
    for key in _keys(_ENTRIES):
        cache[key] = _VALUE
    return cache


def _keys(count: int, first: int = 0) -> list[bytes]:
    return [b"customer-%07d" % number for number in range(first, first + count)]


def _skewed(operations: int, among: int) -> list[bytes]:
    chosen = random.Random(1)
    keys = _keys(among)
    return [keys[int(among * chosen.random() ** 3)] for _ in range(operations)]


def _get_ours(operations: int) -> Callable[[], object]:
    cache, keys = _ours(operations), _skewed(operations, _ENTRIES)

    def run() -> None:
        get = cache.get
        for key in keys:
            get(key)

    return run


def _get_theirs(operations: int) -> Callable[[], object]:
    cache, keys = _theirs(operations), _skewed(operations, _ENTRIES)

    def run() -> None:
        for key in keys:
            cache[key]

    return run


def _put_ours(keys_of: Callable[[int], Sequence[bytes]], name: str) -> Callable[[int], Callable[[], object]]:
    def prepared(operations: int) -> Callable[[], object]:
        cache, keys = _ours(operations), keys_of(operations)

        def run() -> None:
            put = getattr(cache, name)
            for key in keys:
                put(key, _VALUE)

        return run

    return prepared


def _put_theirs(keys_of: Callable[[int], Sequence[bytes]]) -> Callable[[int], Callable[[], object]]:
    def prepared(operations: int) -> Callable[[], object]:
        cache, keys = _theirs(operations), keys_of(operations)

        def run() -> None:
            for key in keys:
                cache[key] = _VALUE

        return run

    return prepared


def _known(operations: int) -> list[bytes]:
    return _skewed(operations, _ENTRIES)


def _new(operations: int) -> list[bytes]:
    return _keys(operations, first=_ENTRIES)


def _mixed_ours(operations: int) -> Callable[[], object]:
    """Four times as many keys as fit: what is not there is put, and pushes another out."""
    cache, keys = _ours(operations), _skewed(operations, 4 * _ENTRIES)

    def run() -> None:
        get, put = cache.get, cache.put_clean
        for key in keys:
            if get(key) is None:
                put(key, _VALUE)

    return run


def _mixed_theirs(operations: int) -> Callable[[], object]:
    cache, keys = _theirs(operations), _skewed(operations, 4 * _ENTRIES)

    def run() -> None:
        get = cache.get
        for key in keys:
            if get(key) is None:
                cache[key] = _VALUE

    return run


_RESERVATIONS: dict[str, Callable[[int], Callable[[], object]]] = {
    "reserve and release": _reserving(0),
    "reserve and release, of a child of a child": _reserving(2),
    "try_reserve and release": _trying,
}
_CACHES = {
    "cache: get, a hit": (_get_ours, _get_theirs),
    "cache: put of a known key": (_put_ours(_known, "put_clean"), _put_theirs(_known)),
    "cache: put of a new key, one leaves": (_put_ours(_new, "put_clean"), _put_theirs(_new)),
    "cache: the same, written to a listener before": (_put_ours(_new, "put"), _put_theirs(_new)),
    "cache: get, and put where it misses": (_mixed_ours, _mixed_theirs),
}
