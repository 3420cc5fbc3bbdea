"""Metrics: against a slow obvious calculation, and Kafka's windows."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkafmt as kf
from client.accumulator.partitions import TP, Sender, accumulator_of, append, numbered, partitions
from kafkafmt.client.accumulator.metrics import WINDOW_MS, AccumulatorMetrics, Sampled

events = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 2.5 * WINDOW_MS)), max_size=40)


class ObviousWindows:
    """All values, each with the begin of its window: a window begins with the first value behind the last one."""

    def __init__(self) -> None:
        self.values: list[tuple[float, float]] = []

    def record(self, value: float, now_ms: float) -> None:
        recent = self.recent(now_ms)
        begins = recent[-1][0] if recent and now_ms - recent[-1][0] < WINDOW_MS else now_ms
        self.values.append((begins, value))

    def recent(self, now_ms: float) -> list[tuple[float, float]]:
        return [(begins, value) for begins, value in self.values if now_ms - begins < 2 * WINDOW_MS]


@given(events, st.floats(0, 3 * WINDOW_MS))
def test_values_when_recorded_over_time_then_those_of_the_windows_that_are_left(recorded, later_ms):
    sampled, obvious, now_ms = Sampled(), ObviousWindows(), 0.0
    for value, after_ms in recorded:
        now_ms += after_ms
        sampled.record(value, now_ms)
        obvious.record(value, now_ms)
        assert sampled.largest(now_ms) == max(value for _, value in obvious.recent(now_ms))
    now_ms += later_ms
    recent = obvious.recent(now_ms)
    values = [value for _, value in recent]
    assert sampled.average(now_ms) == pytest.approx(sum(values) / len(values) if values else 0)
    assert sampled.largest(now_ms) == max(values, default=0)
    if recent:
        # Kafka's Rate adds the windows that are missing to the time since the first one began.
        elapsed_ms = now_ms - recent[0][0]
        elapsed_ms += WINDOW_MS if elapsed_ms < WINDOW_MS else 0
        assert sampled.rate(now_ms) == pytest.approx(sum(values) / (elapsed_ms / 1000))
    else:
        assert sampled.rate(now_ms) == 0


def test_rate_when_ten_at_once_then_a_window_is_reckoned():
    sampled = Sampled()
    for _ in range(10):
        sampled.record(1, 5000)
    assert sampled.rate(5000) == pytest.approx(10 / 30)
    assert sampled.rate(5000 + 15_000) == pytest.approx(10 / 45)
    assert sampled.rate(5000 + 30_000) == pytest.approx(10 / 30)
    assert sampled.rate(5000 + 60_000) == 0


def test_values_when_read_while_recorded_then_no_sample_is_lost():
    sampled = Sampled()
    is_over = threading.Event()
    errors = []

    def read() -> None:
        try:
            while not is_over.is_set():
                for now_ms in (0, 10 * WINDOW_MS):  # far ahead of the recording thread
                    sampled.average(now_ms)
                    sampled.rate(now_ms)
        except Exception as error:
            errors.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    for _ in range(5000):
        sampled.record(1, 0)
    is_over.set()
    reader.join(60)
    assert not errors
    assert sampled.rate(0) == pytest.approx(5000 / 30)


def test_metrics_when_nothing_was_sent_then_zero():
    assert set(AccumulatorMetrics().values(0).values()) == {0}


def test_metrics_when_batches_are_sent_and_split_then_as_counted_by_hand():
    limits = {}
    accumulator = accumulator_of(codec=kf.Codec.LZ4, max_message_bytes=limits.get, batch_size=0)
    sender = Sender(accumulator)
    first, second, third = partitions(3)
    for tp, now_ms, size in ((first, 0, 100), (second, 30, 200), (third, 40, 300)):
        append(accumulator, bytes(size), tp=tp, now_ms=now_ms)
    drained = sender.drain(50)
    assert len(drained) == 3
    ratios = [batch.compression_ratio for batch in drained]
    for batch, size in zip(drained, (100, 200, 300), strict=True):
        builder = kf.RecordBatchBuilder()
        builder.append(1_700_000_000_000, None, bytes(size))
        assert batch.compression_ratio == (batch.size_in_bytes - 61) / builder.size_in_bytes
    values = accumulator.metrics.values(50)
    assert values["compression-rate-avg"] == pytest.approx(sum(ratios) / 3)
    assert values["records-per-request-avg"] == 3
    assert values["record-queue-time-avg"] == pytest.approx((50 + 20 + 10) / 3)
    assert values["record-queue-time-max"] == 50
    assert values["batch-split-total"] == 0


def test_splits_when_refused_or_not_then_counted_apart():
    limits = {}
    accumulator = accumulator_of(max_message_bytes=limits.get)
    sender = Sender(accumulator, max_message_bytes=1000)
    for value in numbered(range(10), 120):
        append(accumulator, value)
    (batch,) = sender.drain(0)
    limits["clicks"] = 1000
    sender.answer(batch)
    sender.send(0)
    del limits["clicks"]
    for value in numbered(range(10), 120):
        append(accumulator, value)
    limits["clicks"] = 1000
    sender.send(0)
    values = accumulator.metrics.values(0)
    assert (values["batch-split-total"], values["batch-refused-total"]) == (2, 1)
    assert values["batch-split-rate"] == pytest.approx(2 / 30)
    assert sender.refused[TP] == 1


@pytest.mark.parametrize("count", [1, 2])
def test_splits_when_each_record_is_too_large_then_a_batch_of_one_is_not_counted(count):
    """KIP-126: `batch-split-rate` is the rate of splits, and a batch of one record cannot be split."""
    limits = {}
    accumulator = accumulator_of(max_message_bytes=limits.get)
    futures = [append(accumulator, bytes(2000)) for _ in range(count)]
    limits["clicks"] = 1000
    Sender(accumulator).send(0)
    assert all(isinstance(future.exception, kf.RecordTooLargeError) for future in futures)
    values = accumulator.metrics.values(0)
    assert (values["batch-split-total"], values["batch-refused-total"]) == (count - 1, 0)
    assert values["batch-split-rate"] == pytest.approx((count - 1) / 30)
