"""What is ready and when, and what a drain takes: one batch a partition, in turns, and none that may not go."""

from __future__ import annotations

import pytest

import kafkafmt as kf
from client.accumulator.partitions import (
    EVERYTHING,
    PRODUCER_ID,
    TP,
    Leaders,
    Numbering,
    PartitionLog,
    Sender,
    accumulator_of,
    append,
    assert_nothing_left,
    numbered,
    partitions,
    values_in,
)
from kafkafmt.build.builder import build_writable
from kafkafmt.client.accumulator import ReadyCheck

NEVER = float("inf")
CLUSTER = Leaders()


def test_ready_when_nothing_waits_then_never():
    assert accumulator_of().ready(CLUSTER, 0) == ReadyCheck(set(), NEVER, False)


def test_ready_when_a_batch_lingers_then_after_linger_ms():
    accumulator = accumulator_of(linger_ms=10)
    append(accumulator, now_ms=100)
    append(accumulator, now_ms=105)
    assert accumulator.ready(CLUSTER, 100) == ReadyCheck(set(), 10, False)
    assert accumulator.ready(CLUSTER, 109) == ReadyCheck(set(), 1, False)
    assert accumulator.ready(CLUSTER, 110) == ReadyCheck({0}, NEVER, False)


def test_ready_when_many_linger_then_the_first_of_them_says_when():
    accumulator = accumulator_of(linger_ms=10)
    for number, tp in enumerate(partitions(5)):
        append(accumulator, tp=tp, now_ms=100 - number)
    assert accumulator.ready(CLUSTER, 100).next_check_ms == 6


def test_ready_when_a_batch_is_full_then_at_once():
    accumulator = accumulator_of(batch_size=200, linger_ms=1000)
    append(accumulator, bytes(200))
    assert accumulator.ready(CLUSTER, 0).nodes == {0}


def test_ready_when_a_second_batch_is_open_then_the_first_goes_at_once_and_the_second_lingers():
    accumulator = accumulator_of(batch_size=200, linger_ms=1000)
    for _ in range(3):
        append(accumulator, bytes(60))
    sender = Sender(accumulator)
    assert sender.send() == 1
    assert accumulator.ready(CLUSTER, 1) == ReadyCheck(set(), 999, False)


@pytest.mark.parametrize("urge", ["begin_flush", "close"])
def test_ready_when_flushed_or_closed_then_what_lingers_goes_at_once(urge):
    accumulator = accumulator_of(linger_ms=1000)
    append(accumulator)
    getattr(accumulator, urge)()
    assert Sender(accumulator).send() == 1
    assert_nothing_left(accumulator)


def test_ready_when_a_caller_waits_for_memory_then_what_lingers_goes_when_it_wakes_the_sender():
    sent = []
    accumulator = accumulator_of(
        buffer_memory=4096, linger_ms=1000, wakeup=lambda: sent.append(sender.send())
    )
    sender = Sender(accumulator)
    append(accumulator)
    append(accumulator, tp=partitions(2)[1], max_block_ms=10_000)
    assert sent == [1]


def test_ready_when_muted_then_not_and_no_check_is_due():
    accumulator = accumulator_of()
    append(accumulator)
    accumulator.muted.add(TP)
    assert accumulator.ready(CLUSTER, 0) == ReadyCheck(set(), NEVER, False)
    assert accumulator.drain(CLUSTER, {0}, EVERYTHING, 0) == {0: []}
    accumulator.muted.clear()
    assert accumulator.ready(CLUSTER, 0).nodes == {0}


@pytest.mark.parametrize("leader", [None, -1])
def test_ready_when_a_leader_is_unknown_then_said_and_the_others_go(leader):
    accumulator = accumulator_of()
    lost, found = partitions(2)
    for tp in (lost, found):
        append(accumulator, tp=tp)
    cluster = Leaders({lost: leader, found: 4})
    assert accumulator.ready(cluster, 0) == ReadyCheck({4}, NEVER, True)
    (batch,) = accumulator.drain(cluster, {4}, EVERYTHING, 0)[4]
    assert batch.topic_partition == found


def test_ready_when_records_may_not_be_numbered_then_not_until_they_may():
    """Else a sender would look again and again, and drain nothing."""
    numbering = Numbering()
    accumulator = accumulator_of(sequences=numbering)
    for tp in partitions(2):
        append(accumulator, tp=tp)
    numbering.held = set(partitions(2))
    assert accumulator.ready(CLUSTER, 0) == ReadyCheck(set(), NEVER, False)
    assert accumulator.drain(CLUSTER, {0}, EVERYTHING, 0) == {0: []}
    numbering.held = {TP}
    assert accumulator.ready(CLUSTER, 0).nodes == {0}
    (batch,) = accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0]
    assert batch.topic_partition == partitions(2)[1]


def test_ready_when_a_topic_is_held_then_after_that_however_urgent():
    held = {"clicks": 500.0}
    accumulator = accumulator_of(held_until_ms=lambda topic: held.get(topic, 0))
    append(accumulator)
    accumulator.close()
    assert accumulator.ready(CLUSTER, 400) == ReadyCheck(set(), 100, False)
    assert accumulator.drain(CLUSTER, {0}, EVERYTHING, 499) == {0: []}
    assert len(accumulator.drain(CLUSTER, {0}, EVERYTHING, 500)[0]) == 1


def test_batch_when_sent_in_vain_then_again_after_the_backoff_however_urgent():
    accumulator = accumulator_of(retry_backoff_ms=100)
    append(accumulator)
    sender = Sender(accumulator)
    (batch,) = sender.drain(0)
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 50)
    accumulator.begin_flush()
    assert accumulator.ready(CLUSTER, 50) == ReadyCheck(set(), 100, False)
    assert accumulator.drain(CLUSTER, {0}, EVERYTHING, 149) == {0: []}
    assert sender.drain(150) == [batch]
    assert batch.attempts == 1


def test_batch_when_it_comes_back_then_in_front_of_those_behind_it():
    accumulator = accumulator_of(batch_size=0, retry_backoff_ms=0)
    for value in numbered(range(4)):
        append(accumulator, value)
    first, second = (accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0][0] for _ in range(2))
    accumulator.reenqueue(second, 0)
    accumulator.reenqueue(first, 0)
    sender = Sender(accumulator)
    sender.send()
    assert sender.logs[TP].values == numbered(range(4))
    assert_nothing_left(accumulator)


def test_drain_when_called_then_one_batch_a_partition():
    accumulator = accumulator_of(batch_size=0)
    for tp in partitions(3) * 2:
        append(accumulator, tp=tp)
    drained = accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0]
    assert [batch.topic_partition for batch in drained] == partitions(3)


def test_drain_when_there_are_many_nodes_then_each_gets_what_it_leads():
    accumulator = accumulator_of()
    cluster = Leaders({tp: tp.partition % 3 for tp in partitions(9)})
    for tp in partitions(9):
        append(accumulator, tp=tp)
    assert accumulator.ready(cluster, 0).nodes == {0, 1, 2}
    drained = accumulator.drain(cluster, [2, 0, 7], EVERYTHING, 0)
    assert {
        node: [batch.topic_partition.partition for batch in batches] for node, batches in drained.items()
    } == {
        2: [2, 5, 8],
        0: [0, 3, 6],
        7: [],
    }
    assert accumulator.ready(cluster, 0).nodes == {1}


def test_drain_when_size_is_limited_then_no_request_is_larger_unless_it_has_one_batch():
    accumulator = accumulator_of(batch_size=0)
    for tp, size in zip(partitions(6), (400, 400, 400, 5000, 10, 10), strict=True):
        append(accumulator, bytes(size), tp=tp)
    found = []
    while drained := accumulator.drain(CLUSTER, {0}, 1000, 0)[0]:
        found.append([batch.topic_partition.partition for batch in drained])
        assert len(drained) == 1 or sum(batch.size_in_bytes for batch in drained) <= 1000
    assert found == [[0, 1], [2], [3], [4, 5]]


def test_drain_when_size_is_limited_then_partitions_take_turns():
    """However much waits for the first ones, none comes twice before all others did."""
    accumulator = accumulator_of(batch_size=0, buffer_memory=10**9)
    for tp in partitions(10) * 30:
        append(accumulator, bytes(200), tp=tp)
    order = []
    while drained := accumulator.drain(CLUSTER, {0}, 900, 0)[0]:
        order += [batch.topic_partition.partition for batch in drained]
    assert len(order) == 300
    for begin in range(0, 300, 10):
        assert set(order[begin : begin + 10]) == set(range(10))


def test_drain_when_it_leaves_a_batch_out_then_that_is_as_it_was():
    accumulator = accumulator_of(codec=kf.Codec.GZIP, linger_ms=1000, sequences=Numbering())
    for tp in partitions(2):
        append(accumulator, tp=tp)
    accumulator.begin_flush()
    sender = Sender(accumulator)
    for size in (1, 1):
        (batch,) = sender.drain(max_size=size)
        sender.answer(batch)
    assert [len(sender.logs[tp].records) for tp in partitions(2)] == [1, 1]
    assert_nothing_left(accumulator)


class Fails(Exception):
    pass


class FailingNumbering(Numbering):
    """Fails for one partition, once."""

    def assign(self, topic_partition, count):
        if topic_partition.partition == 2 and not self.next.get(topic_partition):
            self.next[topic_partition] = self.first
            raise Fails
        return super().assign(topic_partition, count)


def test_drain_when_it_fails_then_all_is_drained_the_next_time_with_the_numbers_it_had():
    accumulator = accumulator_of(sequences=FailingNumbering(first=7))
    cluster = Leaders({tp: tp.partition for tp in partitions(4)})
    for tp in partitions(4):
        append(accumulator, tp=tp)
    with pytest.raises(Fails):
        accumulator.drain(cluster, range(4), EVERYTHING, 0)
    drained = accumulator.drain(cluster, range(4), EVERYTHING, 0)
    for node, batches in drained.items():
        assert [batch.producer_state for batch in batches] == [(PRODUCER_ID, 3, 7, False)]
        log = PartitionLog()
        batches[0].complete(log.append(bytes(batches[0].data)))
        accumulator.deallocate(batches[0])
        assert log.values == [b"value"], node
    assert_nothing_left(accumulator)


def test_batch_when_it_cannot_be_compressed_then_it_fails_and_those_behind_it_go(monkeypatch):
    accumulator = accumulator_of(batch_size=0, codec=kf.Codec.LZ4)

    def build_or_fail(builder: kf.RecordBatchBuilder) -> bytearray:
        data = build_writable(builder)
        if values_in_bytes(data) == [b"bad"]:
            raise MemoryError
        return data

    monkeypatch.setattr("kafkafmt.client.accumulator.batch.build_writable", build_or_fail)
    futures = [append(accumulator, value) for value in (b"bad", b"good")]
    sender = Sender(accumulator)
    sender.send()
    assert isinstance(futures[0].exception, MemoryError)
    assert futures[1].get(0).offset == 0
    assert_nothing_left(accumulator)


def values_in_bytes(data: bytes) -> list[bytes | None]:
    return [record.value for record in kf.MemoryRecords(data).records()]


def test_drained_when_sent_then_the_bytes_say_who_sends_and_decode():
    numbering = Numbering(first=2**31 - 2, is_transactional=True)
    accumulator = accumulator_of(batch_size=0, codec=kf.Codec.SNAPPY, sequences=numbering)
    for value in numbered(range(3)):
        append(accumulator, value)
    sender = Sender(accumulator)
    sender.send()
    sent = sender.logs[TP].batches
    assert [
        (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.is_transactional)
        for batch in sent
    ] == [(PRODUCER_ID, 3, sequence, True) for sequence in (2**31 - 2, 2**31 - 1, 0)]
    assert {batch.codec for batch in sent} == {kf.Codec.SNAPPY}


def test_batch_when_its_answer_is_lost_then_it_is_sent_again_as_it_was():
    accumulator = accumulator_of(sequences=Numbering(), retry_backoff_ms=0)
    future = append(accumulator)
    sender = Sender(accumulator)
    (batch,) = sender.drain()
    first = bytes(batch.data)
    sender.logs[TP].append(first)
    accumulator.muted.clear()
    accumulator.reenqueue(batch, 0)
    append(accumulator, b"behind")
    (again,) = sender.drain()
    assert bytes(again.data) == first
    sender.answer(again)
    sender.send()
    assert sender.logs[TP].values == [b"value", b"behind"]
    assert future.get(0).offset == 0
    assert_nothing_left(accumulator)


def test_drain_when_there_are_ten_thousand_partitions_then_each_leader_is_looked_up_once():
    class Counting(Leaders):
        count = 0

        def leader_for_partition(self, partition):
            self.count += 1
            return partition.partition % 50

    accumulator = accumulator_of(buffer_memory=2**30)
    for tp in partitions(10_000):
        append(accumulator, tp=tp)
    cluster = Counting()
    drained = accumulator.drain(cluster, range(50), EVERYTHING, 0)
    assert sum(map(len, drained.values())) == 10_000
    assert cluster.count == 10_000


def test_values_when_many_batches_wait_then_in_order_whoever_asks():
    accumulator = accumulator_of(batch_size=0, buffer_memory=2**30)
    for value in numbered(range(1000)):
        append(accumulator, value)
    batches = [accumulator.drain(CLUSTER, {0}, EVERYTHING, 0)[0][0] for _ in range(1000)]
    assert [values_in(batch) for batch in batches] == [[value] for value in numbered(range(1000))]
