"""The accumulator against a model: records in, records out, whatever brokers and time do in between.

Partitions accept a batch, refuse it as too large, take it and lose the answer, or are away. The sender has one batch
of a partition in flight, as one that keeps the order. What must hold: every record is in its partition at most once
and in order, every future has one outcome, and that of what arrived; no byte of the budget is lost.
"""

from __future__ import annotations

import random
from contextlib import suppress

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kafkafmt as kf
from _kafkafmt.batches.scan import scan
from client.accumulator.partitions import (
    DAY,
    EVERYTHING,
    Numbering,
    OutOfOrder,
    PartitionLog,
    Sender,
    TooLarge,
    accumulator_of,
    assert_nothing_left,
    partitions,
)
from kafkafmt.client.accumulator import BufferExhaustedError, ProducerBatch
from kafkafmt.client.accumulator.raw_batches import RequestLimits

PARTITIONS = partitions(3)
BUDGET = 40_000

one_partition = st.sampled_from(PARTITIONS)
sizes = st.integers(12, 60) | st.integers(12, 900)


class Record:
    """A record that was appended, and what its callbacks were told."""

    def __init__(self, tp: kf.TopicPartition, value: bytes) -> None:
        self.tp = tp
        self.value = value
        self.future = None
        self.told: list[object] = []


class AccumulatorMachine(RuleBasedStateMachine):
    @initialize(
        codec=st.sampled_from([kf.Codec.NONE, kf.Codec.LZ4]),
        batch_size=st.sampled_from([2000, 2000, 300, 0]),
        linger_ms=st.sampled_from([0, 50]),
        is_idempotent=st.booleans(),
        limit=st.sampled_from([400, 1500, EVERYTHING]),
        is_limit_known=st.booleans(),
        first_sequence=st.sampled_from([0, 2**31 - 30]),
    )
    def begin(
        self, codec, batch_size, linger_ms, is_idempotent, limit, is_limit_known, first_sequence
    ) -> None:
        self.now_ms = 0.0
        self.limits = {"clicks": limit} if is_limit_known else {}
        self.numbering = Numbering(first_sequence) if is_idempotent else None
        self.accumulator = accumulator_of(
            codec=codec,
            batch_size=batch_size,
            linger_ms=linger_ms,
            retry_backoff_ms=20,
            delivery_timeout_ms=500,
            buffer_memory=BUDGET,
            max_block_ms=0,
            max_message_bytes=self.limits.get,
            sequences=self.numbering,
        )
        self.sender = Sender(self.accumulator, limit)
        self.in_flight: list[ProducerBatch] = []
        self.records: list[Record] = []
        self.columns: list[tuple[kf.RecordsFuture, list[Record]]] = []
        self.flushes = 0

    # Callers

    def value(self, size: int) -> bytes:
        count = len(self.records)
        return b"%010d|" % count + random.Random(count).randbytes(size // 2) + bytes(size - size // 2)

    @rule(tp=one_partition, size=sizes, is_sticky=st.booleans())
    def append(self, tp, size, is_sticky) -> None:
        record = Record(tp, self.value(size))
        held = self.accumulator.budget.available_bytes
        try:
            appended = self.accumulator.append(
                tp, DAY, None, record.value, now_ms=self.now_ms, abort_on_new_batch=is_sticky
            )
        except BufferExhaustedError:
            # It keeps nothing. A full batch that it has closed may hold less than before.
            assert self.accumulator.budget.available_bytes >= held
            return
        if appended is None:
            assert is_sticky
            return
        record.future = appended[0]
        record.future.add_both(record.told.append)
        self.records.append(record)

    @rule(tp=one_partition, some=st.lists(sizes, min_size=5, max_size=20))
    def append_many(self, tp, some) -> None:
        for size in some:
            self.append(tp, size, is_sticky=False)

    @rule(tp=one_partition, some=st.lists(sizes, max_size=12))
    def append_columns(self, tp, some) -> None:
        values = [self.value(size)[:-8] + b"%08d" % number for number, size in enumerate(some)]
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        column = kf.BinaryColumn(offsets, np.frombuffer(b"".join(values), np.uint8), None)
        try:
            future = self.accumulator.append_columns(
                tp, np.full(len(values), DAY), None, column, now_ms=self.now_ms
            )
        except BufferExhaustedError as error:
            future = error.appended
        records = [Record(tp, value) for value in values[: len(future)]]
        self.columns.append((future, records))
        self.records += records

    @rule(
        tp=one_partition,
        some=st.lists(st.lists(sizes, min_size=1, max_size=5), max_size=6),
        codec=st.sampled_from([kf.Codec.NONE, kf.Codec.ZSTD]),
        max_batches=st.sampled_from([1, 2, 100]),
        producer_id=st.sampled_from([-1, 7]),
    )
    def append_batches(self, tp, some, codec, max_batches, producer_id) -> None:
        """Of another producer, whose numbers mean nothing here."""
        data, values = b"", []
        state = (
            {"producer_epoch": 0, "base_sequence": 3, "is_transactional": True} if producer_id >= 0 else {}
        )
        for sizes_of_batch in some:
            builder = kf.RecordBatchBuilder(codec=codec, base_offset=10, producer_id=producer_id, **state)
            for size in sizes_of_batch:
                values.append(self.value(size)[:-8] + b"%08d" % len(values))
                builder.append(DAY, None, values[-1])
            data += builder.build()
        run, *_ = scan(data)
        try:
            future = self.accumulator.append_batches(
                tp, run, request_limits=RequestLimits(max_batches, 3000), now_ms=self.now_ms
            )
        except BufferExhaustedError as error:
            future = error.appended
        records = [Record(tp, value) for value in values[: len(future)]]
        self.columns.append((future, records))
        self.records += records

    # Time and the sender

    @rule(more_ms=st.sampled_from([1, 20, 60, 250]))
    def wait(self, more_ms) -> None:
        self.now_ms += more_ms

    @rule(max_size=st.sampled_from([EVERYTHING, 1000]))
    def drain(self, max_size) -> None:
        drained = self.sender.drain(self.now_ms, max_size)
        assert len({batch.topic_partition for batch in drained}) == len(drained)
        for batch in drained:
            limit = self.limits.get("clicks", EVERYTHING)
            assert batch.largest_batch_size <= limit or batch.producer_state is not None
        self.in_flight += drained

    @rule()
    def drain_when_told(self) -> None:
        """A sender that looks again when `ready` says so does not look in vain, nor for ever."""
        check = self.accumulator.ready(self.sender.cluster, self.now_ms)
        if check.nodes:
            self.drain(EVERYTHING)
        elif check.next_check_ms < float("inf"):
            assert check.next_check_ms > 0
            self.now_ms += check.next_check_ms
            later = self.accumulator.ready(self.sender.cluster, self.now_ms + 1e-6)
            assert later.nodes or (self.numbering is not None and self.numbering.held)
        else:
            waiting = {tp for tp, _ in self.accumulator._queues.items()}
            held = self.numbering.held if self.numbering is not None else set()
            assert waiting <= self.accumulator.muted | held

    def one_in_flight(self, data) -> ProducerBatch:
        batch = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(batch)
        return batch

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def answer(self, data) -> None:
        self.sender.answer(self.one_in_flight(data), self.now_ms)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), has_arrived=st.booleans(), is_too_large_then=st.booleans())
    def lose_the_answer(self, data, has_arrived, is_too_large_then) -> None:
        batch = self.one_in_flight(data)
        log = self.sender.logs[batch.topic_partition]
        if has_arrived and self.numbering is not None:
            with suppress(TooLarge, OutOfOrder):
                log.append(bytes(batch.data))
        if is_too_large_then:
            log.max_message_bytes = min(log.max_message_bytes, batch.largest_batch_size - 1)
        self.accumulator.muted.discard(batch.topic_partition)
        if batch.has_reached_delivery_timeout(500, self.now_ms):
            self.give_up(batch)
        else:
            self.accumulator.reenqueue(batch, self.now_ms)

    def give_up(self, batch: ProducerBatch) -> None:
        """It failed, perhaps it arrived: who numbers records begins anew."""
        self.sender.fail(batch, TimeoutError())
        self.accumulator.deallocate(batch)

    @precondition(lambda self: len(self.records) > 15)
    @rule()
    def abort(self) -> None:
        """All fails that is not done; what is in flight may still arrive, and is answered."""
        undelivered = self.accumulator.undelivered()
        assert self.accumulator.abort(RuntimeError("given up")) == undelivered
        if self.numbering is not None:
            self.numbering.bump_epoch()

    @rule(tp=one_partition)
    def hold_or_release(self, tp) -> None:
        """As while there is no producer id."""
        if self.numbering is not None:
            self.numbering.held ^= {tp}

    @rule()
    def expire(self) -> None:
        for batch in self.accumulator.expired_batches(self.now_ms):
            assert self.now_ms - batch.created_ms >= 500
            self.give_up(batch)

    @rule(limit=st.sampled_from([EVERYTHING, 3000, 1500, 400]), is_learned=st.booleans())
    def change_the_limit(self, limit, is_learned) -> None:
        for tp in PARTITIONS:
            self.sender.logs[tp].max_message_bytes = limit
        if is_learned:
            self.limits["clicks"] = limit

    @rule()
    def begin_flush(self) -> None:
        if self.flushes < 2:
            self.flushes += 1
            self.accumulator.begin_flush()

    @precondition(lambda self: self.flushes)
    @rule()
    def end_flush(self) -> None:
        self.flushes -= 1
        self.accumulator.end_flush()

    # What holds

    @invariant()
    def budget_is_accounted_for(self) -> None:
        queues = self.accumulator._queues
        held = sum(batch.reserved_bytes for batch in queues._incomplete)
        assert held == self.accumulator.budget.total_bytes - self.accumulator.budget.available_bytes
        waiting = [batch for _, queue in queues.items() for batch in queue]
        assert queues._incomplete == {*waiting, *(batch for batch in self.in_flight if not batch.is_done)}
        assert sum(self.accumulator.undelivered().values()) == sum(b.record_count for b in queues._incomplete)

    @invariant()
    def waiting_batches_are_in_order(self) -> None:
        for tp, queue in self.accumulator._queues.items():
            orders = [batch.order for batch in queue]
            assert orders == sorted(set(orders))
            opened = self.accumulator._queues.open.get(tp)
            assert opened is None or opened is queue[-1]
            assert all(batch.builder is None for batch in list(queue)[:-1])

    def teardown(self) -> None:
        if not hasattr(self, "accumulator"):
            return
        self.accumulator.close()
        if self.numbering is not None:
            self.numbering.held.clear()
        for _ in range(1000):
            for batch in self.in_flight:
                self.sender.answer(batch)
            self.in_flight = self.sender.drain(self.now_ms)
            self.now_ms += 0 if self.in_flight else 21
            if not self.accumulator.has_incomplete and not self.in_flight:
                break
        assert_nothing_left(self.accumulator)
        for future, records in self.columns:
            self.settle_columns(future, records)
        for tp in PARTITIONS:
            self.check_partition(tp)

    def settle_columns(self, future, records) -> None:
        assert future.is_done
        left = iter(records)
        for batch, first, count in future._spans:
            for index in range(first, first + count):
                part, place = batch.part_of(index)
                next(left).future = part.outcome, place

    def check_partition(self, tp: kf.TopicPartition) -> None:
        log: PartitionLog = self.sender.logs[tp]
        values = log.values
        assert len(set(values)) == len(values)
        appended = {record.value: number for number, record in enumerate(self.records) if record.tp == tp}
        numbers = [appended[value] for value in values]
        assert numbers == sorted(numbers)
        for record in self.records:
            if record.tp == tp:
                self.check_outcome(record, values)

    def check_outcome(self, record: Record, values: list[bytes]) -> None:
        if isinstance(record.future, tuple):
            outcome, place = record.future
            offset = outcome.offset_of(place) if outcome.error is None else None
        else:
            assert record.future.is_done
            assert len(record.told) == 1
            offset = record.future.value.offset if record.future.succeeded() else None
            assert record.told == [record.future.value or record.future.exception]
        if offset is not None:
            assert values[offset] == record.value


AccumulatorMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAccumulator = AccumulatorMachine.TestCase
