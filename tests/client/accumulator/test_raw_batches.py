"""Batches that are passed on as they are: what goes into one request, under which numbers, and how they are split."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import kafkafmt as kf
from _kafkafmt.batches.producer_state import set_producer_state
from _kafkafmt.batches.scan import BatchRun, scan
from client.accumulator.partitions import (
    DAY,
    PRODUCER_ID,
    TP,
    Numbering,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    values_in,
)
from kafkafmt.client.accumulator import BufferExhaustedError, RecordAccumulator, RecordsFuture
from kafkafmt.client.accumulator.raw_batches import RequestLimits

MIB = 1024 * 1024
ONE = RequestLimits(1, MIB)
MANY = RequestLimits(100, MIB)


def built(first: int, count: int = 1, size: int = 20, **options) -> bytes:
    builder = kf.RecordBatchBuilder(base_offset=first, partition_leader_epoch=4, **options)
    for number in range(first, first + count):
        builder.append(DAY, None, b"%0*d" % (size, number))
    return builder.build()


def run_of(*batches: bytes) -> BatchRun:
    return scan(b"".join(batches))[0]


def pass_on(accumulator: RecordAccumulator, run: BatchRun, limits: RequestLimits) -> RecordsFuture:
    return accumulator.append_batches(TP, run, request_limits=limits, now_ms=0)


def sent_as(batch: bytes, sequence: int | None = None) -> bytes:
    """What a producer makes of a batch: at offset 0 of no leader epoch, under its own numbers."""
    sent = bytearray(batch)
    sent[:8] = bytes(8)
    sent[12:16] = b"\xff" * 4
    set_producer_state(sent, *((-1, -1, -1) if sequence is None else (PRODUCER_ID, 3, sequence)))
    return bytes(sent)


OTHERS = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 77, "is_transactional": True}
BATCHES = [built(10, 3, **OTHERS), built(13), built(14, 2, codec=kf.Codec.GZIP, **OTHERS)]


def test_parts_are_as_many_batches_as_the_limits_allow_and_one_at_least() -> None:
    rows = np.zeros(6, kf.INDEX_DTYPE)
    rows["size"] = [10, 20, 30, 99, 1, 2]
    assert list(RequestLimits(1, 1000).parts(rows)) == [(n, n + 1) for n in range(6)]
    assert list(RequestLimits(4, 1000).parts(rows)) == [(0, 4), (4, 6)]
    assert list(RequestLimits(100, 60).parts(rows)) == [(0, 3), (3, 4), (4, 6)]
    assert list(RequestLimits(2, 60).parts(rows)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(RequestLimits(100, 1000).parts(rows[:0])) == []


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_passed_one_by_one_then_each_is_sent_alone_under_the_producers_numbers(is_idempotent) -> None:
    accumulator = accumulator_of(sequences=Numbering(2**31 - 3) if is_idempotent else None)
    sender = Sender(accumulator)
    future = pass_on(accumulator, run_of(*BATCHES), ONE)
    assert not future.is_done
    assert sender.send() == 3
    sequences = [2**31 - 3, 0, 1] if is_idempotent else [None] * 3
    expected = [sent_as(batch, sequence) for batch, sequence in zip(BATCHES, sequences, strict=True)]
    assert [bytes(batch.buffer) for batch in sender.logs[TP].batches] == expected
    assert future.get(0).tolist() == list(range(6))
    assert_nothing_left(accumulator)


def test_passed_when_done_then_the_outcome_is_there_before_callbacks_have_returned() -> None:
    """A caller that asks for `is_done` in another thread may come while the sender calls them."""
    accumulator = accumulator_of()
    sender = Sender(accumulator)
    future = pass_on(accumulator, run_of(BATCHES[0]), ONE)
    found: list[list[int]] = []
    future._spans[0].batch.add_listener(0, lambda: found.append(future.outcome(0).offsets.tolist()))
    sender.send()
    assert found == [[0, 1, 2]]


def test_passed_when_done_within_the_timeout_then_the_outcome_is_there_although_callbacks_run_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accumulator = accumulator_of()
    sender = Sender(accumulator)
    future = pass_on(accumulator, run_of(BATCHES[0]), ONE)
    batch = future._spans[0].batch
    is_waited, is_called, is_over = (threading.Event() for _ in range(3))
    wait = batch.wait

    def until_called(*_: object) -> bool:
        is_waited.set()
        assert is_called.wait(60)
        return wait(0)

    monkeypatch.setattr(type(batch), "wait", lambda _, *arguments: until_called(*arguments))
    batch.add_listener(0, lambda: (is_called.set(), is_over.wait(60)))
    sending = threading.Thread(target=lambda: is_waited.wait(60) and sender.send())
    sending.start()
    assert future.outcome(60).offsets.tolist() == [0, 1, 2]
    assert sending.is_alive()
    is_over.set()
    sending.join()


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_passed_together_then_one_request_has_them_end_to_end(is_idempotent) -> None:
    accumulator = accumulator_of(sequences=Numbering(2**31 - 3) if is_idempotent else None)
    sender = Sender(accumulator)
    futures = [pass_on(accumulator, run_of(batch), MANY) for batch in BATCHES]
    (drained,) = sender.drain()
    sequences = [2**31 - 3, 0, 1] if is_idempotent else [None] * 3
    expected = [sent_as(batch, sequence) for batch, sequence in zip(BATCHES, sequences, strict=True)]
    assert bytes(drained.data) == b"".join(expected)
    sender.answer(drained)
    assert [future.get(0).tolist() for future in futures] == [[0, 1, 2], [3], [4, 5]]
    assert_nothing_left(accumulator)


def test_passed_together_then_what_was_drained_takes_no_more() -> None:
    accumulator = accumulator_of()
    sender = Sender(accumulator)
    pass_on(accumulator, run_of(*BATCHES[:2]), MANY)
    (first,) = sender.drain()
    pass_on(accumulator, run_of(BATCHES[2]), MANY)
    accumulator.reenqueue(first, 0)
    accumulator.muted.clear()
    assert accumulator.ready(sender.cluster, 100).nodes
    assert sender.send(100) == 2
    assert [batch.count for batch in sender.logs[TP].batches] == [3, 1, 2]


def test_passed_and_appended_then_all_stay_in_order() -> None:
    accumulator = accumulator_of()
    append(accumulator, b"before")
    pass_on(accumulator, run_of(BATCHES[1]), MANY)
    append(accumulator, b"between")
    pass_on(accumulator, run_of(BATCHES[1]), MANY)
    sender = Sender(accumulator)
    assert sender.send() == 4
    assert sender.logs[TP].values == [b"before", b"%020d" % 13, b"between", b"%020d" % 13]


def test_passed_together_when_they_are_not_full_then_they_linger() -> None:
    accumulator = accumulator_of(linger_ms=50)
    sender = Sender(accumulator)
    pass_on(accumulator, run_of(*BATCHES), RequestLimits(4, MIB))
    assert sender.drain(49) == []
    pass_on(accumulator, run_of(BATCHES[1]), RequestLimits(4, MIB))
    (full,) = sender.drain(49)
    assert full.record_count == 7


def test_passed_one_by_one_when_many_then_no_copy_is_larger_than_what_goes_out_and_a_little() -> None:
    accumulator = accumulator_of(buffer_memory=8 * MIB)
    batch = built(0, 1, 1000)
    pass_on(accumulator, run_of(*[batch] * 2000), ONE)
    assert accumulator.budget.total_bytes - accumulator.budget.available_bytes == 2000 * len(batch)
    drained = Sender(accumulator).drain()[0]
    assert len(drained.data) == len(batch)
    assert len(drained.data.obj) <= 256 * 1024


def test_passed_together_when_refused_as_too_large_then_each_is_sent_alone() -> None:
    """And what is too large alone is split."""
    large = built(20, 10, 100)
    accumulator = accumulator_of(sequences=Numbering(), batch_size=2**20)
    sender = Sender(accumulator, max_message_bytes=len(large) - 1)
    futures = [pass_on(accumulator, run_of(batch), MANY) for batch in (*BATCHES, large, BATCHES[1])]
    sender.send()
    log = sender.logs[TP]
    assert [bytes(batch.buffer) for batch in log.batches[:3]] == [
        sent_as(batch, sequence) for batch, sequence in zip(BATCHES, [0, 3, 4], strict=True)
    ]
    assert [batch.count for batch in log.batches[3:]] == [4, 4, 2, 1]
    assert np.concatenate([future.get(0) for future in futures]).tolist() == list(range(17))
    assert accumulator.metrics.values(0)["batch-split-total"] == 2
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("together", [True, False])
def test_passed_together_when_one_is_larger_than_is_known_to_be_taken_then_the_others_stay_together(
    together: bool,
) -> None:
    large = built(20, 10, 100)
    accumulator = accumulator_of(max_message_bytes=lambda topic: len(large) - 1)
    batches = [*BATCHES, large, *BATCHES, large, large]
    for run in [run_of(*batches)] if together else map(run_of, batches):
        pass_on(accumulator, run, MANY)
    sender, counts = Sender(accumulator), []
    while drained := sender.drain():
        for one in drained:
            counts.append(len(run_of(bytes(one.data))))
            sender.answer(one)
    assert counts == [3, *[1] * 2, 3, *[1] * 4]
    assert not sender.refused


def test_passed_together_when_the_caller_and_the_topic_have_a_limit_then_the_smaller_one_holds() -> None:
    large = built(20, 10, 100)
    smaller, larger = len(large) - 1, len(large) + 1000
    for of_caller, of_topic in ((smaller, larger), (larger, smaller)):
        accumulator = accumulator_of(max_message_bytes=lambda topic, most=of_topic: most)
        pass_on(accumulator, run_of(*BATCHES, large), MANY._replace(max_batch_bytes=of_caller))
        (drained,) = Sender(accumulator).drain()
        assert len(run_of(bytes(drained.data))) == 3


def test_passed_together_when_one_is_larger_than_is_known_to_be_taken_then_it_alone_is_opened() -> None:
    large = built(20, 10, 100, **OTHERS)
    limit = len(large) - 1
    accumulator = accumulator_of(sequences=Numbering(), max_message_bytes=lambda topic: limit)
    sender = Sender(accumulator, limit)
    future = pass_on(accumulator, run_of(*BATCHES, large, BATCHES[1]), MANY)
    sender.send()
    assert not sender.refused
    stored = [bytes(batch.buffer) for batch in sender.logs[TP].batches]
    assert stored[:3] == [sent_as(batch, n) for batch, n in zip(BATCHES, [0, 3, 4], strict=True)]
    assert [batch.count for batch in sender.logs[TP].batches[3:]] == [9, 1, 1]
    assert future.get(0).tolist() == list(range(17))


def test_passed_together_when_a_part_fails_then_its_records_alone_have_an_error() -> None:
    """One record is too large even alone."""
    large = built(20, 1, 1000)
    accumulator = accumulator_of(max_message_bytes=lambda topic: 500)
    sender = Sender(accumulator, 500)
    future = pass_on(accumulator, run_of(BATCHES[0], large, BATCHES[1]), MANY)
    sender.send()
    offsets, errors = future.outcome(0)
    assert offsets.tolist() == [0, 1, 2, -1, 3]
    assert list(errors) == [3]
    assert isinstance(errors[3], kf.RecordTooLargeError)


def test_passed_when_there_is_no_room_then_the_error_has_the_future_of_what_was_taken() -> None:
    accumulator = accumulator_of(buffer_memory=2 * len(BATCHES[1]), max_block_ms=0)
    with pytest.raises(BufferExhaustedError) as caught:
        pass_on(accumulator, run_of(*[BATCHES[1]] * 3), ONE)
    Sender(accumulator).send()
    assert caught.value.appended.get(0).tolist() == [0, 1]
    assert_nothing_left(accumulator)


def test_passed_when_older_than_v2_then_value_error_and_nothing_is_held() -> None:
    accumulator = accumulator_of()
    builder = kf.RecordBatchBuilder(1)
    builder.append(DAY, None, b"value")
    with pytest.raises(ValueError, match="expected message format v2, found v1"):
        pass_on(accumulator, run_of(builder.build()), ONE)
    assert_nothing_left(accumulator)


def test_passed_when_nothing_then_the_future_is_done() -> None:
    future = pass_on(accumulator_of(), run_of(), MANY)
    assert (len(future), future.is_done, future.get(0).tolist()) == (0, True, [])


def test_values_are_kept() -> None:
    accumulator = accumulator_of()
    pass_on(accumulator, run_of(*BATCHES), MANY)
    (drained,) = Sender(accumulator).drain()
    assert values_in(drained) == [b"%020d" % number for number in range(10, 16)]
