"""Batches that are larger than their topic takes: split before they are sent, or once they are refused (KIP-126)."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import kafkafmt as kf
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
    values_in,
)
from kafkafmt.build.split import MeasuredPart
from kafkafmt.client.accumulator import splitting

CODECS = [kf.Codec.NONE, kf.Codec.LZ4]


def incompressible(count: int, size: int, seed: int = 0) -> list[bytes]:
    return [random.Random(seed + i).randbytes(size) for i in range(count)]


@pytest.mark.parametrize("codec", list(kf.Codec))
@pytest.mark.parametrize("is_known", [True, False], ids=["limit known", "limit unknown"])
def test_records_when_a_batch_is_too_large_then_all_arrive_in_order_and_numbered(is_known, codec):
    limit = 1500
    limits = {"clicks": 10**6}
    accumulator = accumulator_of(
        codec=codec, sequences=Numbering(2**31 - 50), max_message_bytes=limits.get, batch_size=20_000
    )
    values = incompressible(100, 150)
    futures = [append(accumulator, value) for value in values]
    if is_known:
        limits["clicks"] = limit
    else:
        limits.clear()
    sender = Sender(accumulator, max_message_bytes=limit)
    sender.send()
    log = sender.logs[TP]
    assert log.values == values
    assert [future.get(0).offset for future in futures] == list(range(100))
    assert {batch.codec for batch in log.batches} == {codec}
    assert log.batches[0].base_sequence == 2**31 - 50
    assert (sender.refused[TP] == 0) == is_known
    if is_known:
        assert accumulator.metrics.batch_split_total == 1
        assert accumulator.metrics.batch_refused_total == 0
        # All but the last are as full as whole records let them be.
        assert all(batch.size_in_bytes > limit - 200 for batch in log.batches[:-1])
    assert_nothing_left(accumulator)


def test_batch_when_refused_then_its_parts_are_in_front_and_in_order():
    accumulator = accumulator_of(batch_size=1000)
    for value in numbered(range(30), 90):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    assert accumulator.split_and_reenqueue(batch, 0) >= 2
    accumulator.deallocate(batch)
    accumulator.muted.clear()
    sender.send()
    assert sender.logs[TP].values == numbered(range(30), 90)
    assert_nothing_left(accumulator)


def test_batch_when_refused_with_a_limit_that_is_known_by_now_then_parts_have_that_at_most():
    limits = {}
    accumulator = accumulator_of(max_message_bytes=limits.get)
    for value in incompressible(60, 200):
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=1000)
    (batch,) = sender.drain()
    limits["clicks"] = 1000
    sender.answer(batch)
    sender.send()
    assert sender.refused[TP] == 1
    assert len(sender.logs[TP].records) == 60


def test_batch_when_refused_though_the_limit_allows_it_then_split_all_the_same_and_it_ends():
    limits = {"clicks": 10_000}
    accumulator = accumulator_of(max_message_bytes=limits.get)
    values = incompressible(60, 200)
    for value in values:
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=300)
    sender.send()
    assert sender.logs[TP].values == values
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("place", [0, 7, 19])
@pytest.mark.parametrize("is_refused", [False, True])
def test_record_when_too_large_among_others_then_it_alone_fails_with_its_size_and_the_limit(
    is_refused, place
):
    limits = {} if is_refused else {"clicks": 1000}
    numbering = Numbering()
    accumulator = accumulator_of(batch_size=16_000, max_message_bytes=limits.get, sequences=numbering)
    if not is_refused:
        limits.clear()
    values = incompressible(20, 100)
    values[place] = bytes(2000)
    futures = [append(accumulator, value) for value in values]
    sender = Sender(accumulator, max_message_bytes=1000)
    if is_refused:
        (batch,) = sender.drain()
        limits["clicks"] = 1000
        sender.answer(batch)
    else:
        limits["clicks"] = 1000
    sender.send()
    error = futures[place].exception
    assert isinstance(error, kf.RecordTooLargeError)
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, None, bytes(2000))
    assert str(error) == (
        f"clicks-0: a record that takes {len(builder.build())} bytes in a batch of its own: expected at most 1000 "
        "(max.message.bytes)"
    )
    others = [future for future in futures if future is not futures[place]]
    assert numbering.failures == [error]
    assert [future.get(0).offset for future in others] == list(range(19))
    assert sender.logs[TP].values == [value for value in values if len(value) == 100]
    assert numbering.next[TP] == 19
    assert_nothing_left(accumulator)


class FailsToFail(Numbering):
    """As a transaction that is in no state to fail."""

    def fail(self, error: Exception) -> None:
        super().fail(error)
        raise RuntimeError("no transaction")


@pytest.mark.parametrize("batch_size", [0, 16_000], ids=["alone", "among others"])
def test_record_when_too_large_and_its_transaction_cannot_fail_then_it_is_done_and_the_others_go(batch_size):
    limits = {"clicks": 10_000}
    numbering = FailsToFail()
    accumulator = accumulator_of(batch_size=batch_size, max_message_bytes=limits.get, sequences=numbering)
    futures = [append(accumulator, bytes(size)) for size in (2000, 100, 2000, 100)]
    limits["clicks"] = 1000
    sender = Sender(accumulator, max_message_bytes=1000)
    while accumulator.has_undrained:
        with suppress(RuntimeError):
            sender.send()
    assert [isinstance(future.exception, kf.RecordTooLargeError) for future in futures] == [True, False] * 2
    assert [future.get(0).offset for future in futures[1::2]] == [0, 1]
    assert all(isinstance(error, kf.RecordTooLargeError) for error in numbering.failures[:1])
    assert_nothing_left(accumulator)


def test_batch_of_one_record_when_too_large_then_it_fails_and_those_behind_it_go():
    limits = {"clicks": 1000}
    accumulator = accumulator_of(batch_size=0, max_message_bytes=limits.get)
    futures = [append(accumulator, value) for value in (bytes(2000), b"next")]
    sender = Sender(accumulator, max_message_bytes=1000)
    sender.send()
    assert isinstance(futures[0].exception, kf.RecordTooLargeError)
    assert sender.logs[TP].values == [b"next"]
    assert_nothing_left(accumulator)


def test_batch_of_one_record_when_refused_then_it_cannot_be_split_and_nothing_is_changed():
    numbering = Numbering()
    accumulator = accumulator_of(sequences=numbering, codec=kf.Codec.LZ4)
    accumulator.estimator.observe("clicks", kf.Codec.LZ4, 0.5)
    append(accumulator)
    (batch,) = Sender(accumulator).drain()
    held = accumulator.budget.available_bytes
    with pytest.raises(kf.RecordTooLargeError, match=r"1 record.*clicks-0.*cannot be split"):
        accumulator.split_and_reenqueue(batch, 0)
    assert accumulator.budget.available_bytes == held
    assert numbering.next[TP] == 1
    assert accumulator.estimator.estimate("clicks", kf.Codec.LZ4) < 1
    assert not accumulator.has_undrained
    assert accumulator.has_incomplete


def test_batch_when_completed_meanwhile_then_it_has_no_parts():
    accumulator = accumulator_of()
    futures = [append(accumulator) for _ in range(2)]
    (batch,) = Sender(accumulator).drain()
    batch.complete(0)
    assert accumulator.split_and_reenqueue(batch, 0) == 0
    accumulator.deallocate(batch)
    assert [future.get(0).offset for future in futures] == [0, 1]
    assert_nothing_left(accumulator)


def test_memory_when_split_then_that_of_the_whole_is_given_back_once():
    accumulator = accumulator_of()
    for value in incompressible(20, 100):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    assert accumulator.budget.total_bytes - accumulator.budget.available_bytes == batch.size_in_bytes
    accumulator.split_and_reenqueue(batch, 0)
    held = accumulator.budget.total_bytes - accumulator.budget.available_bytes
    for _ in range(3):
        accumulator.deallocate(batch)
    assert accumulator.budget.total_bytes - accumulator.budget.available_bytes == held
    accumulator.muted.clear()
    parts = []
    while drained := sender.drain():
        parts += drained
        accumulator.muted.clear()
    assert held == sum(part.size_in_bytes for part in parts)
    for part in parts:
        sender.answer(part)
    assert_nothing_left(accumulator)


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.LZ4])
@pytest.mark.parametrize("is_known", [True, False])
def test_memory_when_split_as_in_kip_126_then_that_of_the_parts_is_reserved_before_they_are_built(
    codec: kf.Codec, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    accumulator = accumulator_of(
        codec=codec, batch_size=4000, max_message_bytes=lambda topic: limits[0] if limits else None
    )
    for value in incompressible(30, 100):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    whole = batch.size_in_bytes
    if is_known:
        limits.append(1000)
    seen = []
    build = splitting.measured_parts

    def watched(*arguments: Any, **options: Any) -> Iterator[MeasuredPart]:
        parts = build(*arguments, **options)
        built = 0
        while True:
            held = accumulator.budget.held_bytes
            part = next(parts, None)
            if part is None:
                return
            built += part.batch.size_in_bytes
            seen.append((held, whole + built))
            yield part

    monkeypatch.setattr(splitting, "measured_parts", watched)
    count = accumulator.split_and_reenqueue(batch, 0)
    assert count == len(seen) > 1
    assert all(held >= needed for held, needed in seen), seen
    assert accumulator.budget.held_bytes == seen[-1][1] - whole


def test_memory_when_a_batch_cannot_be_split_then_that_of_the_whole_stays_reserved() -> None:
    accumulator = accumulator_of(codec=kf.Codec.LZ4)
    for value in incompressible(30, 100):
        append(accumulator, value)
    (batch,) = Sender(accumulator).drain()
    data = bytearray(batch.data)
    data[-1] ^= 1  # as a fault of memory would
    batch._data = data
    with pytest.raises(kf.CorruptRecordError):
        accumulator.split_and_reenqueue(batch, 0)
    assert accumulator.budget.held_bytes == batch.size_in_bytes


def test_memory_when_the_parts_take_more_than_the_whole_then_it_goes_below_zero_and_comes_back():
    accumulator = accumulator_of(buffer_memory=4096, codec=kf.Codec.GZIP)
    futures = [append(accumulator, b"%03d" % i * 100) for i in range(10)]
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    rest = accumulator.budget.available_bytes
    assert accumulator.budget.reserve(rest, 0)
    accumulator.split_and_reenqueue(batch, 0)
    accumulator.deallocate(batch)
    assert accumulator.budget.available_bytes < 0
    accumulator.muted.clear()
    sender.send()
    assert accumulator.budget.available_bytes == accumulator.budget.total_bytes - rest
    assert [future.get(0).offset for future in futures] == list(range(10))


def test_flush_when_a_batch_is_split_meanwhile_then_it_waits_for_the_parts_of_its_parts():
    accumulator = accumulator_of()
    for value in incompressible(40, 100):
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=500)
    accumulator.begin_flush()
    flushed = threading.Thread(target=accumulator.await_flush_completion, daemon=True)
    (batch,) = sender.drain()
    flushed.start()
    sender.answer(batch)
    (part,) = sender.drain()
    sender.answer(part)  # refused as well
    accumulator.begin_flush()
    with pytest.raises(TimeoutError, match=r"40 record\(s\) in 1 partition\(s\): clicks-0: 40"):
        accumulator.await_flush_completion(0.01)
    assert flushed.is_alive()
    sender.send()
    flushed.join(60)
    assert not flushed.is_alive()
    assert len(sender.logs[TP].records) == 40
    assert not accumulator.flush_in_progress


def test_delivery_timeout_when_split_then_it_counts_from_when_the_whole_was_begun():
    accumulator = accumulator_of(delivery_timeout_ms=1000)
    futures = [append(accumulator, value, now_ms=100) for value in incompressible(20, 100)]
    sender = Sender(accumulator)
    (batch,) = sender.drain(500)
    accumulator.split_and_reenqueue(batch, 900)
    accumulator.deallocate(batch)
    assert accumulator.next_expiry_ms() == 1100
    assert not sender.expire(1099)
    assert len(sender.expire(1100)) >= 2
    assert all(isinstance(future.exception, TimeoutError) for future in futures)
    assert_nothing_left(accumulator)


def test_attempts_when_split_then_the_parts_go_on_counting():
    accumulator = accumulator_of(retry_backoff_ms=100)
    for value in incompressible(20, 100):
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=1000)
    (batch,) = sender.drain()
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 10)
    (batch,) = sender.drain(110)
    sender.answer(batch, 120)
    (part,) = sender.drain(120)
    assert part.attempts == 1
    sender.answer(part, 120)
    sender.send(120)
    assert len(sender.logs[TP].records) == 20


def test_numbers_when_a_batch_that_was_sent_before_is_refused_then_its_parts_have_them():
    """It was too large before as well, so that no broker has any of it."""
    numbering = Numbering(first=100)
    accumulator = accumulator_of(sequences=numbering, retry_backoff_ms=0)
    for value in incompressible(20, 100):
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=1000)
    (batch,) = sender.drain()
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    sender.send()
    assert sender.logs[TP].batches[0].base_sequence == 100
    assert len(sender.logs[TP].records) == 20
    assert numbering.next[TP] == 120


def test_batch_when_its_answer_is_lost_and_the_limit_falls_then_it_is_sent_as_it_was():
    """It may have arrived: only as a whole does the broker know it by its numbers."""
    limits = {}
    accumulator = accumulator_of(sequences=Numbering(), retry_backoff_ms=0, max_message_bytes=limits.get)
    values = incompressible(20, 100)
    for value in values:
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    sender.logs[TP].append(bytes(batch.data))
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    limits["clicks"] = 500
    sender.send()
    assert sender.logs[TP].values == values
    assert accumulator.metrics.batch_split_total == 0


def test_batch_when_it_has_no_numbers_and_the_limit_falls_then_it_is_split_before_it_is_sent_again():
    limits = {}
    accumulator = accumulator_of(retry_backoff_ms=0, max_message_bytes=limits.get)
    for value in incompressible(20, 100):
        append(accumulator, value)
    sender = Sender(accumulator, max_message_bytes=500)
    (batch,) = sender.drain()
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    limits["clicks"] = 500
    sender.send()
    assert not sender.refused
    assert len(sender.logs[TP].records) == 20


@pytest.mark.parametrize(("estimator", "learned"), [("recent", 0.1), ("kip126", 0.8)])
def test_estimate_when_a_batch_was_refused_then_it_begins_anew_for_its_topic_alone(
    estimator: str, learned: float
) -> None:
    accumulator = accumulator_of(codec=kf.Codec.LZ4, estimator=estimator)
    for topic in ("clicks", "views"):
        for _ in range(40):
            accumulator.estimator.observe(topic, kf.Codec.LZ4, 0.1)
    for value in incompressible(20, 100):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    accumulator.split_and_reenqueue(batch, 0)
    assert accumulator.estimator.estimate("clicks", kf.Codec.LZ4) == 1.0
    assert accumulator.estimator.estimate("views", kf.Codec.LZ4) == pytest.approx(learned)


@pytest.mark.parametrize("estimator", ["recent", "kip126"])
def test_estimate_when_the_refused_batch_grew_by_compression_then_its_ratio_is_expected(estimator: str):
    """Kafka's splitAndReenqueue sets the estimate to max(1.0, the batch's ratio)."""
    accumulator = accumulator_of(codec=kf.Codec.LZ4, estimator=estimator)
    for value in incompressible(2, 30):
        append(accumulator, value)
    (batch,) = Sender(accumulator).drain()
    assert batch.compression_ratio > 1
    accumulator.split_and_reenqueue(batch, 0)
    assert accumulator.estimator.estimate("clicks", kf.Codec.LZ4) == batch.compression_ratio


def test_estimate_when_a_batch_comes_out_larger_than_estimated_then_the_next_is_estimated_so():
    accumulator = accumulator_of(codec=kf.Codec.LZ4)
    for _ in range(200):
        accumulator.estimator.observe("clicks", kf.Codec.LZ4, 0.1)
    values = incompressible(300, 1000)
    for value in values:
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    assert batch.size_in_bytes > 5 * accumulator.options.batch_size
    assert accumulator.estimator.estimate("clicks", kf.Codec.LZ4) >= 1.0


@pytest.mark.parametrize("codec", CODECS)
def test_parts_when_sent_then_each_record_is_what_was_appended(codec):
    accumulator = accumulator_of(codec=codec, sequences=Numbering(is_transactional=True))
    rows = [
        (DAY + 3 * i % 7, None if i % 3 else b"key%d" % i, bytes(i), [("name", b"%d" % i)]) for i in range(60)
    ]
    for row in rows:
        accumulator.append(TP, *row, now_ms=0)
    sender = Sender(accumulator, max_message_bytes=700)
    sender.send()
    assert sender.refused[TP] > 0
    assert [
        (record.timestamp, record.key, record.value, list(record.headers))
        for record in sender.logs[TP].records
    ] == rows
    assert all(batch.is_transactional for batch in sender.logs[TP].batches)


def test_batch_when_split_into_thousands_then_in_time_that_is_in_proportion():
    accumulator = accumulator_of(batch_size=10**6, max_message_bytes={}.get)
    for value in numbered(range(8000), 100):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    accumulator._max_message_bytes = lambda topic: 200
    assert accumulator.split_and_reenqueue(batch, 0) == 8000
    accumulator.deallocate(batch)
    accumulator.muted.clear()
    sender.send()
    assert sender.logs[TP].values == numbered(range(8000), 100)


def test_topics_when_their_ratios_differ_by_ten_then_all_arrives_and_few_batches_are_refused():
    """The KIP's example: what one topic taught must not size the batches of the next."""
    accumulator = accumulator_of(codec=kf.Codec.ZSTD, batch_size=10_000, buffer_memory=2**28)
    sender = Sender(accumulator, max_message_bytes=10_000)
    names = [partitions(1, topic)[0] for topic in ("text", "noise")]
    values = {
        names[0]: [b"%06d" % i + b"the same words again " * 50 for i in range(3000)],
        names[1]: incompressible(300, 1000),
    }
    for tp, expected in values.items():
        for value in expected:
            if accumulator.append(tp, DAY, None, value, now_ms=0)[1]:
                sender.send()
    accumulator.close()
    sender.send()
    assert {tp: log.values for tp, log in sender.logs.items()} == values
    assert sender.refused[names[1]] == 0
    assert sum(sender.refused.values()) <= len(sender.sent) / 10
    assert_nothing_left(accumulator)


def test_values_when_a_part_is_looked_at_then_it_has_its_share():
    accumulator = accumulator_of()
    for value in numbered(range(10), 100):
        append(accumulator, value)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    accumulator.split_and_reenqueue(batch, 0)
    accumulator.muted.clear()
    (part,) = sender.drain()
    assert values_in(part) == numbered(range(part.record_count), 100)


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
def test_kip_126_splitting_reserves_with_a_full_budget_then_it_does_not_wait_and_callers_do(
    codec: kf.Codec,
) -> None:
    """Only the sender releases memory, so it goes beyond the total. Nobody else gets bytes until that is paid back."""
    accumulator = accumulator_of(buffer_memory=20_000, batch_size=8000, codec=codec, max_block_ms=60_000)
    futures = [append(accumulator, value) for value in incompressible(30, 250)]
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    rest = accumulator.budget.reserve(accumulator.budget.available_bytes, 0)
    appended: list[Any] = []
    other = kf.TopicPartition("clicks", 1)
    caller = threading.Thread(
        target=lambda: appended.append(append(accumulator, b"waits", other, now_ms=1)), daemon=True
    )
    caller.start()
    while not accumulator.budget.waiting:
        caller.join(0.01)
    count = accumulator.split_and_reenqueue(batch, 0)
    assert count > 1
    assert accumulator.budget.available_bytes < 0
    # The whole, its copy, the records twice and a part: no more, and only while the parts are built.
    needed = 2 * batch.size_in_bytes + 2 * batch.records_size + 8000
    assert accumulator.budget.peak_bytes <= 20_000 + needed
    assert not appended
    accumulator.deallocate(batch)
    accumulator.muted.clear()
    sender.send(1000)
    rest.release()
    caller.join()
    sender.send(2000)
    assert [future.get(0).offset for future in (*futures, *appended)] == [*range(30), 0]
    assert accumulator.budget.held_bytes == 0
