"""The budget: who gets bytes first, who gives up, who is asked to give back, and that none are lost."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable

import pytest

from kafkafmt import MemoryBudget, MemoryBudgetError
from kafkafmt.memory import BudgetShare


class Caller:
    """A thread that reserves bytes; `waits()` once it is in line, or has given up already."""

    def __init__(self, budget: MemoryBudget, size: int, timeout: float | None = 60) -> None:
        self._budget, self._size, self._timeout = budget, size, timeout
        self._behind = budget.waiting
        self.reservation = None
        self.error: MemoryBudgetError | None = None
        self._thread = threading.Thread(target=self._reserve, daemon=True)
        self._thread.start()

    def _reserve(self) -> None:
        try:
            self.reservation = self._budget.reserve(self._size, self._timeout)
        except MemoryBudgetError as error:
            self.error = error

    def waits(self) -> Caller:
        wait_until(lambda: self._budget.waiting > self._behind or not self._thread.is_alive())
        return self

    def ended(self) -> bool:
        """Whether it got its bytes."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.reservation is not None


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


# One budget


def test_budget_when_bytes_are_free_then_nobody_waits():
    budget = MemoryBudget(100)
    first, second = budget.reserve(60), budget.try_reserve(40)
    assert budget.try_reserve(1) is None
    assert (budget.held_bytes, budget.available_bytes, budget.waiting, budget.waited_seconds) == (
        100,
        0,
        0,
        0.0,
    )
    first.release()
    second.release()
    assert (budget.held_bytes, budget.available_bytes, budget.peak_bytes) == (0, 100, 100)


def test_reservation_when_released_twice_then_the_second_does_nothing():
    budget = MemoryBudget(100)
    kept, reservation = budget.reserve(10), budget.reserve(50)
    assert (reservation.size_bytes, reservation.is_released) == (50, False)
    reservation.release()
    reservation.release()
    assert (reservation.size_bytes, reservation.is_released) == (0, True)
    assert budget.held_bytes == kept.size_bytes == 10
    for change in (reservation.resize, reservation.try_resize):
        with pytest.raises(ValueError, match="was released"):
            change(1)
    with pytest.raises(ValueError, match="was released"):
        reservation.split([1])
    assert budget.held_bytes == 10


def test_reservation_when_a_with_block_ends_then_released_however_it_ends():
    budget = MemoryBudget(100)
    with budget.reserve(70) as reservation:
        assert (budget.held_bytes, reservation.size_bytes) == (70, 70)
    assert budget.held_bytes == 0
    with pytest.raises(KeyboardInterrupt), budget.reserve(30):
        interrupt()
    assert budget.held_bytes == 0


def test_budget_when_asked_for_nothing_then_it_is_had_at_once():
    budget = MemoryBudget(100)
    with budget.reserve(100), budget.reserve(0) as nothing:
        assert nothing.size_bytes == 0
        assert budget.try_reserve(0) is not None
    assert budget.held_bytes == 0


@pytest.mark.parametrize("size", [-1, -(2**62)])
def test_budget_when_a_size_is_below_0_then_value_error(size):
    budget = MemoryBudget(100)
    for take in (budget.reserve, budget.try_reserve, budget.reserve(1).resize):
        with pytest.raises(ValueError, match="expected 0 bytes or more"):
            take(size)
    assert budget.held_bytes == 1


@pytest.mark.parametrize("size", [1.5, "64k", None])
def test_budget_when_a_size_is_no_whole_number_then_type_error_that_says_bytes(size):
    budget = MemoryBudget(100)
    for take in (budget.reserve, budget.try_reserve, budget.reserve(1).resize):
        with pytest.raises(TypeError, match=f"expected a number of bytes, found {size!r}"):
            take(size)
    assert budget.held_bytes == 1


@pytest.mark.parametrize("size", [101, 2**62, 2**63 - 1])
def test_budget_when_more_is_asked_for_than_there_is_in_all_then_refused_at_once(size):
    budget = MemoryBudget(100)
    with pytest.raises(
        MemoryBudgetError, match=f"expected at most 100 bytes, which total has in all, found {size}"
    ):
        budget.reserve(size)
    with pytest.raises(MemoryBudgetError, match="expected at most 100 bytes, which total has in all"):
        budget.child("buffers", 1000).reserve(500)
    assert budget.try_reserve(size) is None
    assert (budget.held_bytes, budget.waiting) == (0, 0)


def test_reservation_when_counts_would_go_beyond_63_bits_then_value_error():
    budget = MemoryBudget(100)
    one, other = budget.reserve(1), budget.child("buffers").reserve(1)
    one.resize(2**63 - 2)
    for change in (lambda: other.resize(2), lambda: other.split([1, 1]), lambda: one.split([2**63 - 1] * 2)):
        with pytest.raises(ValueError, match="9223372036854775807 bytes in all"):
            change()
    assert budget.held_bytes == 2**63 - 1
    assert budget.try_reserve(1) is None


def test_budget_when_nothing_is_free_then_refused_after_the_time_and_nothing_is_taken():
    budget = MemoryBudget(100)
    held = budget.reserve(100)
    with pytest.raises(
        MemoryBudgetError, match=r"1 bytes were not free within 0.02 s: .* 100 of 100 bytes of total are held"
    ):
        budget.reserve(1, 0.02)
    assert budget.waited_seconds >= 0.02
    assert (budget.held_bytes, budget.waiting, budget.is_awaited) == (100, 0, False)
    held.release()
    assert budget.reserve(100, 0).size_bytes == 100


@pytest.mark.parametrize("timeout", [None, 1e300, float("inf")])
def test_budget_when_asked_to_wait_for_ever_then_it_waits(timeout):
    budget = MemoryBudget(1)
    held = budget.reserve(1)
    budget.on_pressure(lambda wanted: held.release())
    assert budget.reserve(1, timeout).size_bytes == 1


def test_budget_when_many_wait_then_they_are_served_in_the_order_in_which_they_came():
    budget = MemoryBudget(100)
    held = budget.reserve(100)
    large, small = Caller(budget, 80).waits(), Caller(budget, 10).waits()
    held.resize(50)
    assert (budget.waiting, budget.available_bytes, budget.is_awaited) == (2, 50, True)
    assert budget.try_reserve(1) is None  # though 50 are free
    held.resize(20)
    assert large.ended()
    assert (budget.waiting, budget.available_bytes) == (1, 0)
    held.release()
    assert small.ended()
    assert (budget.waiting, budget.available_bytes, budget.is_awaited) == (0, 10, False)


def test_budget_when_the_first_gives_up_then_the_smaller_behind_it_are_served():
    timeout, are_in_line = 0.1, False
    while not are_in_line:  # again with more time, where the first had given up before the others came
        budget = MemoryBudget(100)
        held = budget.reserve(90)
        large = Caller(budget, 50, timeout).waits()
        small = [Caller(budget, 5).waits() for _ in range(2)]
        are_in_line, timeout = budget.waiting == 3, 4 * timeout
        assert not large.ended()
        assert [caller.ended() for caller in small] == [True, True]
        assert (budget.available_bytes, held.size_bytes) == (0, 90)


def test_budget_when_a_wait_is_interrupted_then_nobody_waits_behind_it():
    budget = MemoryBudget(100)
    held = budget.reserve(90)
    budget.on_pressure(interrupt)
    with pytest.raises(KeyboardInterrupt):
        budget.reserve(50)
    assert (budget.waiting, budget.is_awaited, held.size_bytes) == (0, False, 90)
    assert budget.try_reserve(10) is not None


def test_budget_when_a_wait_is_interrupted_as_the_bytes_come_then_they_are_given_back():
    budget = MemoryBudget(100)
    held = budget.reserve(90)

    def served_and_interrupted(_: int) -> None:
        held.release()
        assert budget.available_bytes == 50
        interrupt()

    budget.on_pressure(served_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        budget.reserve(50)
    assert (budget.available_bytes, budget.waiting) == (100, 0)


def test_budget_when_closed_then_who_waits_goes_without_and_what_is_held_is_until_released():
    budget = MemoryBudget(100)
    held = budget.reserve(100)
    callers = [Caller(budget, size).waits() for size in (50, 10)]
    budget.close()
    assert [caller.ended() for caller in callers] == [False, False]
    assert "total is closed" in str(callers[0].error)
    assert budget.held_bytes == 100
    held.release()
    assert (budget.available_bytes, budget.waiting) == (100, 0)
    assert budget.try_reserve(0) is None
    with pytest.raises(MemoryBudgetError, match="total is closed"):
        budget.reserve(1)


# What exists


def test_reservation_when_resized_above_what_there_is_then_others_wait_until_it_is_gone():
    budget = MemoryBudget(100)
    reservation = budget.reserve(100)
    reservation.resize(130)
    assert (budget.available_bytes, budget.peak_bytes) == (-30, 130)
    caller = Caller(budget, 1).waits()
    reservation.resize(100)
    assert budget.waiting == 1
    reservation.resize(99)
    assert caller.ended()
    reservation.release()
    assert budget.held_bytes == 1


def test_reservation_when_it_may_grow_only_into_what_is_free_then_it_says_whether_it_did():
    budget = MemoryBudget(100)
    reservation = budget.reserve(60)
    assert not reservation.try_resize(101)
    assert reservation.try_resize(100)
    caller = Caller(budget, 50).waits()
    assert reservation.try_resize(70)
    assert not reservation.try_resize(71)  # others wait
    assert reservation.try_resize(10)
    assert caller.ended()
    assert (reservation.size_bytes, budget.held_bytes) == (10, 60)


def test_reservation_when_split_then_its_parts_are_in_its_place():
    budget = MemoryBudget(100)
    whole = budget.reserve(100)
    parts = whole.split([60, 50, 0])
    assert (whole.is_released, [part.size_bytes for part in parts]) == (True, [60, 50, 0])
    assert budget.held_bytes == 110
    for part in parts:
        part.release()
    assert budget.held_bytes == 0


def test_reservation_when_it_absorbs_another_then_one_holds_what_both_did():
    budget = MemoryBudget(100)
    first, second = budget.reserve(60), budget.reserve(40)
    first.absorb(second)
    assert (first.size_bytes, second.is_released, budget.held_bytes, budget.peak_bytes) == (
        100,
        True,
        100,
        100,
    )
    with pytest.raises(ValueError, match="was released"):
        first.absorb(second)
    for other in (first, MemoryBudget(1).reserve(1)):
        with pytest.raises(ValueError, match="expected another one of the same budget"):
            first.absorb(other)
    first.release()
    assert budget.held_bytes == 0


def test_budget_when_resized_then_the_new_total_counts():
    budget = MemoryBudget("100")
    held = budget.reserve(80)
    budget.resize(50)
    assert (budget.total_bytes, budget.available_bytes) == (50, -30)
    caller, too_large = Caller(budget, 30).waits(), Caller(budget, 40).waits()
    budget.resize(35)
    assert not too_large.ended()
    assert "expected at most 35 bytes" in str(too_large.error)
    budget.resize(110)
    assert caller.ended()
    assert held.size_bytes == 80


# Children


def test_budget_when_a_child_holds_bytes_then_they_count_in_all_parents():
    total = MemoryBudget(100)
    caches = total.child("caches", 80)
    orders, users = caches.child("orders", 50), caches.child("users")
    with orders.reserve(50), users.reserve(20):
        assert [budget.held_bytes for budget in (total, caches, orders, users)] == [70, 70, 50, 20]
        assert [budget.available_bytes for budget in (total, caches, orders, users)] == [30, 10, 0, 10]
        assert [budget.total_bytes for budget in (orders, users)] == [50, 80]
        assert users.try_reserve(11) is None
        assert total.try_reserve(30) is not None
    assert [tuple(usage) for usage in total.usage()] == [
        ("total", 100, 30, 100, 0),
        ("total.caches", 80, 0, 70, 0),
        ("total.caches.orders", 50, 0, 50, 0),
        ("total.caches.users", 80, 0, 20, 0),
    ]


def test_budget_when_one_child_is_waited_for_then_others_go_on():
    total = MemoryBudget(100)
    full, free = total.child("full", 10), total.child("free")
    held = full.reserve(10)
    caller = Caller(full, 10).waits()
    assert (full.waiting, total.waiting, free.waiting) == (1, 1, 0)
    assert (full.is_awaited, free.is_awaited, total.is_awaited) == (True, False, False)
    with free.reserve(80, 0):
        assert full.try_reserve(0) is not None
    held.release()
    assert caller.ended()


def test_budget_when_a_child_waits_for_its_parent_then_nobody_under_the_parent_goes_before():
    total = MemoryBudget(100)
    buffers, caches = total.child("buffers"), total.child("caches")
    held = caches.reserve(60)
    caller = Caller(buffers, 80).waits()
    assert caches.try_reserve(1) is None
    assert (caches.is_awaited, caches.waiting, buffers.waiting) == (True, 0, 1)
    held.resize(20)
    assert caller.ended()


def test_budget_when_a_waiter_gets_room_in_its_child_then_it_has_its_place_at_the_parent():
    total = MemoryBudget(100)
    buffers = total.child("buffers", 50)
    small, other = buffers.reserve(50), total.reserve(40)
    asked: list[int] = []
    caller = Caller(buffers, 50).waits()
    more = total.reserve(10)  # passes the waiter, which lacks bytes of its own budget
    other.resize(60)
    total.on_pressure(lambda wanted: asked.append(wanted))
    small.release()
    wait_until(lambda: asked == [20])  # by the waiter, which now lacks bytes of the parent
    assert (buffers.held_bytes, total.is_awaited) == (0, True)
    assert total.try_reserve(1) is None
    more.release()
    other.resize(50)
    assert caller.ended()


def test_budget_when_children_have_one_name_then_they_are_numbered():
    total = MemoryBudget(100)
    first, second = total.child("producer"), total.child("producer")
    assert [first.name, second.name] == ["total.producer", "total.producer-2"]
    first.close()
    assert [usage.name for usage in total.usage()] == ["total", "total.producer-2"]
    assert total.child("producer").name == "total.producer"


def test_budget_when_a_parent_is_closed_then_its_children_are():
    total = MemoryBudget(100)
    child = total.child("a").child("b")
    held = child.reserve(100)
    caller = Caller(child, 1).waits()
    total.close()
    assert not caller.ended()
    assert child.is_closed
    held.release()
    assert child.try_reserve(1) is None
    assert total.held_bytes == 0


# Pressure


def test_pressure_when_bytes_lack_then_caches_give_back_before_anyone_waits():
    total = MemoryBudget(100)
    cache = total.child("cache")
    entries = [cache.reserve(10) for _ in range(10)]
    asked = []

    def evict(wanted: int) -> None:
        asked.append(wanted)
        while wanted > 0:
            wanted -= entries[-1].size_bytes
            entries.pop().release()

    cache.on_pressure(evict)
    assert total.child("buffers").reserve(25, timeout=0).size_bytes == 25
    assert (asked, cache.held_bytes) == ([25], 70)
    assert total.try_reserve(50) is None  # which asks nobody
    assert asked == [25]


def test_pressure_when_the_first_gives_enough_then_the_next_is_not_asked():
    total = MemoryBudget(100)
    first, second = total.reserve(50), total.reserve(50)
    asked = []
    total.on_pressure(lambda wanted: (asked.append(("first", wanted)), first.resize(20)))
    total.on_pressure(lambda wanted: (asked.append(("second", wanted)), second.resize(20)))
    total.reserve(20)
    assert asked == [("first", 20)]
    total.reserve(30)
    assert asked == [("first", 20), ("first", 20), ("second", 20)]


def test_pressure_when_a_budget_does_not_lack_bytes_then_nobody_under_it_is_asked():
    total = MemoryBudget(100)
    full, cache = total.child("full", 10), total.child("cache")
    held = full.reserve(10)
    cache.on_pressure(lambda wanted: pytest.fail("asked for what would not help"))
    full.on_pressure(lambda wanted: held.release())
    assert full.reserve(5).size_bytes == 5


def test_pressure_when_others_are_ahead_then_what_they_want_counts_too():
    budget = MemoryBudget(100)
    held = budget.reserve(100)
    asked = []
    ahead = Caller(budget, 60).waits()
    budget.on_pressure(lambda wanted: (asked.append(wanted), held.resize(0)))
    with budget.reserve(30):
        assert asked == [90]
        assert ahead.ended()


def test_pressure_when_no_longer_wanted_then_not_asked():
    budget = MemoryBudget(100)
    forget = budget.on_pressure(lambda wanted: pytest.fail("asked"))
    forget()
    forget()
    held = budget.reserve(100)
    with pytest.raises(MemoryBudgetError):
        budget.reserve(1, timeout=0)
    held.release()


def test_pressure_when_it_reserves_itself_then_it_asks_nobody():
    budget = MemoryBudget(100)
    held = budget.reserve(100)
    asked = []

    def flush(wanted: int) -> None:
        asked.append(wanted)
        with pytest.raises(MemoryBudgetError):
            budget.reserve(10, timeout=0)
        held.resize(40)

    budget.on_pressure(flush)
    assert budget.reserve(60).size_bytes == 60
    assert asked == [60]


# Threads


def test_budget_when_threads_take_and_give_in_many_ways_then_all_is_back_and_never_too_much_was_out():
    total = MemoryBudget(1000)
    children = [total.child("a", 700), total.child("b")]
    children.append(children[0].child("c", 300))
    barrier = threading.Barrier(8)
    counted = []

    def use(number: int) -> None:
        budget = children[number % 3]
        barrier.wait()
        for turn in range(400):
            size = (number * 37 + turn * 11) % 300
            if turn % 3 == 0 and (reservation := budget.try_reserve(size)) is None:
                continue
            if turn % 3:
                try:
                    reservation = budget.reserve(size, timeout=None if turn % 5 else 0.001)
                except MemoryBudgetError:
                    continue
            counted.append(total.available_bytes)
            reservation.try_resize(size + 10)
            if turn % 7 == 0:
                for part in reservation.split([size // 2, size - size // 2]):
                    part.release()
            reservation.release()

    threads = [threading.Thread(target=use, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert min(counted) >= 0
    assert [budget.held_bytes for budget in (total, *children)] == [0, 0, 0, 0]
    assert (total.waiting, total.is_awaited, children[0].is_awaited) == (0, False, False)
    assert total.peak_bytes <= 1000


# Processes


def use_share(share: BudgetShare, results: multiprocessing.Queue[tuple[str, int, int]]) -> None:
    budget = share.open()
    with budget.reserve(budget.total_bytes):
        results.put((budget.name, budget.held_bytes, budget.available_bytes))


def test_budget_when_divided_then_each_process_has_its_share_and_the_parent_holds_them():
    total = MemoryBudget(100)
    kept = total.reserve(9)
    shares = total.divide(3)
    assert [share.total_bytes for share in shares] == [30, 30, 30]
    assert (total.held_bytes, total.available_bytes) == (99, 1)
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[str, int, int]] = context.Queue()
    processes = [context.Process(target=use_share, args=(share, results)) for share in shares]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    assert found == [(f"total.{number}", 30, 0) for number in range(3)]
    for process, share in zip(processes, shares, strict=True):
        process.join(60)
        share.release()
        share.release()
    assert total.held_bytes == kept.size_bytes


def test_share_when_released_where_it_was_not_divided_then_runtime_error():
    total = MemoryBudget(100)
    [share] = total.divide(1, 40)
    copy = pickle.loads(pickle.dumps(share))
    assert (copy.total_bytes, copy.open().total_bytes) == (40, 40)
    with pytest.raises(RuntimeError, match="expected to be released where it was divided"):
        copy.release()
    assert total.held_bytes == 40


def test_budget_when_there_is_too_little_to_divide_then_it_says_so():
    total = MemoryBudget(100)
    with pytest.raises(ValueError, match="count: expected 1 or more"):
        total.divide(0)
    with pytest.raises(TypeError, match="count: expected an int, found float"):
        total.divide(1.5)
    with pytest.raises(MemoryBudgetError, match="a byte or more for each of 101 shares"):
        total.divide(101)
    with total.reserve(50), pytest.raises(MemoryBudgetError):
        total.divide(2, 60)
    assert total.held_bytes == 0
