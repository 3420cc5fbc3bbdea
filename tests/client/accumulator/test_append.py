"""Appending: where batches end, what a caller gets, and what it leaves behind when it is refused."""

from __future__ import annotations

import threading

import pytest
from kafka.errors import IllegalStateError

import kafkafmt as kf
from client.accumulator.partitions import (
    DAY,
    TP,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    partitions,
    values_in,
)
from kafkafmt.build.builder import DEFAULT_CAPACITY
from kafkafmt.client.accumulator import (
    AccumulatorClosedError,
    AccumulatorOptions,
    BufferExhaustedError,
    RecordAccumulator,
)
from kafkafmt.client.transaction_state import OpenTransaction


def batch_values(accumulator: RecordAccumulator) -> list[list[bytes | None]]:
    """Send all, and the values batch by batch."""
    accumulator.begin_flush()
    sender = Sender(accumulator)
    sender.send()
    accumulator.await_flush_completion(0)
    return [[record.value for record in batch] for batch in sender.logs[TP].batches]


def boundaries_of_builders(values: list[bytes], **options) -> list[list[bytes]]:
    """Where batches end if every record goes where `has_room_for` lets it in."""
    batches, builder = [[]], kf.RecordBatchBuilder(**options)
    for value in values:
        if not builder.has_room_for(DAY, None, value):
            batches.append([])
            builder = kf.RecordBatchBuilder(**options)
        builder.append(DAY, None, value)
        batches[-1].append(value)
    return batches


@pytest.mark.parametrize("batch_size", [0, 1, 200, 5000, 16384])
@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
def test_batches_when_records_are_appended_then_they_end_where_the_builder_has_no_room(codec, batch_size):
    values = numbered(range(300), 90)
    accumulator = accumulator_of(batch_size=batch_size, codec=codec)
    futures = [append(accumulator, value) for value in values]
    assert batch_values(accumulator) == boundaries_of_builders(values, codec=codec, batch_size=batch_size)
    assert [future.get(0).offset for future in futures] == list(range(300))
    assert_nothing_left(accumulator)


def test_first_record_when_larger_than_batch_size_then_it_has_a_batch_of_its_own():
    accumulator = accumulator_of(batch_size=100, linger_ms=1000)
    values = [b"a", bytes(50_000), b"b"]
    assert [accumulator.append(TP, DAY, None, value, now_ms=0, max_block_ms=0)[1] for value in values] == [
        True,
        True,
        True,
    ]
    assert batch_values(accumulator) == [[b"a"], [bytes(50_000)], [b"b"]]


@pytest.mark.parametrize(("batch_size", "held"), [(200, 200), (1_000_000, 4096)])
def test_open_batch_when_one_small_record_is_in_it_then_no_more_than_batch_size_is_held(batch_size, held):
    accumulator = accumulator_of(batch_size=batch_size, linger_ms=1000)
    append(accumulator, b"value")
    assert accumulator.budget.held_bytes == held


def test_open_batch_when_the_last_one_took_more_memory_then_it_begins_with_as_much():
    accumulator = accumulator_of(linger_ms=1000)
    sender = Sender(accumulator)
    held = []
    for count in (20, 1, 1):
        for _ in range(count):
            append(accumulator, bytes(1000))
        held.append(accumulator._queues.last(TP).reserved_bytes)
        accumulator.begin_flush()
        sender.send()
        accumulator.await_flush_completion(0)
    assert held == [16384, 8192, 4096]
    assert_nothing_left(accumulator)


def test_open_batch_when_so_much_memory_is_not_free_then_it_begins_with_less():
    accumulator = accumulator_of(buffer_memory=30_000, linger_ms=1000)
    for _ in range(16):
        append(accumulator, bytes(1000))
    append(accumulator, bytes(1000), max_block_ms=0)
    assert accumulator._queues.last(TP).reserved_bytes == 4096


def test_batches_when_the_topic_takes_less_than_batch_size_then_they_end_by_that():
    limits = {"clicks": 300}
    accumulator = accumulator_of(max_message_bytes=limits.get)
    for value in numbered(range(50), 90):
        append(accumulator, value)
    assert {len(values) for values in batch_values(accumulator)} == {2}
    assert accumulator.metrics.batch_split_total == 0


def test_batches_when_the_budget_is_smaller_than_batch_size_then_they_end_by_that():
    accumulator = accumulator_of(buffer_memory=2000)
    sender = Sender(accumulator)
    for value in numbered(range(40), 90):
        while True:
            try:
                append(accumulator, value, max_block_ms=0)
                break
            except BufferExhaustedError:
                accumulator.begin_flush()
                assert sender.send()
                accumulator.end_flush()
    accumulator.close()
    sender.send()
    assert sender.logs[TP].values == numbered(range(40), 90)
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("budget", [200, DEFAULT_CAPACITY - 1, DEFAULT_CAPACITY, DEFAULT_CAPACITY + 1])
def test_record_when_the_budget_is_small_then_it_is_taken_if_it_fits(budget):
    accumulator = accumulator_of(buffer_memory=budget)
    append(accumulator, bytes(budget - 61 - 12))
    with pytest.raises(kf.RecordTooLargeError, match=rf"clicks.*expected at most {budget} \(buffer_memory\)"):
        append(accumulator, bytes(budget))
    assert Sender(accumulator).send() == 1
    assert_nothing_left(accumulator)


def test_news_when_a_batch_is_begun_or_full_then_the_sender_is_to_be_woken():
    accumulator = accumulator_of(batch_size=61 + 3 * 20, linger_ms=1000)
    news = [accumulator.append(TP, DAY, None, bytes(13), now_ms=0)[1] for _ in range(7)]
    assert news == [True, False, True, True, False, True, True]


def test_news_when_a_sender_looks_only_then_then_no_full_batch_lies():
    accumulator = accumulator_of(batch_size=500, linger_ms=1000)
    sender = Sender(accumulator)
    for value in numbered(range(1000), 37):
        if accumulator.append(TP, DAY, None, value, now_ms=0)[1]:
            sender.send()
        batches = accumulator.undelivered()[TP]
        assert batches * 37 < 500
    check = accumulator.ready(sender.cluster, 0)
    assert (check.nodes, check.next_check_ms) == (set(), 1000)


def test_abort_on_new_batch_when_there_is_no_batch_then_nothing_is_appended():
    woken = []
    accumulator = accumulator_of(wakeup=lambda: woken.append(1))
    assert accumulator.append(TP, DAY, None, b"v", now_ms=0, abort_on_new_batch=True) is None
    assert not woken
    assert_nothing_left(accumulator)


def test_abort_on_new_batch_when_the_batch_has_no_room_then_it_is_full_and_the_sender_woken():
    woken = []
    accumulator = accumulator_of(batch_size=200, linger_ms=1000, wakeup=lambda: woken.append(1))
    append(accumulator, bytes(100))
    assert accumulator.append(TP, DAY, None, b"v", now_ms=0, abort_on_new_batch=True) is not None
    assert not woken
    assert accumulator.append(TP, DAY, None, bytes(100), now_ms=0, abort_on_new_batch=True) is None
    assert woken
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [bytes(100), b"v"]


@pytest.mark.parametrize(
    "record",
    [
        (-2, None, b"v", ()),
        (DAY, "a string", b"v", ()),
        (DAY, None, 5, ()),
        (1.5, None, b"v", ()),
        (DAY, None, b"v", [("name",)]),
        (DAY, None, b"v", [(b"name", "a string")]),
        (DAY, None, b"v", {"name": b"value"}),
        (DAY, None, b"v", iter([("name", b"value")])),
    ],
    ids=[
        "negative time",
        "str key",
        "int value",
        "float time",
        "header of one",
        "str header value",
        "dict",
        "iterator",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 5])
def test_record_when_it_cannot_be_encoded_then_nothing_is_appended(before, record):
    accumulator = accumulator_of()
    for value in numbered(range(before)):
        append(accumulator, value)
    held = accumulator.budget.available_bytes
    with pytest.raises((ValueError, TypeError)):
        accumulator.append(TP, *record, now_ms=0)
    assert accumulator.budget.available_bytes == held
    append(accumulator, b"behind")
    found = [value for values in batch_values(accumulator) for value in values]
    assert found == [*numbered(range(before)), b"behind"]
    assert_nothing_left(accumulator)


class ChangingHeaders(list):
    """Headers that can be encoded `times`, and then no more."""

    def __init__(self, times: int) -> None:
        super().__init__([("name", bytes(100))])
        self.times = times

    def __iter__(self):
        self.times -= 1
        if self.times < 0:
            raise RuntimeError("changed meanwhile")
        return super().__iter__()


@pytest.mark.parametrize("times", [0, 1])
def test_record_when_it_fails_in_an_open_batch_or_a_new_one_then_no_memory_is_kept(times):
    accumulator = accumulator_of(batch_size=100)
    append(accumulator)
    held = accumulator.budget.available_bytes
    with pytest.raises(RuntimeError, match="meanwhile"):
        accumulator.append(TP, DAY, None, b"v", ChangingHeaders(times), now_ms=0)
    assert accumulator.budget.available_bytes == held


def test_record_when_it_fails_after_the_wait_for_memory_then_that_is_given_back():
    accumulator = accumulator_of(buffer_memory=2 * DEFAULT_CAPACITY, wakeup=lambda: another_thread())
    sender = Sender(accumulator)
    for tp in partitions(3)[1:]:
        append(accumulator, tp=tp)

    def another_thread() -> None:
        sender.send()
        append(accumulator)  # so that there is an open batch

    with pytest.raises(RuntimeError, match="meanwhile"):
        accumulator.append(TP, DAY, None, b"v", ChangingHeaders(1), now_ms=0)
    sender.send()
    assert sender.logs[TP].values == [b"value"]
    assert_nothing_left(accumulator)


def test_record_when_another_thread_began_a_batch_meanwhile_then_it_goes_there():
    accumulator = accumulator_of(buffer_memory=2 * DEFAULT_CAPACITY, wakeup=lambda: another_thread())
    sender = Sender(accumulator)
    for tp in partitions(3)[1:]:
        append(accumulator, tp=tp)

    def another_thread() -> None:
        sender.send()
        append(accumulator, b"first")

    future = append(accumulator, b"second")
    assert accumulator.budget.available_bytes == DEFAULT_CAPACITY
    sender.send()
    assert sender.logs[TP].values == [b"first", b"second"]
    assert future.get(0).offset == 1
    assert_nothing_left(accumulator)


def test_budget_when_used_up_then_the_error_says_by_what():
    accumulator = accumulator_of(buffer_memory=2 * DEFAULT_CAPACITY)
    for tp in partitions(2):
        append(accumulator, tp=tp)
    with pytest.raises(
        BufferExhaustedError,
        match=r"1 record\(s\) for clicks-2 of 4096 bytes: no room after 0 ms: 2 batches .* hold 8192 of 8192",
    ) as failed:
        append(accumulator, tp=partitions(3)[2], max_block_ms=0)
    assert failed.value.appended is None
    assert isinstance(failed.value, TimeoutError)


def test_budget_when_a_batch_cannot_grow_then_it_ends_and_is_sent():
    accumulator = accumulator_of(buffer_memory=DEFAULT_CAPACITY + 100, linger_ms=1000)
    append(accumulator, bytes(3000))
    with pytest.raises(BufferExhaustedError):
        append(accumulator, bytes(3000), max_block_ms=0)
    sender = Sender(accumulator)
    assert sender.send() == 1
    append(accumulator, bytes(3000), max_block_ms=0)


def test_batch_when_it_cannot_hold_twice_as_much_then_as_much_as_a_batch_may(monkeypatch):
    monkeypatch.setattr("kafkafmt.client.accumulator.record_accumulator.MAX_CAPACITY", 10_000)
    accumulator = accumulator_of(batch_size=100_000)
    assert {append(accumulator, bytes(1000)).index for _ in range(9)} == set(range(9))
    assert accumulator.budget.total_bytes - accumulator.budget.available_bytes == 10_000


def test_budget_when_the_caller_waited_then_the_time_is_not_counted_as_the_records():
    answered = threading.Timer(0.05, lambda: sender.answer(batch))
    accumulator = accumulator_of(
        buffer_memory=DEFAULT_CAPACITY, delivery_timeout_ms=1, wakeup=lambda: answered.start()
    )
    append(accumulator)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    append(accumulator, tp=partitions(2)[1])
    answered.join()
    assert not sender.expire(now_ms=50)
    assert len(sender.expire(now_ms=60_000)) == 1


def test_append_when_its_transaction_has_ended_then_the_open_batch_does_not_get_the_record():
    """The open batch is of the next transaction."""
    accumulator = accumulator_of()
    ended, following = OpenTransaction(), OpenTransaction()
    ended.end(None)
    accumulator.append(TP, DAY, None, b"next", now_ms=0, transaction=following)
    held = accumulator.budget.held_bytes
    with pytest.raises(IllegalStateError, match="the transaction in which it was called has ended"):
        accumulator.append(TP, DAY, None, b"late", now_ms=0, transaction=ended)
    assert accumulator.budget.held_bytes == held
    assert batch_values(accumulator) == [[b"next"]]


def test_append_when_closed_then_refused_at_once_and_memory_kept():
    accumulator = accumulator_of(buffer_memory=DEFAULT_CAPACITY)
    append(accumulator)
    accumulator.close()
    for tp in partitions(2):
        with pytest.raises(AccumulatorClosedError, match="is closed"):
            append(accumulator, tp=tp, max_block_ms=60_000)
    Sender(accumulator).send()
    with pytest.raises(AccumulatorClosedError, match="is closed"):
        append(accumulator)
    assert_nothing_left(accumulator)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("buffer_memory", 0),
        ("batch_size", -1),
        ("linger_ms", -0.5),
        ("delivery_timeout_ms", float("nan")),
        ("retry_backoff_ms", -1),
        ("max_block_ms", -1),
    ],
)
def test_options_when_out_of_range_then_named(name, value):
    with pytest.raises(ValueError, match=f"^{name}: expected .* or more, found {value}"):
        AccumulatorOptions(**{name: value})


def test_records_when_sent_then_every_field_is_what_was_appended():
    accumulator = accumulator_of(codec=kf.Codec.ZSTD)
    rows = [
        (DAY, b"key", b"value", [("name", b"1"), ("name", None)]),
        (DAY - 5, None, None, []),
        (-1, b"", b"", [("", b"")]),
    ]
    futures = [accumulator.append(TP, *row, now_ms=0)[0] for row in rows]
    (batch,) = Sender(accumulator).drain()
    found = [
        (record.timestamp, record.key, record.value, list(record.headers))
        for record in kf.MemoryRecords(bytes(batch.data)).records()
    ]
    assert found == rows
    batch.complete(17)
    assert [
        (one.offset, one.timestamp, one.serialized_key_size, one.serialized_value_size)
        for one in (future.get(0) for future in futures)
    ] == [(17, DAY, 3, 5), (18, DAY - 5, -1, -1), (19, -1, 0, 0)]
    assert values_in(batch) == [b"value", None, b""]
