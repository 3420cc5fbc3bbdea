"""Wrong calls of an accumulator are refused by name, and it works afterwards."""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from kafka.structs import TopicPartition as KafkaTopicPartition

import kafkafmt as kf
from _kafkafmt.batches.scan import scan
from client.accumulator.partitions import (
    DAY,
    TP,
    Leaders,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    values_in,
)
from kafkafmt import BufferExhaustedError, MemoryBudget, RecentRatioEstimator
from kafkafmt.client.accumulator import AccumulatorOptions, ProducerBatch, RecordAccumulator
from kafkafmt.client.accumulator.raw_batches import RequestLimits

FAILED = RuntimeError("failed")


class Estimator(RecentRatioEstimator):
    contingency_factor = 1.05


def drained(accumulator: RecordAccumulator) -> ProducerBatch:
    (batch,) = Sender(accumulator).drain()
    return batch


# Outcomes


@pytest.mark.parametrize(
    ("complete", "name"),
    [
        (lambda batch: batch.complete("x"), "base_offset"),
        (lambda batch: batch.complete(0, "x"), "log_append_time"),
        (lambda batch: batch.complete_exceptionally(None), "exception"),
        (lambda batch: batch.complete_exceptionally("x"), "exception"),
        (lambda batch: batch.complete_exceptionally(RuntimeError), "exception"),
        (lambda batch: batch.complete_exceptionally(FAILED, FAILED), "exception_of"),
    ],
)
def test_outcome_when_it_is_of_another_type_then_refused_and_the_batch_is_not_done(complete, name):
    accumulator = accumulator_of()
    future = append(accumulator)
    batch = drained(accumulator)
    with pytest.raises(TypeError, match=f"^{name}: expected an? "):
        complete(batch)
    assert not future.is_done
    assert batch.complete(7)
    assert future.get(0).offset == 7


def test_abort_when_its_error_is_no_exception_then_refused_and_nothing_is_lost():
    accumulator = accumulator_of()
    append(accumulator)
    with pytest.raises(TypeError, match=r"^error: expected an exception, found None"):
        accumulator.abort(None)
    assert Sender(accumulator).send() == 1


def test_append_when_a_caller_has_completed_the_open_batch_then_it_begins_another():
    accumulator = accumulator_of()
    append(accumulator, b"first").batch.complete(0)
    future = append(accumulator, b"second")
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [b"second"]
    assert future.is_done
    assert_nothing_left(accumulator)


# Batches


@pytest.mark.parametrize("is_drained", [True, False])
def test_reenqueue_when_the_batch_waits_already_then_it_is_sent_once(is_drained):
    accumulator = accumulator_of(retry_backoff_ms=0)
    batch = append(accumulator).batch
    if is_drained:
        assert drained(accumulator) is batch
        accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    accumulator.reenqueue(batch, 0)
    assert batch.attempts == is_drained
    sender = Sender(accumulator)
    assert sender.send() == 1
    assert_nothing_left(accumulator)


def test_split_when_the_batch_waits_then_refused_and_it_is_sent_once():
    accumulator = accumulator_of()
    batch, _ = (append(accumulator, value).batch for value in numbered(range(2)))
    with pytest.raises(RuntimeError, match="expected a batch that was drained, found one that waits"):
        accumulator.split_and_reenqueue(batch, 0)
    assert Sender(accumulator).send() == 1
    assert_nothing_left(accumulator)


def test_bytes_when_the_batch_is_open_or_deallocated_then_the_error_says_so():
    accumulator = accumulator_of()
    batch, _ = (append(accumulator, value).batch for value in numbered(range(2)))
    with pytest.raises(RuntimeError, match=r"clicks-0>: expected .*: it is open, and was not drained"):
        _ = batch.data
    assert drained(accumulator) is batch
    assert values_in(batch) == numbered(range(2))
    accumulator.deallocate(batch)
    for use in (lambda: batch.data, lambda: accumulator.split_and_reenqueue(batch, 0)):
        with pytest.raises(RuntimeError, match=r"clicks-0>: expected .*: its bytes were freed"):
            use()


# Partitions and records


@pytest.mark.parametrize("as_given", [tuple, lambda tp: KafkaTopicPartition(*tp)])
@pytest.mark.parametrize("is_open", [True, False])
def test_partition_when_it_is_another_tuple_then_it_is_the_same_partition(as_given, is_open):
    accumulator = accumulator_of()
    if is_open:
        append(accumulator)
    future = append(accumulator, tp=as_given(TP))
    assert append(accumulator).batch is future.batch
    Sender(accumulator).send()
    assert future.get(0).topic == TP.topic


@pytest.mark.parametrize("wrong", ["ab", ("t",), ("t", 0, 1), ("t", 1.5), ("t", None), (b"t", 0), 5, None])
def test_partition_when_it_is_none_then_refused(wrong):
    accumulator = accumulator_of()
    with pytest.raises(TypeError, match=r"^topic_partition: expected "):
        append(accumulator, tp=wrong)
    with pytest.raises(TypeError, match=r"^topic_partition: expected "):
        accumulator.append_columns(wrong, [DAY], None, [b"value"], now_ms=0)
    append(accumulator)
    Sender(accumulator).send()
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("headers", [5, iter([("a", b"b")])])
def test_headers_when_they_are_no_sequence_then_refused_with_what_was_found(headers):
    with pytest.raises(
        TypeError, match=f"^headers: expected a sequence of pairs, found .*{type(headers).__name__}|5"
    ):
        append(accumulator_of(), headers=headers)


# Options


@pytest.mark.parametrize("name", ["batch_size", "buffer_memory"])
@pytest.mark.parametrize("value", [1.5, True, float("inf"), "1m", None])
def test_size_when_it_is_no_int_then_named(name, value):
    with pytest.raises(TypeError, match=f"^{name}: expected a number of bytes, found {value!r}"):
        AccumulatorOptions(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": "x"}, "options: expected AccumulatorOptions, found 'x'"),
        ({"budget": 5}, "budget: expected a MemoryBudget, found 5"),
        ({"estimator": Estimator}, "estimator: expected one of .*, found <class"),
    ],
)
def test_accumulator_when_an_argument_is_of_another_type_then_named(arguments: dict[str, Any], message: str):
    with pytest.raises(TypeError, match=f"^{message}"):
        RecordAccumulator(**arguments)


# Budgets and flushes


def test_append_when_the_shared_budget_is_closed_then_the_error_says_so():
    total = MemoryBudget(64 * 1024)
    accumulator = accumulator_of(budget=total)
    total.close()
    with pytest.raises(BufferExhaustedError, match=r"clicks-0 of .* bytes: no room: the budget is closed$"):
        append(accumulator)


@pytest.mark.parametrize("is_drained", [True, False])
def test_shared_budget_when_an_accumulator_is_dropped_then_it_has_its_bytes_again(is_drained):
    total = MemoryBudget(64 * 1024)
    accumulator = accumulator_of(budget=total)
    future = append(accumulator)
    if is_drained:
        drained(accumulator)
    assert total.held_bytes
    del accumulator
    gc.collect()
    assert [(usage.name, usage.held_bytes) for usage in total.usage()] == [("total", 0)]
    assert not future.is_done


def test_flush_when_one_was_awaited_that_had_not_begun_then_the_next_one_flushes():
    accumulator = accumulator_of(linger_ms=1000)
    accumulator.await_flush_completion(0)
    append(accumulator)
    accumulator.begin_flush()
    assert accumulator.flush_in_progress
    assert accumulator.ready(Leaders(), 0).nodes == {0}


# Functions of callers


@pytest.mark.parametrize("method", ["observe", "reset"])
def test_estimator_when_it_fails_to_learn_then_the_records_are_sent(method, caplog):
    class Failing(RecentRatioEstimator):
        pass

    def fail(*_: object) -> float:
        raise RuntimeError("no estimate")

    setattr(Failing, method, fail)
    accumulator = accumulator_of(estimator=Failing(), codec=kf.Codec.LZ4, batch_size=1000)
    futures = [append(accumulator, random.Random(number).randbytes(50)) for number in range(40)]
    sender = Sender(accumulator, 500)
    sender.send()
    assert sender.refused
    assert [future.get(0).offset for future in futures] == list(range(40))
    assert "the estimator failed to learn" in caplog.text
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt])
def test_callback_when_it_ends_the_program_then_later_ones_are_called_before(end):
    accumulator = accumulator_of()
    called: list[object] = []

    def raise_end(_: object) -> None:
        raise end

    append(accumulator).add_callback(raise_end).add_callback(called.append)
    append(accumulator).add_callback(called.append)
    with pytest.raises(end):
        drained(accumulator).complete(0)
    assert len(called) == 2


# Calls that interrupt a call of the same thread


def test_append_when_the_headers_of_another_append_call_it_then_refused_and_both_go_on():
    accumulator = accumulator_of()
    append(accumulator)

    class Headers(list[Any]):
        def __iter__(self):
            append(accumulator, b"inner")
            return super().__iter__()

    with pytest.raises(RuntimeError, match="must not append; let it set a flag"):
        accumulator.append(TP, DAY, None, b"outer", Headers([("a", b"")]), now_ms=0)
    append(accumulator, b"after")
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [b"value", b"after"]
    assert_nothing_left(accumulator)


def test_append_when_leader_for_partition_calls_it_then_it_works_or_is_refused():
    accumulator = accumulator_of(linger_ms=0)
    append(accumulator)

    class Appending(Leaders):
        def leader_for_partition(self, partition):
            append(accumulator, b"into the open batch")
            append(accumulator, b"", kf.TopicPartition("clicks", 1))

    with pytest.raises(RuntimeError, match="this thread is in another call of this accumulator"):
        accumulator.ready(Appending(), 0)
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == [b"value", b"into the open batch"]


def test_append_when_it_interrupts_a_call_and_fills_a_batch_then_the_sender_closes_that():
    accumulator = accumulator_of(batch_size=200, linger_ms=10_000)
    append(accumulator)
    found = []

    class Filling(Leaders):
        def leader_for_partition(self, partition):
            if not found:
                found.append(accumulator.append(TP, DAY, None, bytes(118), now_ms=0))
            return 0

    assert accumulator.ready(Filling(), 0).nodes == {0}
    assert found[0] is not None
    assert found[0][1]
    assert Sender(accumulator).send() == 1
    assert_nothing_left(accumulator)


class Interrupt(Exception):
    pass


def append_column(accumulator: RecordAccumulator) -> None:
    accumulator.append_columns(TP, np.array([DAY]), None, None, now_ms=0)


def append_batch(accumulator: RecordAccumulator) -> None:
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, None, b"value")
    run = scan(builder.build())[0]
    accumulator.append_batches(TP, run, request_limits=RequestLimits(4, 2**20), now_ms=0)


@pytest.mark.parametrize("append_one", [append, append_column, append_batch])
def test_append_when_the_thread_holds_the_lock_then_refused_and_no_memory_is_held(append_one):
    accumulator = accumulator_of(buffer_memory=1000, max_block_ms=3_600_000)
    accumulator.budget.reserve(900)  # a wait for memory would never end
    with accumulator._queues.lock, pytest.raises(RuntimeError, match="must not append; let it set a flag"):
        append_one(accumulator)
    assert accumulator.budget.held_bytes == 900
    assert not accumulator.has_incomplete


def interrupt_at(
    step: int,
    functions: Collection[str],
    call: Callable[[], object],
    handler: Callable[[], object] = lambda: None,
) -> bool:
    """Make a call. At a step within these functions call `handler`, and raise Interrupt.

    Return False if there are fewer steps.
    """
    left = step

    def interrupt(frame, event, argument):
        nonlocal left
        if frame.f_code.co_name in functions:
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left < 0:
                    sys.settrace(None)
                    handler()
                    raise Interrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


WITHIN = ("_reserve_memory", "_reserve", "_try_reserve", "_enqueue", "enqueue", "end_appends")


def assert_reserved(accumulator: RecordAccumulator) -> None:
    """All memory is of batches that wait or are in flight."""
    held = sum(batch.reserved_bytes for batch in accumulator._queues.incomplete())
    assert accumulator.budget.held_bytes == held


@pytest.mark.parametrize("append_one", [append, append_column, append_batch])
def test_append_when_a_signal_handler_raises_anywhere_then_nothing_is_sent_of_it_and_later_appends_work(
    append_one,
):
    for step in range(500):
        accumulator = accumulator_of()
        if not interrupt_at(step, WITHIN, lambda: append_one(accumulator)):  # noqa: B023
            break
        assert_nothing_left(accumulator)
        later = [bytes(1024)] * 10
        for value in later:
            append(accumulator, value)
        assert_reserved(accumulator)
        sender = Sender(accumulator)
        sender.send(1000)
        assert sender.logs[TP].values == later
        assert_nothing_left(accumulator)
    assert 10 < step < 500


def test_append_when_another_one_is_in_its_batch_before_it_is_interrupted_then_the_batch_is_sent():
    woken: list[None] = []
    shared = 0
    for step in range(500):
        accumulator = accumulator_of(wakeup=lambda: woken.append(None))

        def append_inner() -> None:
            with contextlib.suppress(RuntimeError):
                append(accumulator, b"inner")  # noqa: B023

        if not interrupt_at(step, ["enqueue"], lambda: append(accumulator), append_inner):  # noqa: B023
            break
        shared += accumulator.has_incomplete
        assert accumulator.has_incomplete == bool(woken)
        woken.clear()
        for _ in range(10):
            append(accumulator, bytes(1024))
        assert_reserved(accumulator)
        sender = Sender(accumulator)
        sender.send(1000)
        assert sender.logs[TP].values[:-10] in ([], [b"value", b"inner"])
        assert_nothing_left(accumulator)
    assert shared > 0


def test_batches_when_others_are_in_their_request_then_cannot_be_withdrawn():
    accumulator = accumulator_of()
    append_batch(accumulator)
    (request,) = accumulator._queues.incomplete()
    append_batch(accumulator)
    assert not accumulator._queues.withdraw(request, 1)
    assert not request.wait(0)
    assert accumulator._queues.withdraw(request, 2)
    assert request.wait(0), "a flush may wait for it"
    assert_nothing_left(accumulator)


def test_batches_when_a_signal_handler_raises_while_a_request_takes_them_then_it_has_all_or_none():
    for step in range(500):
        accumulator = accumulator_of()
        append_batch(accumulator)
        if not interrupt_at(step, ("absorb",), lambda: append_batch(accumulator)):  # noqa: B023
            break
        assert_reserved(accumulator)
        append_batch(accumulator)
        sender = Sender(accumulator)
        sender.send()
        count = sum(batch.record_count for batch in sender.sent)
        assert count == len(sender.logs[TP].values)
        assert count in (2, 3)
        assert_nothing_left(accumulator)
    assert 10 < step < 500


@pytest.mark.parametrize(
    ("tp", "error", "message"),
    [
        (kf.TopicPartition(5, 0), TypeError, "topic_partition: expected a topic and a number"),
        (kf.TopicPartition("a", -1), ValueError, "topic_partition: expected 0 to 2147483647, found -1"),
    ],
)
def test_append_when_no_partition_is_named_so_then_refused(tp, error, message):
    accumulator = accumulator_of()
    with pytest.raises(error, match=message):
        append(accumulator, tp=tp)
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("now_ms", [float("nan"), float("inf")])
def test_append_when_the_time_is_no_number_then_refused(now_ms):
    accumulator = accumulator_of()
    with pytest.raises(ValueError, match="now_ms: expected a number of milliseconds"):
        append(accumulator, now_ms=now_ms)
    assert_nothing_left(accumulator)
