"""Several threads append, one sends, another gives up: everything arrives once, and nobody waits for ever."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import kafkafmt as kf
from client.accumulator.partitions import (
    DAY,
    Numbering,
    Sender,
    accumulator_of,
    assert_nothing_left,
    partitions,
)
from client.native_sending import TOPIC, LocalSender
from kafkafmt.client.accumulator import AccumulatorClosedError, RecordAccumulator

pytestmark = pytest.mark.usefixtures("frequent_switches")

PARTITIONS = partitions(3)
RECORDS = 400


class RunningSender:
    """A sender in a thread of its own, which looks when it is told, or when `ready` said so."""

    def __init__(self, make: Callable[..., RecordAccumulator], max_message_bytes: int) -> None:
        self._is_told = threading.Event()
        self._ends = False
        self.accumulator = make(wakeup=self._is_told.set)
        self.sender = Sender(self.accumulator, max_message_bytes)
        self.looked = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def tell(self) -> None:
        self._is_told.set()

    def end(self) -> None:
        self._ends = True
        self.tell()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self.error is None

    def _run(self) -> None:
        try:
            while not self._ends or self.accumulator.has_undrained:
                self._is_told.clear()
                self.looked += 1
                now_ms = time.monotonic() * 1000
                if not self.sender.send(now_ms) and not self._ends:
                    next_ms = self.accumulator.ready(self.sender.cluster, now_ms).next_check_ms
                    self._is_told.wait(min(next_ms / 1000, 20))
        except BaseException as error:
            self.error = error


def values_of(caller: int, count: int = RECORDS) -> list[bytes]:
    random_ = random.Random(caller)
    return [
        b"%d:%06d:" % (caller, number) + random_.randbytes(random_.randrange(200)) for number in range(count)
    ]


def in_threads(*functions: Callable[[], None]) -> None:
    """Run all at once; raise what any of them raised."""
    errors: list[BaseException] = []

    def caught(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("buffer_memory", [5000, 2**25], ids=["hardly any memory", "memory"])
@pytest.mark.parametrize("limit", [2**31, 700], ids=["all fits", "split"])
def test_records_when_many_threads_append_then_all_arrive_once_in_the_order_of_each(limit, buffer_memory):
    running = RunningSender(
        lambda **more: accumulator_of(
            batch_size=1500,
            buffer_memory=buffer_memory,
            codec=kf.Codec.LZ4,
            linger_ms=5,
            sequences=Numbering(2**31 - 100),
            **more,
        ),
        limit,
    )
    accumulator = running.accumulator
    futures: list[tuple[object, bytes]] = []

    def caller(number: int) -> None:
        for i, value in enumerate(values_of(number)):
            tp = PARTITIONS[i % 3]
            future, is_news = accumulator.append(tp, DAY, None, value, now_ms=time.monotonic() * 1000)
            futures.append((future, value))
            if is_news:
                running.tell()

    def caller_of_columns(number: int) -> None:
        values = values_of(number)
        for first in range(0, RECORDS, 40):
            some = values[first : first + 40]
            column = kf.BinaryColumn(
                np.cumsum([0, *map(len, some)], dtype=np.int64), np.frombuffer(b"".join(some), np.uint8), None
            )
            future = accumulator.append_columns(
                PARTITIONS[0], np.full(40, DAY), None, column, now_ms=time.monotonic() * 1000
            )
            running.tell()
            assert len(future.get(30)) == 40

    def flusher() -> None:
        for _ in range(5):
            accumulator.begin_flush()
            running.tell()
            accumulator.await_flush_completion(30)

    in_threads(*(lambda n=n: caller(n) for n in range(3)), lambda: caller_of_columns(3), flusher)
    accumulator.begin_flush()
    running.tell()
    accumulator.await_flush_completion(30)
    running.end()
    logs = running.sender.logs
    for number in range(3):
        sent = values_of(number)
        for place, tp in enumerate(PARTITIONS):
            mine = [value for value in logs[tp].values if value.startswith(b"%d:" % number)]
            assert mine == sent[place::3]
    assert [value for value in logs[PARTITIONS[0]].values if value.startswith(b"3:")] == values_of(3)
    for future, value in futures:
        metadata = future.get(0)
        assert logs[metadata.topic_partition].values[metadata.offset] == value
    assert_nothing_left(accumulator)


def test_abort_when_others_append_and_send_then_each_record_has_one_outcome_and_no_memory_is_kept():
    running = RunningSender(
        lambda **more: accumulator_of(
            batch_size=1500,
            buffer_memory=20_000,
            codec=kf.Codec.LZ4,
            max_message_bytes={"clicks": 600}.get,
            **more,
        ),
        2**31,
    )
    accumulator = running.accumulator
    outcomes: list[object] = []
    futures: list[object] = []

    def caller(number: int) -> None:
        for i, value in enumerate(values_of(number)):
            future, is_news = accumulator.append(
                PARTITIONS[i % 3], DAY, None, value, now_ms=time.monotonic() * 1000
            )
            futures.append(future.add_both(outcomes.append))
            if is_news:
                running.tell()

    def aborter() -> None:
        while any(thread.name == "caller" for thread in threading.enumerate()):
            accumulator.abort(RuntimeError("given up"))

    callers = [
        threading.Thread(target=caller, args=(number,), name="caller", daemon=True) for number in range(3)
    ]
    for thread in callers:
        thread.start()
    in_threads(aborter)
    accumulator.close()
    running.tell()
    running.end()
    assert len(futures) == 3 * RECORDS
    assert all(future.is_done for future in futures)
    assert len(outcomes) == len(futures)
    succeeded = [future.get(0) for future in futures if future.succeeded()]
    assert len({(metadata.topic_partition, metadata.offset) for metadata in succeeded}) == len(succeeded)
    assert_nothing_left(accumulator)


class SwitchingHeaders(list):
    """Headers that let other threads run while they are encoded."""

    def __iter__(self):
        for item in super().__iter__():
            time.sleep(0)
            yield item


@pytest.mark.parametrize("batch_size", [200, 3000])
def test_native_sends_when_others_end_the_same_batches_then_all_arrive_once_in_the_order_of_each(batch_size):
    """Some append natively, one through Python code in the midst of an append, and the sender takes open batches."""
    running = RunningSender(
        lambda **more: accumulator_of(
            batch_size=batch_size, buffer_memory=20_000, codec=kf.Codec.LZ4, **more
        ),
        2**31,
    )
    accumulator = running.accumulator
    ends = threading.Event()
    sent: list[tuple[int, object, bytes]] = []

    def sender() -> LocalSender:
        return LocalSender(accumulator, len(PARTITIONS), tell=running.tell)

    def one_by_one(caller: int) -> None:
        send = sender().send
        for value in values_of(caller):
            future = send(TOPIC, value, partition=caller % 2)
            sent.append((caller % 2, future, value))
            time.sleep(0)  # or it is done before the others have begun

    def many(caller: int) -> None:
        values, mine = values_of(caller), sender()
        for first in range(0, RECORDS, 10):
            assert mine.send_many(values[first : first + 10], partition=caller % 2).count == 10
            time.sleep(0)

    def through_python(caller: int) -> None:
        for value in values_of(caller):
            headers = SwitchingHeaders([("name", b"1")] * 3)
            appended = accumulator.append(PARTITIONS[caller % 2], DAY, None, value, headers, now_ms=0)
            sent.append((caller % 2, appended[0], value))
            running.tell()

    def draining() -> None:
        while not ends.is_set():
            accumulator.begin_flush()
            running.tell()
            accumulator.await_flush_completion(30)

    drainer = threading.Thread(target=draining, daemon=True)
    drainer.start()
    callers = {0: one_by_one, 1: one_by_one, 2: one_by_one, 3: many, 4: many, 5: through_python}
    try:
        in_threads(*(lambda number=number: callers[number](number) for number in callers))
    finally:
        ends.set()
        drainer.join(30)
    running.end()
    for number in callers:
        log = running.sender.logs[PARTITIONS[number % 2]]
        assert [value for value in log.values if value.startswith(b"%d:" % number)] == values_of(number)
    for log in running.sender.logs.values():
        for batch in log.batches:
            assert [record.offset for record in batch] == list(range(batch.count))
    for partition, future, value in sent:
        assert running.sender.logs[PARTITIONS[partition]].values[future.get(0).offset] == value
    assert_nothing_left(accumulator)


def test_close_when_others_append_then_each_record_is_refused_or_arrives():
    running = RunningSender(lambda **more: accumulator_of(batch_size=500, buffer_memory=9000, **more), 2**31)
    accumulator = running.accumulator
    taken: list[bytes] = []
    has_begun = threading.Event()

    def caller(number: int) -> None:
        try:
            for value in values_of(number, 100_000):
                if accumulator.append(PARTITIONS[number], DAY, None, value, now_ms=0)[1]:
                    running.tell()
                taken.append(value)
                has_begun.set()
        except AccumulatorClosedError:
            return

    def closer() -> None:
        assert has_begun.wait(60)
        accumulator.close()

    in_threads(*(lambda n=n: caller(n) for n in range(3)), closer)
    running.end()
    arrived = [value for log in running.sender.logs.values() for value in log.values]
    assert sorted(arrived) == sorted(taken)
    assert_nothing_left(accumulator)
