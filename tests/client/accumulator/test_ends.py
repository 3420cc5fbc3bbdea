"""How records end that are not simply sent: flushed, expired, aborted, left over when all is closed."""

from __future__ import annotations

import threading

import pytest

import kafkafmt as kf
from client.accumulator.partitions import (
    EVERYTHING,
    TP,
    Leaders,
    Numbering,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    partitions,
)
from kafkafmt.client.accumulator import AccumulatorClosedError
from kafkafmt.client.accumulator.queues import Undelivered

CLUSTER = Leaders()
GIVEN_UP = RuntimeError("given up")


def test_flush_when_nothing_waits_then_done_at_once():
    accumulator = accumulator_of()
    accumulator.begin_flush()
    accumulator.await_flush_completion(0)
    assert not accumulator.flush_in_progress


def test_flush_when_not_done_in_time_then_it_says_what_is_not_and_is_over():
    accumulator = accumulator_of(linger_ms=1000)
    for tp in partitions(7):
        append(accumulator, tp=tp)
    append(accumulator)
    accumulator.begin_flush()
    with pytest.raises(
        TimeoutError, match=r"flush: not done after 0 s: 8 record\(s\) in 7 .*: clicks-0: 2, .*, and 2 more$"
    ):
        accumulator.await_flush_completion(0)
    assert not accumulator.flush_in_progress
    assert accumulator.ready(CLUSTER, 0).next_check_ms == 1000


def test_flush_when_records_come_meanwhile_then_it_does_not_wait_for_them():
    accumulator = accumulator_of()
    append(accumulator, b"before")
    sender = Sender(accumulator)
    (before,) = sender.drain()
    accumulator.begin_flush()
    flushed = threading.Thread(target=accumulator.await_flush_completion, daemon=True)
    flushed.start()
    sender.answer(before)
    flushed.join(60)
    append(accumulator, b"behind")
    assert not flushed.is_alive()
    assert accumulator.has_undrained


def test_flushes_when_many_then_all_is_ready_until_the_last_ends():
    accumulator = accumulator_of(linger_ms=1000)
    for _ in range(2):
        accumulator.begin_flush()
    append(accumulator)
    accumulator.end_flush()
    assert accumulator.ready(CLUSTER, 0).nodes == {0}
    accumulator.end_flush()
    assert accumulator.ready(CLUSTER, 0).nodes == set()


def test_flush_when_a_batch_comes_back_then_it_waits_on():
    accumulator = accumulator_of(retry_backoff_ms=0)
    append(accumulator)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    accumulator.begin_flush()
    with pytest.raises(TimeoutError):
        accumulator.await_flush_completion(0)
    sender.send()
    accumulator.begin_flush()
    accumulator.await_flush_completion(0)


@pytest.mark.parametrize("end", ["fails", "expires", "aborted"])
def test_flush_when_a_batch_ends_otherwise_then_it_is_over(end):
    accumulator = accumulator_of(delivery_timeout_ms=10)
    append(accumulator)
    sender = Sender(accumulator)
    accumulator.begin_flush()
    flushed = threading.Thread(target=accumulator.await_flush_completion, daemon=True)
    flushed.start()
    if end == "fails":
        (batch,) = sender.drain()
        batch.complete_exceptionally(GIVEN_UP)
        accumulator.deallocate(batch)
    elif end == "expires":
        sender.expire(11)
    else:
        accumulator.abort(GIVEN_UP)
    flushed.join(60)
    assert not flushed.is_alive()
    assert_nothing_left(accumulator)


def test_batches_when_too_old_then_taken_out_each_partition_up_to_the_first_that_is_not():
    accumulator = accumulator_of(batch_size=0, delivery_timeout_ms=100)
    first, second = partitions(2)
    for now_ms in (0, 10, 20):
        append(accumulator, tp=first, now_ms=now_ms)
    append(accumulator, tp=second, now_ms=15)
    assert accumulator.next_expiry_ms() == 100
    sender = Sender(accumulator)
    assert not sender.expire(99)
    assert [batch.topic_partition for batch in sender.expire(110)] == [first, first]
    assert accumulator.next_expiry_ms() == 115
    assert len(sender.expire(120)) == 2
    assert accumulator.next_expiry_ms() == float("inf")
    assert_nothing_left(accumulator)


def test_batch_when_it_expires_while_open_then_the_next_record_begins_another():
    accumulator = accumulator_of(delivery_timeout_ms=100, linger_ms=1000)
    old = append(accumulator, b"old")
    sender = Sender(accumulator)
    sender.expire(100)
    append(accumulator, b"new", now_ms=100)
    accumulator.close()
    sender.send(100)
    assert old.failed()
    assert sender.logs[TP].values == [b"new"]
    assert_nothing_left(accumulator)


def test_batch_when_in_flight_then_it_does_not_expire_here():
    accumulator = accumulator_of(delivery_timeout_ms=100)
    append(accumulator)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    assert not sender.expire(1000)
    assert batch.has_reached_delivery_timeout(100, 100)
    assert not batch.has_reached_delivery_timeout(100, 99)


def test_close_when_batches_wait_then_they_are_sent_and_no_more_taken():
    accumulator = accumulator_of(linger_ms=1000)
    append(accumulator, b"before")
    accumulator.close()
    with pytest.raises(AccumulatorClosedError):
        append(accumulator, b"behind")
    sender = Sender(accumulator)
    assert sender.send() == 1
    assert sender.logs[TP].values == [b"before"]
    assert_nothing_left(accumulator)


def test_close_when_callers_wait_for_memory_then_they_are_told_at_once():
    is_waiting = threading.Event()
    accumulator = accumulator_of(buffer_memory=4096, wakeup=is_waiting.set)
    append(accumulator)
    errors = []

    def refused() -> None:
        with pytest.raises(AccumulatorClosedError) as raised:
            append(accumulator, tp=partitions(2)[1], max_block_ms=60_000)
        errors.append(raised.value)

    caller = threading.Thread(target=refused, daemon=True)
    caller.start()
    assert is_waiting.wait(60)
    accumulator.close()
    caller.join(60)
    assert len(errors) == 1
    Sender(accumulator).send()
    assert_nothing_left(accumulator)


def test_abort_when_batches_wait_and_are_in_flight_then_all_fail_and_are_counted():
    accumulator = accumulator_of(batch_size=0, linger_ms=1000)
    futures = [append(accumulator, tp=tp) for tp in partitions(3) * 3]
    drained = accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0]
    drained[0].complete(0)
    accumulator.deallocate(drained[0])
    assert accumulator.undelivered() == {tp: 3 - (tp == TP) for tp in partitions(3)}
    assert accumulator.abort(GIVEN_UP) == {tp: 3 - (tp == TP) for tp in partitions(3)}
    assert [future.exception for future in futures] == [None] + [GIVEN_UP] * 8
    assert_nothing_left(accumulator)


def test_abort_when_the_sender_answers_later_then_nothing_comes_back():
    accumulator = accumulator_of(batch_size=0, retry_backoff_ms=0)
    futures = [append(accumulator, value, tp=tp) for tp in partitions(4) for value in (b"1", b"2")]
    again, split, acknowledged, refused = accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0]
    accumulator.abort(GIVEN_UP)
    assert all(len(bytes(batch.data)) > 61 for batch in (again, split, acknowledged, refused))
    accumulator.reenqueue(again, 0)
    assert accumulator.split_and_reenqueue(split, 0) == 0
    assert not acknowledged.complete(0)
    assert not refused.complete_exceptionally(RuntimeError("late"))
    for batch in (again, split, acknowledged, refused):
        accumulator.deallocate(batch)
    assert {future.exception for future in futures} == {GIVEN_UP}
    assert accumulator.drain(CLUSTER, {0}, EVERYTHING, 0) == {0: []}
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("moment", ["compressed", "measured", "split"])
def test_abort_when_a_batch_is_just_being_drained_then_it_is_not_sent_and_no_memory_is_kept(moment):
    """As from another thread, which gives up waiting for the sender's."""
    accumulator = accumulator_of(codec=kf.Codec.LZ4, batch_size=3000)

    def abort_then(result):
        accumulator.abort(GIVEN_UP)
        return result

    futures = [append(accumulator, value) for value in numbered(range(20), 100)]
    if moment == "compressed":
        accumulator.estimator.observe = lambda topic, codec, ratio: abort_then(ratio)
    elif moment == "measured":
        accumulator._max_message_bytes = lambda topic: abort_then(100)
    else:
        accumulator._max_message_bytes = lambda topic: 100
        accumulator.metrics.record_split = lambda now_ms, was_refused: abort_then(None)
    drained = Sender(accumulator).drain()
    assert not drained
    assert all(future.failed() for future in futures)  # too large, some of them, where that was known first
    assert_nothing_left(accumulator)


def test_abort_when_records_come_behind_it_then_they_are_sent():
    accumulator = accumulator_of(linger_ms=1000)
    append(accumulator, b"given up")
    accumulator.abort(GIVEN_UP)
    assert accumulator.append(TP, 0, None, b"behind", now_ms=0)[1]
    accumulator.begin_flush()
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [b"behind"]
    assert_nothing_left(accumulator)


def test_abort_when_a_callback_appends_then_that_record_is_kept():
    accumulator = accumulator_of()
    append(accumulator).add_errback(lambda error: append(accumulator, b"instead"))
    accumulator.abort(GIVEN_UP)
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [b"instead"]


def test_abort_when_a_callback_waits_for_memory_then_it_has_that_of_all_that_was_aborted():
    accumulator = accumulator_of(buffer_memory=3 * 4096)
    first, *others = partitions(3)
    append(accumulator, tp=first).add_errback(
        lambda error: [append(accumulator, tp=tp, max_block_ms=0) for tp in partitions(3)]
    )
    for tp in others:
        append(accumulator, tp=tp)
    assert accumulator.abort(GIVEN_UP).total() == 3
    assert accumulator.undelivered().total() == 3


def test_abort_when_of_what_was_never_sent_then_what_is_numbered_stays():
    accumulator = accumulator_of(batch_size=0, sequences=Numbering(), retry_backoff_ms=0)
    futures = [append(accumulator, value) for value in numbered(range(4))]
    sender = Sender(accumulator)
    (again,) = sender.drain()
    accumulator.muted.clear()
    accumulator.reenqueue(again, 0)
    assert accumulator.abort(GIVEN_UP, undrained_only=True) == {TP: 3}
    assert [future.exception for future in futures[1:]] == [GIVEN_UP] * 3
    sender.send()
    assert sender.logs[TP].values == numbered(range(1))
    assert futures[0].get(0).offset == 0
    assert_nothing_left(accumulator)


def test_undelivered_when_many_partitions_then_the_largest_are_named():
    found = Undelivered({tp: tp.partition for tp in partitions(8)})
    assert str(found) == (
        "28 record(s) in 8 partition(s): clicks-7: 7, clicks-6: 6, clicks-5: 5, clicks-4: 4, clicks-3: 3, "
        "and 3 more"
    )


@pytest.mark.parametrize("is_split", [False, True])
def test_bytes_when_their_batch_ends_while_they_are_sent_then_no_other_batch_gets_their_memory(is_split):
    """Case 34: a buffer is not used again while a view of it lives, such as that of a request being sent."""
    accumulator = accumulator_of(batch_size=2000, codec=kf.Codec.GZIP, sequences=Numbering())
    for value in numbered(range(20), 50):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    in_request = memoryview(batch.data)
    sent = bytes(in_request)
    if is_split:
        assert accumulator.split_and_reenqueue(batch, 0) > 1
    else:
        batch.complete_exceptionally(GIVEN_UP)
    accumulator.deallocate(batch)
    accumulator.muted.clear()
    for value in numbered(range(2000), 50):
        append(accumulator, value, partitions(2)[1])
    sender.send()
    assert bytes(in_request) == sent
