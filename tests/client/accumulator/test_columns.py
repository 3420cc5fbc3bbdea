"""Records in columns: batches of their own, in order with those that come one by one."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import kafkafmt as kf
from _kafkafmt.batches.scan import scan
from client.accumulator.partitions import (
    DAY,
    TP,
    Numbering,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    partitions,
)
from kafkafmt.client.accumulator import (
    AccumulatorClosedError,
    BufferExhaustedError,
    RecordAccumulator,
    RequestLimits,
    record_accumulator,
)


def numpy_values(values: list[bytes]) -> kf.BinaryColumn:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return kf.BinaryColumn(offsets, np.frombuffer(b"".join(values), np.uint8), None)


def arrow_values(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def chunked_values(values: list[bytes]) -> pa.ChunkedArray:
    return pa.chunked_array([values[:7], [], values[7:]], pa.binary())


def append_columns(accumulator: RecordAccumulator, values, **more):
    return accumulator.append_columns(TP, np.full(len(values), DAY), None, values, **{"now_ms": 0, **more})


@pytest.mark.parametrize("column", [numpy_values, arrow_values, chunked_values])
@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
def test_columns_when_appended_then_the_batches_that_build_batches_makes(codec, column):
    values = numbered(range(100), 90)
    accumulator = accumulator_of(batch_size=1000, codec=codec, linger_ms=1000)
    future = append_columns(accumulator, column(values))
    sender = Sender(accumulator)
    sender.send()  # none of them lingers
    assert sender.logs[TP].values == values
    assert future.get(0).dtype == np.int64
    assert future.get(0).tolist() == list(range(100))
    if column is not chunked_values and codec == kf.Codec.NONE:
        built = kf.build_batches(np.full(100, DAY), None, column(values), batch_size=1000)
        found = sender.logs[TP].batches
        assert [(batch.count, batch.size_in_bytes) for batch in found] == [
            (batch.count, batch.size_in_bytes) for data in built for batch in kf.MemoryRecords(data).batches()
        ]
    assert_nothing_left(accumulator)


def test_columns_when_there_are_no_records_then_there_is_nothing_to_wait_for():
    accumulator = accumulator_of()
    future = append_columns(accumulator, arrow_values([]))
    assert (len(future), future.is_done, future.get(0).tolist()) == (0, True, [])
    assert_nothing_left(accumulator)


def test_columns_when_mixed_with_records_then_all_in_the_order_of_the_calls():
    accumulator = accumulator_of(batch_size=500, sequences=Numbering(2**31 - 20))
    values = numbered(range(60), 40)
    futures = []
    for begin in range(0, 60, 6):
        futures += [append(accumulator, values[begin]), append(accumulator, values[begin + 1])]
        futures.append(append_columns(accumulator, numpy_values(values[begin + 2 : begin + 5])))
        futures.append(append(accumulator, values[begin + 5]))
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == values
    assert_nothing_left(accumulator)


def test_columns_when_another_thread_begins_a_batch_meanwhile_then_that_takes_no_more_records():
    """Else the next record would come into it while it is compressed, or in front of the columns."""
    accumulator = accumulator_of(buffer_memory=9000, wakeup=lambda: another_thread())
    sender = Sender(accumulator)
    append(accumulator, bytes(4500), tp=partitions(2)[1])

    def another_thread() -> None:
        sender.send()
        append(accumulator, b"meanwhile")

    append_columns(accumulator, numpy_values([bytes(4600)]))
    (meanwhile,) = sender.drain()
    append(accumulator, b"behind", max_block_ms=0)
    sender.answer(meanwhile)
    sender.send()
    assert sender.logs[TP].values == [b"meanwhile", bytes(4600), b"behind"]
    assert_nothing_left(accumulator)


def test_columns_when_split_before_they_are_sent_then_offsets_are_theirs():
    limits = {}
    accumulator = accumulator_of(batch_size=10_000, max_message_bytes=limits.get)
    values = numbered(range(200), 90)
    future = append_columns(accumulator, arrow_values(values))
    limits["clicks"] = 700
    sender = Sender(accumulator, max_message_bytes=700)
    sender.send()
    assert future.get(0).tolist() == list(range(200))
    assert sender.logs[TP].values == values
    assert not sender.refused
    assert_nothing_left(accumulator)


def test_columns_when_records_are_too_large_then_the_outcome_tells_which_and_where_the_others_are():
    accumulator = accumulator_of(batch_size=10_000, max_message_bytes={"clicks": 700}.get)
    values = numbered(range(40), 90)
    values[3] = values[30] = bytes(1000)
    future = append_columns(accumulator, arrow_values(values))
    sender = Sender(accumulator, max_message_bytes=700)
    sender.send()
    offsets, exceptions = future.outcome(0)
    assert list(exceptions) == [3, 30]
    assert all(isinstance(error, kf.RecordTooLargeError) for error in exceptions.values())
    arrived = [index for index in range(40) if index not in exceptions]
    assert offsets[arrived].tolist() == list(range(38))
    assert offsets[[3, 30]].tolist() == [-1, -1]
    assert sender.logs[TP].values == [values[index] for index in arrived]
    with pytest.raises(kf.RecordTooLargeError, match=r"takes 10.. bytes"):
        future.get(0)
    assert_nothing_left(accumulator)


def test_columns_when_the_budget_is_used_up_then_the_error_has_what_was_taken():
    accumulator = accumulator_of(batch_size=1000, buffer_memory=2500)
    values = numbered(range(50), 90)
    with pytest.raises(BufferExhaustedError) as failed:
        append_columns(accumulator, numpy_values(values), max_block_ms=0)
    taken = failed.value.appended
    assert 0 < len(taken) < 50
    sender = Sender(accumulator)
    sender.send()
    assert taken.get(0).tolist() == list(range(len(taken)))
    assert sender.logs[TP].values == values[: len(taken)]
    assert_nothing_left(accumulator)


def test_columns_when_the_budget_is_smaller_than_a_batch_then_batches_are_as_small():
    accumulator = accumulator_of(buffer_memory=2500, wakeup=lambda: sender.send())
    sender = Sender(accumulator)
    values = numbered(range(500), 90)
    future = append_columns(accumulator, numpy_values(values))
    sender.send()
    assert future.get(0).tolist() == list(range(500))
    assert_nothing_left(accumulator)


def test_columns_when_an_entry_is_refused_then_the_error_has_what_was_taken():
    accumulator = accumulator_of(batch_size=1000)
    timestamps = np.full(50, DAY)
    timestamps[40] = -2
    with pytest.raises(ValueError, match="timestamp") as failed:
        accumulator.append_columns(TP, timestamps, None, numpy_values(numbered(range(50), 90)), now_ms=0)
    sender = Sender(accumulator)
    sender.send()
    taken = len(sender.logs[TP].values)
    assert 0 < taken <= 40
    assert failed.value.appended.get(0).tolist() == list(range(taken))
    assert_nothing_left(accumulator)


def test_columns_when_they_do_not_fit_together_then_nothing_is_appended():
    accumulator = accumulator_of()
    with pytest.raises(ValueError, match="values: expected 3 entries"):
        accumulator.append_columns(TP, np.full(3, DAY), None, numpy_values([b"one"]), now_ms=0)
    assert_nothing_left(accumulator)


def test_columns_when_closed_then_refused_and_no_memory_is_kept():
    accumulator = accumulator_of()
    accumulator.close()
    with pytest.raises(AccumulatorClosedError) as failed:
        append_columns(accumulator, numpy_values([b"value"]))
    assert len(failed.value.appended) == 0
    assert_nothing_left(accumulator)


def test_columns_when_closed_while_they_wait_for_memory_then_no_memory_is_kept():
    accumulator = accumulator_of(buffer_memory=2500, batch_size=1000, wakeup=lambda: accumulator.close())
    with pytest.raises(AccumulatorClosedError) as failed:
        append_columns(accumulator, numpy_values(numbered(range(100), 90)))
    assert len(failed.value.appended) > 0
    Sender(accumulator).send()
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("is_columns", [True, False])
def test_call_when_it_takes_long_then_the_delivery_timeout_of_its_last_batches_counts_from_their_beginning(
    monkeypatch: pytest.MonkeyPatch, is_columns: bool
) -> None:
    seconds = count()
    monkeypatch.setattr(record_accumulator, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    accumulator = accumulator_of(batch_size=100)
    values = numbered(range(4), 90)
    if is_columns:
        append_columns(accumulator, numpy_values(values), now_ms=7)
    else:
        data = b"".join(kf.build_batches(np.full(4, DAY), None, numpy_values(values), batch_size=100))
        run = scan(memoryview(data))[0]
        accumulator.append_batches(TP, run, request_limits=RequestLimits(1, 2**20), now_ms=7)
    assert sorted(batch.created_ms for batch in accumulator._queues.incomplete()) == [1007, 2007, 3007, 4007]
