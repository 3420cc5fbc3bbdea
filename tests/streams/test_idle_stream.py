"""The large decompressor that the partitions of a group share: payloads are decompressed once, whatever the bound."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lz4.frame
import pytest
import zstandard

import reference as ref
from kafkafmt import TopicPartition, codecs
from kafkafmt.codecs.streams import PayloadStream
from kafkafmt.memory import MemoryBudget, MemoryBudgetError
from kafkafmt.streams import PartitionGroup
from kafkafmt.streams.record_queue import RecordSlice
from reference import Row
from streams.partition_logs import Log, log_of

KIB = 1024
MIB = 1024 * KIB
A, B, C = (TopicPartition("t", number) for number in range(3))
BOUND = 256 * KIB  # less than a decompressor of these batches
VALUE = b"v" * 200 * KIB
RECORDS = 60
# A buffer and its rows, even without room for them; and what the batches of a test take at most.
LEAST = 300 * KIB


def zstd_of(data: bytes, window_log: int) -> bytes:
    """Few bytes without a content size, as Kafka's Java writes them."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, window_log=window_log, write_content_size=False
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def lz4_of(data: bytes) -> bytes:
    """Blocks of 4 MiB."""
    compressed: bytes = lz4.frame.compress(data, block_size=7, block_linked=False, store_size=False)
    return compressed


def large(times: list[int], codec: int = ref.ZSTD, *, window_log: int = 21) -> Log:
    """A batch that decompresses to many times its size. window_log: of ZSTD, 2 MiB by default."""
    rows = [Row(n, time, None, VALUE) for n, time in enumerate(times)]
    data = ref.records(rows, 0, times[0])
    payload = zstd_of(data, window_log) if codec == ref.ZSTD else lz4_of(data)
    fields: dict[str, Any] = {"base_timestamp": times[0], "max_timestamp": max(times)}
    return Log(
        ref.batch(payload, len(rows), attributes=codec, last_offset_delta=len(rows) - 1, **fields), rows
    )


class Streams:
    """Counts the bytes that decompressors make, and knows those that are in use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decompressed = 0
        self._open_stream = codecs.open_stream
        monkeypatch.setattr(codecs, "open_stream", self._opened)

    def _opened(self, *args: Any, **options: Any) -> PayloadStream:
        stream = self._open_stream(*args, **options)
        stream._chunks = self._counted(stream._chunks)
        return stream

    def _counted(self, chunks: Iterator[Any]) -> Iterator[Any]:
        for chunk in chunks:
            self.decompressed += len(chunk)
            yield chunk


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    return Streams(monkeypatch)


def group_of(logs: dict[TopicPartition, Log], bound: int = BOUND, **options: Any) -> PartitionGroup:
    group = PartitionGroup(bound, **options)
    for tp, log in logs.items():
        group.add(tp)
        run = log.run()
        assert run is not None
        assert group.feed(tp, run) == len(run)
        group.finish(tp)
    return group


def kept(group: PartitionGroup) -> list[PayloadStream]:
    """The open decompressors of all partitions."""
    buffers = [queue._buffers for queue in group._queues.values()]
    streams = [getattr(one, "_stream", None) for one in buffers]
    return [stream for stream in streams if stream is not None]


def taken(group: PartitionGroup) -> list[tuple[TopicPartition, int]]:
    """All records in order. At most one decompressor without room is open at each step, and counts."""
    found = []
    while (one := group.take()) is not None:
        found += [(one.topic_partition, record.offset) for record in one.records()]
        open_streams = kept(group)
        assert len(open_streams) <= 1
        state_bytes = sum(stream.state_bytes for stream in open_streams)
        assert state_bytes <= group.buffered_bytes <= BOUND + state_bytes + len(group) * LEAST
    return found


@pytest.mark.parametrize("codec", [ref.LZ4, ref.ZSTD])
def test_take_when_there_is_no_room_for_a_decompressor_then_a_payload_is_decompressed_once(
    codec: int, streams: Streams
) -> None:
    group = group_of({A: large(list(range(RECORDS)), codec)})
    assert taken(group) == [(A, n) for n in range(RECORDS)]
    assert streams.decompressed < 1.01 * RECORDS * len(VALUE) + KIB
    assert group.buffered_bytes == 0


def test_take_when_another_partition_has_records_between_then_a_payload_is_decompressed_once(
    streams: Streams,
) -> None:
    small = log_of(ref.batch_of([Row(n, 2 * n + 1, None, b"w") for n in range(RECORDS)], codec=ref.LZ4))
    group = group_of({A: large(list(range(0, 2 * RECORDS, 2))), B: small})
    assert taken(group) == [(tp, n) for n in range(RECORDS) for tp in (A, B)]
    assert streams.decompressed < 1.01 * RECORDS * len(VALUE) + 64 * KIB


def test_take_when_two_partitions_need_a_large_decompressor_then_one_is_open_at_a_time() -> None:
    logs = {tp: large(list(range(first, 20, 2))) for first, tp in enumerate((A, B))}
    assert taken(group_of(logs)) == [(tp, n) for n in range(10) for tp in (A, B)]


def test_take_when_a_decompressor_is_kept_then_those_that_fit_stay_open(streams: Streams) -> None:
    """The decompressor of A, of 8 MiB, never has room. That of B, of 4 MiB, has, as B has many batches."""
    times = list(range(0, 2 * RECORDS, 2))
    fitting = large([one + 1 for one in times], window_log=22)
    later = [
        ref.batch_of([Row(n, 10_000 + n, None, bytes(MIB))], base_offset=n)
        for n in range(RECORDS, RECORDS + 20)
    ]
    logs = {A: large(times, window_log=23), B: Log(b"".join([fitting.data, *later]), fitting.rows)}
    group = group_of(logs, 32 * MIB)
    for n in range(RECORDS):
        for tp in (A, B):
            found = group.take(1)
            assert found is not None
            assert [(found.topic_partition, one.offset) for one in found.records()] == [(tp, n)]
    assert streams.decompressed < 2.02 * RECORDS * len(VALUE)


def test_take_when_keeping_a_decompressor_fails_then_no_record_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = group_of({A: large(list(range(RECORDS)))})
    failed = []

    def keep_then_fail(*args: object) -> None:
        keep(*args)
        failed.append(args)
        if len(failed) == 2:
            raise MemoryError

    keep = group._bound.idle_stream.keep
    monkeypatch.setattr(group._bound.idle_stream, "keep", keep_then_fail)
    found = []
    while (one := _taken_again(group)) is not None:
        found += [record.offset for record in one.records()]
    assert len(failed) > 2
    assert found == list(range(RECORDS))


def _taken_again(group: PartitionGroup) -> RecordSlice | None:
    try:
        return group.take()
    except MemoryError:
        return group.take()


def test_take_when_the_caller_waits_for_batches_then_no_decompressor_is_kept_beyond_the_bound() -> None:
    group = group_of({A: large([0, 1, 2, 3, 4, 5])})
    group.add(B)
    run = log_of(ref.batch_of([Row(0, 2, None, b"w")])).run()
    assert run is not None
    group.feed(B, run)
    while group.take() is not None:
        pass
    assert group.wanting() == [B]
    assert kept(group) == []
    assert group.buffered_bytes <= BOUND + LEAST
    group.finish(B)
    assert [offset for _, offset in taken(group)] == [3, 4, 5]


def test_take_when_the_caller_reserves_the_rest_of_the_budget_then_it_does_not_wait_for_a_decompressor() -> (
    None
):
    budget = MemoryBudget(4 * MIB)
    group = group_of({A: large(list(range(RECORDS)))}, budget=budget.child("buffers"))
    found = group.take()
    assert found is not None
    assert len(kept(group)) == 1
    with ThreadPoolExecutor(1) as threads:  # other threads do not close what the group may use
        refused = threads.submit(budget.reserve, 3 * MIB, timeout=0)
        with pytest.raises(MemoryBudgetError):
            refused.result()
    assert len(kept(group)) == 1
    with budget.reserve(3 * MIB, timeout=0):
        assert kept(group) == []
    assert [offset for _, offset in taken(group)] == list(range(found.stop, RECORDS))
    assert budget.held_bytes == 0


@pytest.mark.parametrize("is_removed", [True, False])
def test_kept_decompressor_when_its_partition_is_removed_or_ends_then_nothing_is_held(
    is_removed: bool,
) -> None:
    budget = MemoryBudget(16 * MIB)
    group = group_of({A: large(list(range(RECORDS)))}, budget=budget)
    assert group.take() is not None
    assert len(kept(group)) == len(budget._callbacks) == 1
    if is_removed:
        group.remove(A)
    else:
        taken(group)
    assert budget.held_bytes == len(budget._callbacks) == 0
