"""Caches in bytes: what leaves, in which order listeners hear of it, and that the bound holds."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafmt.memory.budget import MemoryBudget
from kafkafmt.streams.cache import ENTRY_OVERHEAD_BYTES, DirtyEntry, NamedCache, ThreadCache, prefix_stop

ROOMY = 1 << 20
MISSING = object()


class Written:
    """A listener that keeps what it was handed, a list for each time."""

    def __init__(self) -> None:
        self.flushes: list[list[DirtyEntry]] = []

    def __call__(self, entries: Iterator[DirtyEntry]) -> None:
        self.flushes.append(list(entries))

    @property
    def pairs(self) -> list[tuple[bytes, bytes | None]]:
        return [(key, value) for flush in self.flushes for key, value, _ in flush]


@pytest.fixture
def written() -> Written:
    return Written()


def cost(key: bytes, value: bytes) -> int:
    """What one entry takes at most."""
    return ENTRY_OVERHEAD_BYTES + len(key) + len(value) + 15


def filled(total_bytes: int, written: Written, count: int) -> NamedCache:
    cache = ThreadCache(total_bytes).cache("store", written)
    for number in range(count):
        cache.put(b"%04d" % number, b"value")
    return cache


def test_get_of_what_was_put_returns_it(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put(b"key", b"value")
    cache.put(b"", b"")
    assert (cache.get(b"key"), cache.get(b""), cache.get(b"other")) == (b"value", b"", None)
    assert cache.get(b"other", MISSING) is MISSING
    assert (cache.hits, cache.misses, len(cache)) == (2, 2, 2)


def test_get_of_a_deleted_key_returns_none_and_not_the_default(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put(b"key", b"value")
    cache.delete(b"key")
    assert cache.get(b"key", MISSING) is None
    cache.flush()
    assert cache.get(b"key", MISSING) is MISSING
    assert written.pairs == [(b"key", None)]


def test_flush_hands_over_dirty_entries_in_the_order_in_which_they_became_so(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    for key in (b"a", b"b", b"c"):
        cache.put(key, b"1", context=key.upper())
    cache.put(b"a", b"2")
    cache.put_clean(b"d", b"clean")
    cache.flush()
    assert written.flushes == [[(b"b", b"1", b"B"), (b"c", b"1", b"C"), (b"a", b"2", None)]]
    cache.flush()
    assert len(written.flushes) == 1
    assert cache.dirty_bytes == 0
    assert cache.get(b"a") == b"2"


def test_eviction_of_a_dirty_entry_flushes_all_of_its_cache_and_only_those() -> None:
    total = 10 * cost(b"0000", b"value")
    shared = ThreadCache(total)
    first, second = Written(), Written()
    one, other = shared.cache("one", first), shared.cache("other", second)
    for number in range(3):
        one.put(b"%04d" % number, b"value")
    for number in range(20):
        if not first.flushes:
            other.put(b"%04d" % number, b"value")
    assert [key for key, _ in first.pairs] == [b"0000", b"0001", b"0002"]
    assert not second.flushes
    assert b"0000" not in one
    assert b"0001" in one


def test_the_one_not_used_for_longest_leaves_first_whichever_cache_it_is_in(written: Written) -> None:
    shared = ThreadCache(4 * cost(b"a", b"") + 64)
    one, other = shared.cache("one", written), shared.cache("other", written)
    one.put_clean(b"a", b"")
    other.put_clean(b"b", b"")
    one.put_clean(b"c", b"")
    one.get(b"a")
    number = 0
    while b"b" in other:
        number += 1
        one.put_clean(b"%d" % number, b"")
        assert b"a" in one or b"b" not in other
    assert b"c" in one


def test_use_of_the_newest_entry_leaves_it_and_the_others_in_their_order(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    for key in (b"a", b"b", b"c"):
        cache.put_clean(key, b"value")
    for _ in range(2):
        cache.get(b"c")
        cache.put_clean(b"c", b"other")
    left = []
    while len(cache):
        there = {key for key, _ in cache.range()}
        cache.order.resize(cache.order.used_bytes - 1)
        left.append(there - {key for key, _ in cache.range()})
    assert left == [{b"a"}, {b"b"}, {b"c"}]


def test_one_cache_takes_the_room_that_another_does_not_use(written: Written) -> None:
    shared = ThreadCache(64 * 1024)
    shared.cache("idle", written)
    busy = shared.cache("busy", written)
    for number in range(2000):
        busy.put(b"%04d" % number, b"value")
    assert busy.used_bytes > shared.total_bytes * 0.95


def test_bound_holds_at_every_moment_also_for_what_listeners_see() -> None:
    seen = []
    shared = ThreadCache(10_000)

    def listener(entries: Iterator[DirtyEntry]) -> None:
        seen.extend(shared.used_bytes for _ in entries)

    cache = shared.cache("store", listener)
    for number in range(1000):
        cache.put(b"%d" % (number % 300), bytes(number * 7 % 1500))
        seen.append(shared.used_bytes)
    assert max(seen) <= 10_000
    assert shared.evictions


def test_put_if_absent_keeps_what_is_there_and_replaces_what_was_deleted(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    assert cache.put_if_absent(b"a", b"1") is None
    assert cache.put_if_absent(b"a", b"2") == b"1"
    cache.delete(b"a")
    assert cache.put_if_absent(b"a", b"3") is None
    assert cache.get(b"a") == b"3"


def test_put_if_absent_when_the_flush_for_its_room_puts_the_key_then_that_value_stays() -> None:
    shared = ThreadCache(2_000)
    value = bytes(500)

    def listener(entries: Iterator[DirtyEntry]) -> None:
        if b"1" in {key for key, _, _ in entries}:
            cache.put(b"a", b"of the listener")

    cache = shared.cache("store", listener)
    for number in range(3):
        cache.put(b"%d" % number, value)
    assert cache.put_if_absent(b"a", value) == b"of the listener"
    assert cache.get(b"a") == b"of the listener"


def test_put_clean_of_a_dirty_key_changes_nothing(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put(b"a", b"new")
    cache.put_clean(b"a", b"old")
    cache.flush()
    assert written.pairs == [(b"a", b"new")]


def test_value_larger_than_the_bound_goes_straight_through_behind_what_was_put_before(
    written: Written,
) -> None:
    cache = ThreadCache(1000).cache("store", written)
    cache.put(b"a", b"1")
    cache.put(b"b", b"2")
    cache.put(b"a", bytes(5000), context="large")
    assert written.flushes == [[(b"a", b"1", None), (b"b", b"2", None)], [(b"a", bytes(5000), "large")]]
    assert cache.get(b"a", MISSING) is MISSING
    assert cache.get(b"b") == b"2"
    cache.put_clean(b"c", bytes(5000))
    assert b"c" not in cache


def test_cache_of_no_bytes_passes_everything_through(written: Written) -> None:
    cache = ThreadCache(0).cache("store", written)
    cache.put(b"a", b"1")
    cache.delete(b"a")
    assert written.pairs == [(b"a", b"1"), (b"a", None)]
    assert len(cache) == 0


def test_listener_that_raises_leaves_entries_dirty_in_their_order() -> None:
    handed: list[DirtyEntry] = []
    fails = True

    def listener(entries: Iterator[DirtyEntry]) -> None:
        for entry in entries:
            handed.append(entry)
            if fails and len(handed) == 2:
                raise OSError("disk full")

    cache = ThreadCache(ROOMY).cache("store", listener)
    for key in (b"a", b"b", b"c"):
        cache.put(key, b"1", "context")
    with pytest.raises(OSError, match="disk full"):
        cache.flush()
    cache.put(b"d", b"1", "context")
    handed.clear()
    fails = False
    cache.flush()
    assert handed == [(key, b"1", "context") for key in (b"a", b"b", b"c", b"d")]


def test_listener_that_raises_at_an_eviction_fails_the_put_and_loses_nothing() -> None:
    def listener(entries: Iterator[DirtyEntry]) -> None:
        raise OSError("disk full")

    cache = ThreadCache(2000).cache("store", listener)
    number = 0
    with pytest.raises(OSError, match="disk full"):  # noqa: PT012  the put at which it is full
        while True:
            cache.put(b"%04d" % number, b"value")
            number += 1
    assert len(cache) == number
    written = Written()
    cache.flush(written)
    assert [key for key, _ in written.pairs] == [b"%04d" % one for one in range(number)]


def test_close_when_a_listener_raises_then_other_caches_are_flushed_and_all_bytes_released() -> None:
    def listener(entries: Iterator[DirtyEntry]) -> None:
        raise OSError("disk full")

    budget = MemoryBudget(ROOMY)
    shared = ThreadCache(200_000, budget)
    written = Written()
    shared.cache("full", listener).put(b"a", b"1")
    shared.cache("other", written).put(b"b", b"2")
    with pytest.raises(OSError, match="disk full"):
        shared.close()
    assert written.pairs == [(b"b", b"2")]
    assert (shared.caches, budget.held_bytes) == ({}, 0)
    assert [usage.name for usage in budget.usage()] == ["total"]


def test_listener_that_takes_only_some_leaves_the_rest_dirty() -> None:
    cache = ThreadCache(ROOMY).cache("store", lambda entries: next(entries))
    cache.put(b"a", b"1")
    cache.put(b"b", b"2")
    cache.flush()
    written = Written()
    cache.flush(written)
    assert written.pairs == [(b"b", b"2")]


def test_listener_that_puts_into_its_own_cache_has_that_flushed_next() -> None:
    pairs = []

    def listener(entries: Iterator[DirtyEntry]) -> None:
        for key, value, _ in entries:
            pairs.append((key, value))
            if value == b"1":
                cache.put(key, b"2")
                cache.put(b"b", b"2")

    cache = ThreadCache(ROOMY).cache("store", listener)
    cache.put(b"a", b"1")
    cache.put(b"b", b"1")
    cache.flush()
    assert pairs == [(b"a", b"1")]  # b became dirty anew before its turn
    cache.flush()
    assert pairs[1:] == [(b"a", b"2"), (b"b", b"2")]


def test_listener_that_puts_more_than_there_is_room_for_comes_back_to_the_bound() -> None:
    shared = ThreadCache(4000)
    below, peak = Written(), 0

    def listener(entries: Iterator[DirtyEntry]) -> None:
        nonlocal peak
        for key, value, _ in entries:
            derived.put(b"derived-" + key, value)
            if not key.startswith(b"again-"):
                source.put(b"again-" + key, bytes(100))
        peak = max(peak, shared.used_bytes)

    source = shared.cache("source", listener)
    derived = shared.cache("derived", below)
    for number in range(100):
        source.put(b"%04d" % number, b"value")
    shared.flush()
    shared.flush()
    assert shared.used_bytes <= 4000
    assert {key for key, _ in below.pairs} >= {b"derived-%04d" % number for number in range(100)}
    assert {key for key, _ in below.pairs} >= {b"derived-again-%04d" % number for number in range(100)}


def test_flush_within_a_flush_of_the_same_cache_does_nothing() -> None:
    cache = ThreadCache(ROOMY).cache(
        "store", lambda entries: results.append((cache.flush(), len(list(entries))))
    )
    results: list[tuple[bool, int]] = []
    cache.put(b"a", b"1")
    cache.flush()
    assert results == [(False, 1)]


def test_resize_to_less_evicts_at_once_and_to_more_keeps_all(written: Written) -> None:
    cache = filled(ROOMY, written, 1000)
    used = cache.order.used_bytes
    cache.order.resize(used // 2)
    assert used // 2 - 500 < cache.order.used_bytes <= used // 2
    assert len(written.pairs) == 1000
    cache.order.resize(ROOMY)
    assert cache.get(b"0999") == b"value"
    cache.order.resize(0)
    assert (len(cache), cache.order.used_bytes) == (0, 0)


def test_total_when_it_is_a_text_then_it_is_the_size_that_it_says():
    cache = ThreadCache("1m")
    assert (cache.total_bytes, cache.limit_bytes) == (2**20, 2**20)
    cache.resize("512K")
    assert (cache.total_bytes, cache.limit_bytes) == (2**19, 2**19)


@pytest.mark.parametrize("total", [-1, -(2**40)])
def test_negative_total_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=f"expected a size of 0 bytes or more, .* found {total}"):
        ThreadCache(total)
    with pytest.raises(ValueError, match="0 bytes or more"):
        ThreadCache(1).resize(total)


def test_name_that_is_in_use_is_refused_until_it_is_removed(written: Written) -> None:
    shared = ThreadCache(ROOMY)
    shared.cache("store", written).put(b"a", b"1")
    with pytest.raises(ValueError, match="'store'"):
        shared.cache("store", written)
    shared.caches["store"].remove()
    assert shared.used_bytes == 0
    assert shared.cache("store", written).get(b"a") is None
    assert not written.flushes


@pytest.mark.parametrize("key", ["text", None, 1, bytearray(b"a")])
def test_key_that_is_not_bytes_is_refused(key: object, written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    for call in (cache.get, cache.delete, cache.__contains__, lambda key: cache.put(key, b"")):
        with pytest.raises(TypeError):
            call(key)  # type: ignore[operator]
    with pytest.raises(TypeError):
        cache.put(b"a", "text")  # type: ignore[arg-type]


def test_range_gives_what_is_here_in_the_order_of_keys(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    for key in (b"b", b"a\x00", b"a", b"\xff", b"", b"ab"):
        cache.put(key, key)
    cache.put_clean(b"c", b"c")
    cache.delete(b"ab")
    assert [key for key, _ in cache.range()] == [b"", b"a", b"a\x00", b"b", b"c", b"\xff"]
    assert [key for key, _ in cache.range(b"a", b"b")] == [b"a", b"a\x00"]
    assert list(cache.range(b"b", b"a")) == []
    assert [key for key, _ in cache.prefix(b"a")] == [b"a", b"a\x00"]
    assert [key for key, _ in cache.prefix(b"\xff")] == [b"\xff"]


def test_range_over_a_store_below_has_dirty_entries_win_and_deleted_keys_left_out(written: Written) -> None:
    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put_clean(b"b", b"clean, which the store has too")
    cache.put(b"c", b"new")
    cache.put(b"cc", b"only here")
    cache.delete(b"d")
    below = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4"), (b"e", b"5")]
    expected = [(b"a", b"1"), (b"b", b"2"), (b"c", b"new"), (b"cc", b"only here"), (b"e", b"5")]
    assert list(cache.range(below=below)) == expected


def test_context_is_held_until_it_was_flushed_and_no_longer(written: Written) -> None:
    class Context:
        pass

    context = Context()
    gone = weakref.ref(context)
    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put(b"a", b"1", context)
    del context
    assert gone() is not None
    cache.flush()
    written.flushes.clear()
    assert gone() is None


def test_context_whose_finalizer_uses_the_cache_finds_the_put_done(written: Written) -> None:
    class Context:
        def __init__(self, at_end: Callable[[], object]) -> None:
            self.at_end = at_end

        def __del__(self) -> None:
            self.at_end()

    cache = ThreadCache(ROOMY).cache("store", written)
    cache.put(b"a", b"1", Context(lambda: cache.put(b"a", b"put by the finalizer")))
    cache.put(b"a", bytes(1000))
    assert list(cache.range()) == [(b"a", b"put by the finalizer")]
    assert len(cache) == 1
    for value in (b"1", bytes(1000)):  # in its block, and in another
        cache.put(b"b", b"1", Context(cache.clear))
        cache.put(b"b", value)
        assert (len(cache), cache.used_bytes, cache.dirty_bytes) == (0, 0, 0)


def test_caches_that_nobody_holds_are_freed() -> None:
    shared = ThreadCache(ROOMY)
    shared.cache("store", list).put(b"a", b"1", shared)
    gone = weakref.ref(shared.caches["store"])
    shared.flush()
    del shared
    gc.collect()
    assert gone() is None


def test_prefix_stop_of_the_empty_prefix_is_none() -> None:
    assert prefix_stop(b"") is None


KEYS = st.integers(0, 40).map(lambda number: b"%d" % number)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 600)),
        st.tuples(st.just("delete"), KEYS, st.just(0)),
        st.tuples(st.just("get"), KEYS, st.just(0)),
        st.tuples(st.just("flush"), KEYS, st.just(0)),
        st.tuples(st.just("resize"), KEYS, st.integers(0, 6000)),
    ),
    max_size=120,
)


@given(STEPS, st.integers(500, 6000))
@settings(max_examples=300, deadline=None)
def test_cache_over_a_store_behaves_as_a_dictionary(steps: list[tuple[str, bytes, int]], total: int) -> None:
    """Whatever leaves when: read through the cache, a store below has what was last put; and the bound holds."""
    below: dict[bytes, bytes] = {}
    expected: dict[bytes, bytes] = {}
    order: OrderedDict[bytes, None] = OrderedDict()  # dirty keys, as they became so

    def listener(entries: Iterator[DirtyEntry]) -> None:
        for key, value, context in entries:
            assert context == len(value or b"")
            if order:
                assert key == next(iter(order))
                del order[key]
            if value is None:
                below.pop(key, None)
            else:
                below[key] = value

    shared = ThreadCache(total)
    cache = shared.cache("store", listener)
    for step, key, number in steps:
        if step in ("put", "delete"):
            value = bytes(number) if step == "put" else None
            passes = cost(key, value or b"") > shared.total_bytes
            cache.put(key, value, number)
            order.pop(key, None)
            if not passes:
                order[key] = None
            if cache.dirty_bytes == 0:
                order.clear()
            expected.pop(key, None)
            if value is not None:
                expected[key] = value
        elif step == "get":
            found = cache.get(key, MISSING)
            if found is MISSING:
                found = below.get(key)
                if found is not None:
                    cache.put_clean(key, found)
            assert found == expected.get(key)
        elif step == "flush":
            cache.flush()
            assert below == expected
        else:
            shared.resize(number)
        assert shared.used_bytes <= shared.total_bytes
        assert shared.used_bytes == cache.used_bytes
        assert dict(cache.range(below=sorted(below.items()))) == expected
    shared.close()
    assert below == expected
    assert shared.used_bytes == 0


def test_cache_with_a_budget_holds_what_it_uses_and_no_more_than_its_total(written: Written) -> None:
    budget = MemoryBudget(ROOMY)
    shared = ThreadCache(200_000, budget)
    cache = shared.cache("store", written)
    assert budget.held_bytes == 0
    for number in range(5000):
        cache.put(b"%04d" % number, b"value")
        assert shared.used_bytes <= budget.held_bytes <= 200_000
    assert budget.held_bytes == 200_000
    shared.resize(100_000)
    assert shared.used_bytes <= budget.held_bytes <= 100_000
    shared.close()
    assert budget.held_bytes == 0
    assert [usage.name for usage in budget.usage()] == ["total"]


def test_cache_takes_no_more_than_the_budget_has_left(written: Written) -> None:
    budget = MemoryBudget(150_000)
    with budget.reserve(100_000):
        cache = ThreadCache(120_000, budget).cache("store", written)
        for number in range(2000):
            cache.put(b"%04d" % number, b"value")
        assert budget.held_bytes <= 150_000
        assert {key for key, _ in written.pairs} | set(dict(cache.range())) == {
            b"%04d" % number for number in range(2000)
        }
    for number in range(2000):
        cache.put(b"%04d" % number, b"value")
    assert cache.order.used_bytes > 100_000


def test_cache_under_pressure_gives_back_clean_entries_first(written: Written) -> None:
    budget = MemoryBudget(ROOMY)
    cache = ThreadCache(ROOMY, budget).cache("store", written)
    for number in range(2000):
        cache.put(b"%04d" % number, b"dirty")
        cache.put_clean(b"clean-%04d" % number, b"clean")
    with budget.reserve(ROOMY - cache.order.used_bytes + 100_000, timeout=0):
        assert not written.flushes
        assert cache.used_bytes <= ROOMY - budget.held_bytes + cache.order.limit_bytes
    assert cache.get(b"0000") == b"dirty"
    assert b"clean-0000" not in cache
    assert b"clean-1999" in cache


def test_cache_under_pressure_flushes_what_is_dirty_before_it_gives_that_back(written: Written) -> None:
    budget = MemoryBudget(ROOMY)
    cache = ThreadCache(ROOMY, budget).cache("store", written)
    for number in range(3000):
        cache.put(b"%04d" % number, b"dirty")
    with budget.reserve(ROOMY, timeout=0):
        assert len(cache) == 0
        assert [key for key, _ in written.pairs] == [b"%04d" % number for number in range(3000)]
        cache.put(b"more", b"passes through")
    assert written.pairs[-1] == (b"more", b"passes through")


def test_cache_gives_back_from_another_thread_while_its_own_uses_it(written: Written) -> None:
    budget = MemoryBudget(400_000)
    cache = ThreadCache(400_000, budget).cache("store", written)
    ends = threading.Event()
    filled = threading.Semaphore(0)

    def press() -> None:
        for number in range(300):
            filled.acquire()
            with budget.reserve(100_000 + number * 1000):
                pass
        ends.set()

    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    number = 0
    while not ends.is_set():
        cache.put(b"%06d" % number, b"value")
        number += 1
        if number % 500 == 0:
            filled.release()
    thread.join()
    cache.flush()
    assert [key for key, _ in written.pairs] == [b"%06d" % one for one in range(number)]
    assert budget.held_bytes >= cache.order.used_bytes


def test_cache_gives_back_what_was_demanded_during_a_flush_once_the_flush_has_ended() -> None:
    budget = MemoryBudget(400_000)
    got: list[int] = []

    def demand() -> None:
        with budget.reserve(300_000, timeout=60) as reservation:
            got.append(reservation.size_bytes)

    thread = threading.Thread(target=demand)

    def write(entries: Iterator[DirtyEntry]) -> None:
        list(entries)
        thread.start()
        while not budget.is_awaited:
            thread.join(0.001)
        waited.set()

    waited = threading.Event()
    cache = ThreadCache(400_000, budget).cache("store", write)
    while budget.held_bytes < 350_000 and not waited.is_set():
        cache.put(b"%06d" % len(cache), b"value" * 100)
    cache.flush()
    thread.join(60)
    assert got == [300_000]


def test_cache_of_clean_entries_grows_to_its_total(written: Written) -> None:
    cache = ThreadCache(500_000, MemoryBudget(ROOMY)).cache("store", written)
    for number in range(10_000):
        cache.put_clean(b"%05d" % number, b"value")
    assert 490_000 < cache.order.used_bytes <= 500_000


def test_clean_entry_that_grows_and_is_the_oldest_stays_within_the_bound(written: Written) -> None:
    cache = ThreadCache(2000).cache("store", written)
    cache.put_clean(b"a", b"x" * 800)
    cache.put_clean(b"b", b"x" * 800)
    cache.put_clean(b"a", b"x" * 1300)
    assert cache.get(b"a") == b"x" * 1300
    assert cache.order.used_bytes <= 2000


def test_tables_that_grow_and_shrink_by_thousands_find_all_that_they_hold(written: Written) -> None:
    chance = random.Random(11)
    shared = ThreadCache(64 << 20)
    caches = [shared.cache("one", written), shared.cache("other", written)]
    expected: list[dict[bytes, bytes]] = [{}, {}]
    for most in (5000, 10, 20_000, 0):
        for cache, entries in zip(caches, expected):  # noqa: B905  two of each
            while len(entries) != most:
                if len(entries) < most:
                    key = b"%d" % chance.randrange(10**6)
                    entries[key] = b"%d" % chance.randrange(10**12)
                    cache.put(key, entries[key])
                else:
                    cache.delete(entries.popitem()[0])
            cache.flush()
            assert len(cache) == most
            assert all(cache.get(key) == value for key, value in entries.items())
            assert all(cache.get(b"-%d" % number) is None for number in range(1000))
            assert dict(cache.range()) == entries
    assert shared.used_bytes == 0


@pytest.mark.parametrize("size", [128 * 1024, 1 << 20])
def test_value_that_takes_pages_of_its_own_changes_its_size_in_place(size: int, written: Written) -> None:
    cache = ThreadCache(4 << 20).cache("store", written)
    for change in range(-300, 300):
        value = (b"%d" % change).ljust(size + change, b".")
        cache.put(b"key", value)
        assert cache.get(b"key") == value
        assert cache.used_bytes - 8192 < len(value) < cache.used_bytes
