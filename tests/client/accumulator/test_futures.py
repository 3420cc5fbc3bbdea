"""Futures: one outcome each, whoever asks, whenever, and through every split."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import kafkafmt as kf
from client.accumulator.partitions import (
    DAY,
    TP,
    Sender,
    TooLarge,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    partitions,
)


def drained(accumulator, now_ms: float = 0):
    (batch,) = Sender(accumulator).drain(now_ms)
    return batch


def test_future_when_under_way_then_nothing_is_known():
    future = append(accumulator_of())
    assert [future.is_done, future.succeeded(), future.failed()] == [False] * 3
    assert future.value is None
    assert future.exception is None
    with pytest.raises(TimeoutError, match=r"clicks-0.*no answer.*0\.01 s"):
        future.get(0.01)


def test_future_when_acknowledged_then_its_place():
    accumulator = accumulator_of()
    futures = [append(accumulator, value) for value in (b"a", None)]
    drained(accumulator).complete(70)
    metadata = futures[1].get(0)
    assert (metadata.topic, metadata.partition, metadata.topic_partition) == ("clicks", 0, TP)
    assert (metadata.offset, metadata.timestamp) == (71, DAY)
    assert (metadata.serialized_key_size, metadata.serialized_value_size) == (-1, -1)
    assert futures[0].value.offset == 70
    assert futures[0].succeeded()
    assert not futures[0].failed()


def test_future_when_the_broker_sets_the_time_then_that_is_the_timestamp():
    accumulator = accumulator_of()
    future = append(accumulator)
    drained(accumulator).complete(0, log_append_time=DAY + 5)
    assert future.get(0).timestamp == DAY + 5


def test_future_when_no_offset_is_told_then_minus_one():
    accumulator = accumulator_of()
    futures = [append(accumulator) for _ in range(2)]
    drained(accumulator).complete(-1)
    assert [future.get(0).offset for future in futures] == [-1, -1]


def test_future_when_failed_then_the_error_of_its_record():
    accumulator = accumulator_of()
    futures = [append(accumulator) for _ in range(3)]
    errors = [ValueError(f"record {index}") for index in range(3)]
    drained(accumulator).complete_exceptionally(RuntimeError("batch"), errors.__getitem__)
    assert [future.exception for future in futures] == errors
    assert futures[1].value is None
    assert futures[1].failed()
    with pytest.raises(ValueError, match="record 2"):
        futures[2].get()


def test_error_when_raised_often_then_its_traceback_does_not_grow():
    accumulator = accumulator_of()
    future = append(accumulator)
    drained(accumulator).complete_exceptionally(RuntimeError("refused"))
    depths = []
    for _ in range(3):
        with pytest.raises(RuntimeError) as raised:
            future.get(0)
        depths.append(len(raised.traceback))
    assert depths == depths[:1] * 3


@pytest.mark.parametrize("is_first_success", [True, False])
def test_outcome_when_told_twice_then_the_first_stays(is_first_success):
    accumulator = accumulator_of()
    future = append(accumulator)
    batch = drained(accumulator)
    outcomes = [lambda: batch.complete(5), lambda: batch.complete_exceptionally(RuntimeError())]
    if not is_first_success:
        outcomes.reverse()
    assert [outcome() for outcome in outcomes] == [True, False]
    assert future.succeeded() == is_first_success


def test_callbacks_when_added_before_and_after_then_each_is_called_once_with_what_it_was_given():
    accumulator = accumulator_of()
    future = append(accumulator)
    called = []
    future.add_callback(lambda *args, **more: called.append((args, more)), 1, word=2)
    future.add_errback(lambda *args: called.append("never"))
    future.add_both(lambda metadata: called.append(metadata))
    assert not called
    drained(accumulator).complete(3)
    metadata = future.get(0)
    assert called == [((1, metadata), {"word": 2}), metadata]
    assert future.add_callback(called.append).add_both(called.append) is future
    future.add_errback(called.append)
    assert called[2:] == [metadata, metadata]


def test_errbacks_when_failed_then_they_alone_are_called():
    accumulator = accumulator_of()
    future = append(accumulator)
    called = []
    future.add_callback(lambda metadata: called.append("never"))
    future.add_errback(lambda *args, **more: called.append((args, more)), 1, word=2)
    future.add_both(called.append)
    error = RuntimeError("refused")
    drained(accumulator).complete_exceptionally(error)
    future.add_errback(called.append)
    assert called == [((1, error), {"word": 2}), error, error]


def test_callbacks_when_one_raises_then_the_others_are_called_and_it_is_logged(caplog):
    accumulator = accumulator_of()
    future = append(accumulator)
    called = []
    future.add_callback(lambda metadata: 1 / 0).add_callback(called.append)
    with caplog.at_level(logging.ERROR):
        assert drained(accumulator).complete(0)
    assert len(called) == 1
    assert "ZeroDivisionError" in caplog.text


def test_callback_when_it_stops_the_program_then_nobody_waits_for_ever():
    accumulator = accumulator_of()
    future = append(accumulator).add_callback(lambda metadata: exit())
    with pytest.raises(SystemExit):
        drained(accumulator).complete(0)
    accumulator.begin_flush()
    accumulator.await_flush_completion(0)
    assert future.get(0).offset == 0


def test_callback_when_it_appends_and_asks_its_future_then_neither_blocks():
    accumulator = accumulator_of()
    future = append(accumulator, b"first")
    found = []

    def chain(metadata) -> None:
        found.append(future.get(0))
        if len(found) < 3:
            append(accumulator, b"next").add_callback(chain)

    future.add_callback(chain)
    sender = Sender(accumulator)
    assert sender.send() == 3
    assert sender.logs[TP].values == [b"first", b"next", b"next"]
    assert_nothing_left(accumulator)


def test_flush_when_callbacks_run_then_it_waits_for_them():
    accumulator = accumulator_of()
    is_called, may_end = threading.Event(), threading.Event()
    ended = []

    def callback(metadata) -> None:
        is_called.set()
        assert may_end.wait(60)
        ended.append(metadata)

    future = append(accumulator).add_callback(callback)
    batch = drained(accumulator)
    thread = threading.Thread(target=batch.complete, args=(0,), daemon=True)
    thread.start()
    assert is_called.wait(60)
    assert future.is_done
    accumulator.begin_flush()
    with pytest.raises(TimeoutError):
        accumulator.await_flush_completion(0.01)
    may_end.set()
    accumulator.begin_flush()
    accumulator.await_flush_completion(10)
    assert len(ended) == 1
    thread.join()


def test_futures_when_waited_for_by_many_threads_then_all_are_told():
    accumulator = accumulator_of(batch_size=200)
    futures = [append(accumulator, value) for value in numbered(range(40), 30)]
    offsets = {}
    threads = [
        threading.Thread(target=lambda i=i: offsets.setdefault(i, futures[i].get(60).offset))
        for i in range(40)
    ]
    for thread in threads:
        thread.start()
    Sender(accumulator).send()
    for thread in threads:
        thread.join(60)
    assert offsets == {i: i for i in range(40)}


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e12])
def test_future_when_waited_for_for_ever_then_it_is_told(timeout):
    accumulator = accumulator_of()
    future = append(accumulator)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(future.get, timeout)
        Sender(accumulator).send()
        assert waiting.result(60).offset == 0


def split_thrice(accumulator, limits=(2000, 900, 400)) -> Sender:
    """Send what waits to a partition that takes less each time."""
    sender = Sender(accumulator)
    log = sender.logs[TP]
    for limit in limits:
        log.max_message_bytes = limit
        for batch in sender.drain():
            sender.answer(batch)
    sender.send()
    assert sender.refused[TP] >= len(limits)
    return sender


def test_futures_when_split_again_and_again_then_each_has_its_own_offset():
    accumulator = accumulator_of()
    values = numbered(range(100), 100)
    futures = [append(accumulator, value) for value in values]
    called = []
    for future in futures[:50]:
        future.add_callback(called.append)
    waiting = threading.Thread(target=lambda: called.append(futures[99].get(60)))
    waiting.start()
    sender = split_thrice(accumulator)
    waiting.join(60)
    assert not waiting.is_alive()
    for future in futures[50:]:
        future.add_callback(called.append)
    assert [future.get(0).offset for future in futures] == list(range(100))
    assert sorted(metadata.offset for metadata in called) == sorted([*range(100), 99])
    assert sender.logs[TP].values == values
    assert_nothing_left(accumulator)


def test_records_future_when_split_then_offsets_in_the_order_of_the_columns():
    accumulator = accumulator_of(batch_size=4000)
    data = np.frombuffer(b"".join(numbered(range(200), 100)), np.uint8)
    values = kf.BinaryColumn(np.arange(201) * 100, data, None)
    future = accumulator.append_columns(TP, np.full(200, DAY), None, values, now_ms=0)
    assert not future.is_done
    with pytest.raises(TimeoutError, match="clicks-0"):
        future.get(0.01)
    split_thrice(accumulator)
    assert future.is_done
    assert future.get(0).tolist() == list(range(200))


def test_records_future_when_a_part_failed_then_its_error():
    accumulator = accumulator_of(batch_size=1000)
    values = kf.BinaryColumn(np.array([0, 5, 3005, 3010]), np.zeros(3010, np.uint8), None)
    future = accumulator.append_columns(TP, np.full(3, DAY), None, values, now_ms=0)
    assert len(future) == 3
    sender = Sender(accumulator, max_message_bytes=2000)
    sender.send()
    with pytest.raises(TooLarge):
        future.get(0)
    assert len(sender.logs[TP].values) == 2


def test_futures_when_aborted_from_another_thread_then_all_waiters_are_told():
    accumulator = accumulator_of()
    futures = [append(accumulator, tp=tp) for tp in partitions(10)]
    found = []
    threads = [threading.Thread(target=lambda f=f: found.append(_error_of(f)), daemon=True) for f in futures]
    for thread in threads:
        thread.start()
    error = RuntimeError("given up")
    accumulator.abort(error)
    for thread in threads:
        thread.join(60)
    assert found == [error] * 10
    assert_nothing_left(accumulator)


def _error_of(future) -> Exception | None:
    try:
        future.get(60)
    except RuntimeError as error:
        return error
    return None


@pytest.mark.parametrize("value", [memoryview(np.arange(4)), np.array(7), bytearray(b"bytes")])
def test_metadata_when_a_value_is_any_buffer_then_its_size_is_in_bytes(value):
    accumulator = accumulator_of()
    future, _ = accumulator.append(TP, DAY, None, value, now_ms=0)
    Sender(accumulator).send()
    assert future.get(0).serialized_value_size == memoryview(value).nbytes
