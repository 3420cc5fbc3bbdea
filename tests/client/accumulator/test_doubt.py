"""Batches that arrived without an answer, and are refused as too large when they are sent again: nothing is doubled.

A broker looks at the size before it looks whether it has a batch. So it tells only by what it says to the first part
whether it has the whole: that part is out of order then.
"""

from __future__ import annotations

import random

import pytest

from client.accumulator.partitions import (
    EVERYTHING,
    TP,
    Numbering,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    partitions,
)
from kafkafmt.client.accumulator import PossiblyDeliveredError, ProducerBatch, RecordAccumulator, RecordFuture

COUNT = 20
LOWERED = 1500


class Scene:
    """A batch of `COUNT` records of one partition, sent, and a limit that falls before it is sent again."""

    def __init__(self, **options) -> None:
        self.numbering = Numbering(2**31 - COUNT // 2)
        self.accumulator: RecordAccumulator = accumulator_of(
            sequences=self.numbering, retry_backoff_ms=0, **options
        )
        self.sender = Sender(self.accumulator)
        self.log = self.sender.logs[TP]
        self.values: list[bytes] = []
        self.futures: list[RecordFuture] = []

    def append(self, count: int = COUNT, size: int = 100) -> None:
        values = [random.Random(len(self.values) + number).randbytes(size) for number in range(count)]
        self.futures += [append(self.accumulator, value) for value in values]
        self.values += values

    def send_without_answer(self, *, arrives: bool) -> ProducerBatch:
        (batch,) = self.sender.drain()
        if arrives:
            self.log.append(bytes(batch.data))
        self.accumulator.muted.discard(TP)
        self.accumulator.reenqueue(batch, 0)
        return batch

    def assert_delivered(self, futures: list[RecordFuture]) -> None:
        for future in futures:
            assert self.log.values[future.get(0).offset] == self.values[self.futures.index(future)]

    def assert_possibly_delivered(self, futures: list[RecordFuture]) -> None:
        for future in futures:
            with pytest.raises(
                PossiblyDeliveredError, match=r"^clicks-0: the record may have been delivered"
            ):
                future.get(0)


def test_whole_when_it_had_arrived_then_no_part_is_taken_again_and_what_is_behind_it_goes_on():
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=True)
    scene.append()
    scene.log.max_message_bytes = LOWERED
    scene.sender.send()
    assert scene.log.values == scene.values
    scene.assert_possibly_delivered(scene.futures[:COUNT])
    scene.assert_delivered(scene.futures[COUNT:])
    assert_nothing_left(scene.accumulator)


def test_whole_when_it_had_not_arrived_then_its_parts_do():
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=False)
    scene.append()
    scene.log.max_message_bytes = LOWERED
    scene.sender.send()
    assert scene.log.values == scene.values
    scene.assert_delivered(scene.futures)
    assert scene.numbering.epoch == 3
    assert scene.log.batches[0].base_sequence == scene.numbering.first
    assert_nothing_left(scene.accumulator)


@pytest.mark.parametrize("arrives", [True, False])
def test_parts_of_parts_when_the_limit_falls_again_then_as_those_of_the_whole(arrives):
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=arrives)
    scene.log.max_message_bytes = LOWERED
    (whole,) = scene.sender.drain()
    scene.sender.answer(whole)
    scene.log.max_message_bytes = LOWERED // 3
    scene.sender.send()
    assert scene.log.values == scene.values
    check = scene.assert_possibly_delivered if arrives else scene.assert_delivered
    check(scene.futures)


def test_part_when_its_own_answer_is_lost_then_it_alone_is_in_doubt():
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=False)
    scene.log.max_message_bytes = LOWERED
    (whole,) = scene.sender.drain()
    scene.sender.answer(whole)
    (first,) = scene.sender.drain()
    scene.sender.answer(first)
    second = scene.send_without_answer(arrives=True)
    scene.append()
    scene.log.max_message_bytes = second.size_in_bytes - 1
    scene.sender.send()
    assert scene.log.values == scene.values
    end = first.record_count + second.record_count
    scene.assert_delivered(scene.futures[: first.record_count])
    scene.assert_possibly_delivered(scene.futures[first.record_count : end])
    scene.assert_delivered(scene.futures[end:])


def test_parts_when_another_partition_begins_a_new_epoch_then_they_are_not_sent():
    """Under new numbers nobody would see that they are there."""
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=True)
    scene.log.max_message_bytes = LOWERED
    (whole,) = scene.sender.drain()
    scene.sender.answer(whole)
    other = append(scene.accumulator, tp=partitions(2)[1])
    scene.numbering.bump_epoch()
    scene.sender.send()
    assert scene.log.values == scene.values
    scene.assert_possibly_delivered(scene.futures)
    assert other.succeeded()
    assert_nothing_left(scene.accumulator)


def test_parts_when_one_was_accepted_then_the_others_are_sent_in_a_new_epoch():
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=False)
    scene.log.max_message_bytes = LOWERED
    for _ in range(2):  # the whole, and its first part
        (batch,) = scene.sender.drain()
        scene.sender.answer(batch)
    scene.numbering.bump_epoch()
    scene.sender.send()
    assert scene.log.values == scene.values
    scene.assert_delivered(scene.futures)


@pytest.mark.parametrize("count", [1, COUNT])
@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("is_known", [True, False], ids=["limit known", "limit unknown"])
def test_records_when_each_is_too_large_alone_then_what_is_behind_them_goes_on(is_known, arrives, count):
    """Their numbers may be taken, so that nothing else may have them."""
    limits: dict[str, int] = {}
    scene = Scene(max_message_bytes=limits.get)
    scene.append(count, size=500)
    scene.send_without_answer(arrives=arrives)
    scene.append(size=10)
    scene.log.max_message_bytes = 400
    if is_known:
        limits["clicks"] = 400
    scene.sender.send()
    assert scene.log.values == scene.values[0 if arrives else count :]
    assert all(future.failed() for future in scene.futures[:count])
    scene.assert_delivered(scene.futures[count:])
    assert_nothing_left(scene.accumulator)


def test_parts_when_a_transaction_is_aborted_then_they_are_kept_until_their_broker_tells():
    scene = Scene()
    scene.append()
    scene.send_without_answer(arrives=True)
    scene.log.max_message_bytes = LOWERED
    (whole,) = scene.sender.drain()
    scene.sender.answer(whole)
    assert not scene.accumulator.abort(RuntimeError("aborted"), undrained_only=True)
    scene.log.max_message_bytes = EVERYTHING
    scene.sender.send()
    assert scene.log.values == scene.values
    scene.assert_possibly_delivered(scene.futures)


def test_batch_without_numbers_when_its_answer_was_lost_then_its_parts_are_sent():
    """At least once, as without idempotence."""
    accumulator = accumulator_of(retry_backoff_ms=0)
    futures = [append(accumulator, bytes(100)) for _ in range(COUNT)]
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    sender.logs[TP].append(bytes(batch.data))
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    sender.logs[TP].max_message_bytes = LOWERED
    sender.send()
    assert [future.get(0).offset for future in futures] == list(range(COUNT, 2 * COUNT))
