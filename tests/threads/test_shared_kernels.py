"""Kernels that threads share: counts add up, no record is lost, no memory has two users. With and without the GIL."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.places import BatchPlaces
from _kafkafmt.batches.scan import scan
from _kafkafmt.columns.arrays import lend
from _kafkafmt.streams.lru import EntryOrder, EntryTable
from client.accumulator.partitions import DAY, Sender, accumulator_of, assert_nothing_left
from client.native_sending import TOPIC, LocalSender
from kafkafmt import MemoryBudget, MemoryBudgetError
from kafkafmt.client.accumulator.errors import AccumulatorClosedError
from kafkafmt.streams.cache import ThreadCache
from reference import Row

pytestmark = pytest.mark.usefixtures("frequent_switches")

THREADS = 4


def in_threads(work: Callable[[int], None], threads: int = THREADS) -> None:
    """Call `work` with the number of each thread, all at once. Raises the first error of a thread."""
    begin, errors = threading.Barrier(threads), []

    def run(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def test_reservations_when_threads_change_them_in_one_tree_then_the_counts_add_up():
    total = MemoryBudget(10_000)
    children = [total.child(f"part-{number}", 6_000) for number in range(2)]
    kept = []

    def work(number: int) -> None:
        source, budget = random.Random(number), children[number % 2]
        for _ in range(400):
            reservation = budget.try_reserve(source.randrange(2_000))
            if reservation is None:
                continue
            reservation.try_resize(source.randrange(2_500))
            first, second = reservation.split([reservation.size_bytes // 2, 7])
            second.absorb(first)
            assert total.held_bytes >= second.size_bytes
            second.release()
        kept.append(budget.try_reserve(11) or budget.reserve(11))

    in_threads(work)
    assert [child.held_bytes for child in children] == [22, 22]
    assert (total.held_bytes, total.waiting) == (44, 0)
    for reservation in kept:
        reservation.release()
    assert total.held_bytes == children[0].held_bytes == children[1].held_bytes == 0


def test_reservation_when_threads_release_it_then_its_bytes_are_given_back_once():
    budget = MemoryBudget(1_000)
    for _ in range(200):
        reservation = budget.reserve(10)
        in_threads(lambda _, one=reservation: one.release(), 2)
        assert budget.held_bytes == 0


def test_reservations_when_threads_wait_for_them_then_all_are_served_within_the_total():
    budget = MemoryBudget(1_000)
    most = []

    def work(number: int) -> None:
        source = random.Random(number)
        for _ in range(150):
            with budget.reserve(source.randrange(1, 1_000), timeout=60):
                most.append(budget.held_bytes)

    in_threads(work)
    assert len(most) == THREADS * 150
    assert max(most) <= 1_000
    assert (budget.held_bytes, budget.waiting) == (0, 0)


def test_reservations_when_threads_give_up_waiting_then_the_others_are_served():
    budget = MemoryBudget(100)
    served, refused = [], []

    def work(number: int) -> None:
        for turn in range(100):
            try:
                with budget.reserve(60, timeout=60 if number else 0.0001 * (turn % 3)):
                    served.append(number)
            except MemoryBudgetError:
                refused.append(number)

    in_threads(work)
    assert len(served) + len(refused) == THREADS * 100
    assert set(refused) <= {0}
    assert (budget.held_bytes, budget.waiting) == (0, 0)


def test_children_of_a_budget_when_threads_make_and_close_them_then_names_are_unique():
    budget = MemoryBudget(1_000)
    made = [[] for _ in range(THREADS)]
    in_threads(lambda number: made[number].extend(budget.child("cache") for _ in range(20)))
    assert len({child.name for children in made for child in children}) == THREADS * 20
    in_threads(lambda number: [child.close() for child in made[number]])
    assert len(budget.usage()) == 1


def test_entries_when_threads_use_tables_of_one_order_then_each_finds_its_own_values():
    order = EntryOrder()
    order.limit_bytes, order.grow_at = 40_000, sys.maxsize
    shared = EntryTable(order)

    def work(number: int) -> None:
        own = EntryTable(order)
        for turn in range(600):
            key = b"%d-%d" % (number, turn % 50)
            shared.put_clean(key, key * 3)
            own.put_clean(key, key)
            for table, value in ((shared, key * 3), (own, key)):
                assert table.get(key, value) == value
            if turn % 97 == 0:
                order.drop_clean(1_000)
                shared.discard(key)

    in_threads(work)
    for key, value in shared.ordered():
        assert value == key * 3
    assert order.used_bytes <= 40_000
    shared.clear()
    assert order.used_bytes == shared.used_bytes  # the tables of the threads are gone, with their entries


def test_cache_when_other_threads_demand_its_memory_then_written_entries_stay_and_the_bound_holds():
    budget = MemoryBudget("64k")
    written: dict[bytes, bytes | None] = {}
    cache = ThreadCache("48k", budget)
    store = cache.cache("store", lambda entries: written.update((key, value) for key, value, _ in entries))
    is_done = threading.Event()

    def work(number: int) -> None:
        if number:
            while not is_done.is_set():
                with budget.reserve(10_000 + number, timeout=60):
                    assert budget.held_bytes <= budget.total_bytes
            return
        try:
            for turn in range(3_000):
                store.put(b"%d" % (turn % 700), b"%d" % turn)
        finally:
            is_done.set()

    in_threads(work, 3)
    cache.close()
    assert {int(key): int(value) for key, value in written.items()} == {
        turn % 700: turn for turn in range(2_300, 3_000)
    }
    assert budget.held_bytes == 0


@pytest.mark.parametrize("headers", [None, [("trace", b"1")]], ids=["plain", "headers"])
def test_appends_of_threads_when_a_sender_drains_then_each_record_is_sent_once_and_in_order(headers):
    sender = LocalSender(accumulator_of(batch_size=700, linger_ms=0, codec="lz4"), partitions=2)
    sending, is_done = Sender(sender.accumulator), threading.Event()
    draining = threading.Thread(target=lambda: [sending.send() for _ in iter(is_done.is_set, True)])
    draining.start()

    def work(number: int) -> None:
        for turn in range(1_000):
            value = b"%d-%d" % (number, turn)
            sender.send(TOPIC, bytearray(value) if turn % 5 == 0 else value, None, headers, turn % 2, DAY)

    try:
        in_threads(work)
    finally:
        is_done.set()
        draining.join()
    sender.accumulator.begin_flush()
    sending.send()
    sender.accumulator.await_flush_completion(0)
    assert_nothing_left(sender.accumulator)
    for partition in range(2):
        records = sending.logs[kf.TopicPartition(TOPIC, partition)].records
        assert {len(record.headers) for record in records} == {len(headers or [])}
        sent = [tuple(map(int, record.value.split(b"-"))) for record in records]
        for number in range(THREADS):
            assert [turn for thread, turn in sent if thread == number] == list(range(partition, 1_000, 2))


def test_batch_when_a_thread_closes_it_while_others_append_then_it_has_the_records_whose_appends_succeeded():
    for turn in range(30):
        accumulator = accumulator_of(batch_size=1 << 20, linger_ms=1e9)
        sender = LocalSender(accumulator, partitions=1)
        sender.send(TOPIC, b"first", None, None, 0, DAY)
        places = [[] for _ in range(THREADS)]

        def work(number: int, sender=sender, places=places, turn=turn) -> None:
            if number == 0:
                for _ in range(turn * 20):
                    pass
                sender.accumulator.close()
                return
            try:
                for _ in range(200):
                    places[number].append(sender.send(TOPIC, b"value", None, None, 0, DAY))
            except AccumulatorClosedError:
                pass

        in_threads(work)
        sending = Sender(accumulator)
        sending.send()
        log = sending.logs[kf.TopicPartition(TOPIC, 0)].records
        futures = [future for of_thread in places for future in of_thread]
        assert len(log) == 1 + len(futures)
        assert sorted(future.get(0).offset for future in futures) == list(range(1, len(log)))


def test_spare_blocks_when_threads_lend_and_return_them_then_no_two_use_one_block():
    def work(number: int) -> None:
        source, held = random.Random(number), []
        for turn in range(400):
            array = lend(source.choice((100, 40_000, 70_000, 300_000)))
            mark = (number * 50 + turn) % 251
            array[:] = mark
            held.append((array, mark))
            if len(held) > 4:
                array, mark = held.pop(source.randrange(5))
                assert (array == mark).all()

    in_threads(work)


def test_scans_when_threads_use_the_spare_rows_in_turn_then_each_has_its_own_index():
    data = [
        b"".join(
            ref.batch_of([Row(first, DAY, None, b"%d" % number)]) for first in range(number, number + 150)
        )
        for number in range(THREADS)
    ]

    def work(number: int) -> None:
        expected = np.arange(number, number + 150)
        for _ in range(300):
            run, *_ = scan(data[number])
            assert (run.index["base_offset"] == expected).all()

    in_threads(work)


def test_run_when_threads_make_its_index_and_views_then_all_see_the_same():
    data = b"".join(ref.batch_of([Row(first, DAY, None, b"value")]) for first in range(20))
    for _ in range(100):
        run, *_ = scan(data)
        found = []
        in_threads(
            lambda number, run=run, found=found: found.append((run.index, bytes(run.batch(number)))), 4
        )
        assert len({id(index) for index, _ in found}) == 1
        assert {batch for _, batch in found} == {bytes(run.batch(number)) for number in range(4)}


def test_places_when_threads_remember_and_search_them_then_they_ascend():
    places = BatchPlaces(0, most=64, stride_bytes=1)

    def work(number: int) -> None:
        for turn in range(number, 4_000, THREADS):
            places.remember(turn * 10, turn * 100)
            assert places.position_for(turn * 10) <= turn * 100

    in_threads(work)
    assert len(places) <= 64
    positions = [places.position_for(offset) for offset in range(0, 40_000, 10)]
    assert positions == sorted(positions)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_conversions_when_threads_convert_at_once_then_each_result_is_that_of_one_thread(codec):
    rows = [Row(offset, DAY + offset, b"key", b"value-%d" % offset) for offset in range(50)]
    number = ref.LZ4 if codec == "lz4" else ref.NONE
    data = b"".join(ref.batch_of(rows[first : first + 10], codec=number) for first in range(0, 50, 10))
    expected = bytes(kf.MemoryRecords(data).down_convert(1).records.buffer)
    records = kf.MemoryRecords(data)

    def work(number: int) -> None:
        for _ in range(60):
            assert bytes(records.down_convert(1).records.buffer) == expected

    in_threads(work)


def test_views_when_threads_slice_the_same_records_then_bytes_stay_until_the_last_view_is_freed():
    data = bytearray(b"".join(ref.batch_of([Row(offset, DAY, b"key", b"value")]) for offset in range(20)))
    slice_in_threads(data, bytes(data))
    data.append(0)  # BufferError if a view is left


def slice_in_threads(data: bytearray, expected: bytes) -> None:
    records = kf.MemoryRecords(data)
    (run,) = records.runs()
    bounds = [(int(row["position"]), int(row["position"] + row["size"])) for row in run.index]

    def work(number: int) -> None:
        for _ in range(500):
            for row, (start, stop) in enumerate(bounds):
                views = [records.read_at(start, stop - start), run.batch(row), records.buffer[start:stop]]
                assert [bytes(view) for view in views] == [expected[start:stop]] * 3

    in_threads(work)
