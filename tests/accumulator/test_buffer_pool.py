"""The budget: who gets bytes first, who gives up, and that none are lost."""

from __future__ import annotations

import threading

import pytest

from kafkafmt.accumulator.buffer_pool import BufferPool

FOR_EVER_MS = 60_000


class Caller:
    """A thread that reserves bytes; `waits()` once it is in the queue."""

    def __init__(self, pool: BufferPool, size: int, max_block_ms: float = FOR_EVER_MS) -> None:
        self._is_queued = threading.Event()
        self.has_bytes: bool | None = None
        self._thread = threading.Thread(target=self._reserve, args=(pool, size, max_block_ms))
        self._thread.start()

    def waits(self) -> Caller:
        assert self._is_queued.wait(10)
        return self

    def ended(self) -> bool | None:
        """Whether it got its bytes."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.has_bytes

    def _reserve(self, pool: BufferPool, size: int, max_block_ms: float) -> None:
        self.has_bytes = pool.reserve(size, max_block_ms, self._is_queued.set)


def test_pool_when_bytes_are_free_then_nobody_waits():
    pool = BufferPool(100)
    assert pool.reserve(60, 0)
    assert pool.try_reserve(40)
    assert not pool.try_reserve(1)
    assert (pool.available, pool.queued, pool.waited_seconds) == (0, 0, 0.0)
    pool.release(100)
    assert pool.available == 100


def test_pool_when_nothing_is_free_then_refused_after_the_time_and_nothing_is_taken():
    pool = BufferPool(100)
    assert pool.reserve(100, 0)
    assert not pool.reserve(1, 20)
    assert pool.waited_seconds >= 0.02
    assert (pool.available, pool.queued) == (0, 0)


@pytest.mark.parametrize("max_block_ms", [1e300, float("inf")])
def test_pool_when_asked_to_wait_for_ever_then_it_waits(max_block_ms):
    pool = BufferPool(1)
    assert pool.reserve(1, 0)
    assert pool.reserve(1, max_block_ms, on_wait=lambda: pool.release(1))


def test_pool_when_many_wait_then_they_are_served_in_the_order_in_which_they_came():
    pool = BufferPool(100)
    assert pool.reserve(100, 0)
    large, small = Caller(pool, 80).waits(), Caller(pool, 10).waits()
    pool.release(50)
    assert (pool.queued, pool.available) == (2, 50)
    assert not pool.try_reserve(1)  # though 50 are free
    pool.release(30)
    assert large.ended()
    assert (pool.queued, pool.available) == (1, 0)
    pool.release(20)
    assert small.ended()
    assert (pool.queued, pool.available) == (0, 10)


def test_pool_when_the_first_gives_up_then_the_smaller_behind_it_are_served():
    pool = BufferPool(100)
    assert pool.reserve(90, 0)
    large = Caller(pool, 50, max_block_ms=200).waits()
    small = [Caller(pool, 5).waits() for _ in range(2)]
    assert pool.queued == 3
    assert not large.ended()
    assert [caller.ended() for caller in small] == [True, True]
    assert pool.available == 0


def interrupt() -> None:
    raise KeyboardInterrupt


def test_pool_when_a_wait_is_interrupted_then_nobody_waits_behind_it():
    pool = BufferPool(100)
    assert pool.reserve(90, 0)
    with pytest.raises(KeyboardInterrupt):
        pool.reserve(50, FOR_EVER_MS, interrupt)
    assert pool.queued == 0
    assert pool.try_reserve(10)


def test_pool_when_a_wait_is_interrupted_as_the_bytes_come_then_they_are_given_back():
    pool = BufferPool(100)
    assert pool.reserve(90, 0)

    def served_and_interrupted() -> None:
        pool.release(90)
        assert pool.available == 50
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        pool.reserve(50, FOR_EVER_MS, served_and_interrupted)
    assert pool.available == 100


def test_pool_when_closed_then_who_waits_goes_without():
    pool = BufferPool(100)
    assert pool.reserve(100, 0)
    callers = [Caller(pool, size).waits() for size in (50, 10)]
    pool.close()
    assert [caller.ended() for caller in callers] == [False, False]
    pool.release(100)
    assert (pool.available, pool.queued) == (100, 0)
    assert not pool.try_reserve(1)
    assert not pool.reserve(1, FOR_EVER_MS)


def test_pool_when_what_exists_takes_more_than_there_is_then_it_goes_below_zero_and_recovers():
    pool = BufferPool(100)
    assert pool.reserve(100, 0)
    pool.exchange(100, 130)
    assert pool.available == -30
    caller = Caller(pool, 1).waits()
    pool.release(30)
    assert pool.queued == 1
    pool.release(1)
    assert caller.ended()
    pool.release(100)
    assert pool.available == 100


def test_pool_when_threads_take_and_give_then_all_is_back_and_never_too_much_out():
    pool = BufferPool(1000)
    least = []

    def use(size: int) -> None:
        for _ in range(200):
            assert pool.reserve(size, FOR_EVER_MS)
            least.append(pool.available)
            pool.release(size)

    threads = [threading.Thread(target=use, args=(size,)) for size in (1000, 700, 300, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(least) == 800
    assert min(least) >= 0
    assert (pool.available, pool.queued) == (1000, 0)
