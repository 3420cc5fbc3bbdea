"""What is taken of one partition's fetched bytes: positions, damage, aborted transactions as kafka-python sees them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import kafka.record
import pytest
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

import kafkafmt as kf
from _kafkafmt.batches.producer_state import set_producer_state
from kafkafmt.client.fetch_queue import Fetched
from kafkafmt.client.partition_batches import BatchOptions, PartitionBatches
from kafkafmt.net import CorruptRecordError
from records.samples import DAY, empty_batch, end_marker

PARTITION = TopicPartition("topic", 3)
ALL = 1000
PLAIN = BatchOptions(check_crcs=True, keeps_control_batches=False, trims_first_batch=True)


class Aborted(NamedTuple):
    """As a fetch response has it."""

    producer_id: int
    first_offset: int


def batches_of(
    data: bytes,
    offset: int = 0,
    options: BatchOptions = PLAIN,
    aborted: Sequence[Aborted] = (),
    metrics: Any = None,
) -> PartitionBatches:
    return PartitionBatches(fetched(data, offset, aborted), options, metrics)


def fetched(data: bytes, offset: int = 0, aborted: Sequence[Any] = ()) -> Fetched:
    return Fetched(
        PARTITION,
        generation=1,
        offset=offset,
        error_code=0,
        records=memoryview(data),
        high_watermark=0,
        aborted=list(aborted),
        is_diverging=False,
        is_by_id=False,
        memory=None,
    )


def built(offset: int, count: int = 1, **options: Any) -> bytes:
    builder = kf.RecordBatchBuilder(base_offset=offset, partition_leader_epoch=offset + 100, **options)
    for number in range(count):
        builder.append(DAY, None, b"%d" % (offset + number))
    return builder.build()


def wrapper(offset: int, count: int = 3) -> bytes:
    builder = kf.RecordBatchBuilder(1, kf.Codec.GZIP, base_offset=offset)
    for number in range(count):
        builder.append(DAY, None, b"%d" % (offset + number))
    return builder.build()


def last_offsets(part: PartitionBatches, n: int = ALL) -> list[int]:
    return [last for run in part.take(n) for last in run.index["last_offset"].tolist()]


# Positions


def test_take_when_it_takes_some_then_the_position_is_behind_them_and_the_rest_comes_next() -> None:
    part = batches_of(b"".join(built(offset, 2) for offset in range(0, 10, 2)))
    for last in (3, 7):
        assert last_offsets(part, 2) == [last - 2, last]
        assert (part.next_fetch_offset, part.leader_epoch, bool(part)) == (last + 1, last + 99, True)
    assert last_offsets(part, 2) == [9]
    assert (part.next_fetch_offset, part.records_read, bool(part)) == (10, 5, False)


def test_take_when_batches_between_are_left_out_then_runs_have_no_gaps() -> None:
    data = built(9) + end_marker(10, commit=True) + built(11) + built(12) + end_marker(13, commit=False)
    runs = batches_of(data).take(ALL)
    assert [run.index["last_offset"].tolist() for run in runs] == [[9], [11, 12]]


def test_take_when_all_is_left_out_then_the_position_is_behind_it() -> None:
    part = batches_of(end_marker(10, commit=True) + end_marker(11, commit=True), 10)
    assert part.take(ALL) == []
    assert (part.next_fetch_offset, bool(part)) == (12, False)


def test_take_when_batches_lie_below_the_position_then_they_are_left_out() -> None:
    part = batches_of(built(0, 3) + built(3, 3), 4)
    (run,) = part.take(ALL)
    assert (run.index["base_offset"].tolist(), run.index["count"].tolist()) == ([4], [2])


def test_take_when_no_record_of_the_first_batch_is_below_the_position_then_it_comes_once() -> None:
    """It begins below the position all the same: compaction keeps the base offset."""
    runs = batches_of(empty_batch(20, 4) + built(25), 22).take(ALL)
    assert [run.index["last_offset"].tolist() for run in runs] == [[24], [25]]


def test_take_when_it_counts_then_the_metrics_are_told_once() -> None:
    told = []

    class Aggregator:
        def record(self, *what: object) -> None:
            told.append(what)

    data = built(0) + built(1)
    part = batches_of(data, metrics=Aggregator())
    part.take(ALL)
    part.drain()
    assert told == [(PARTITION, len(data), 2)]


# Damage


def flipped(data: bytes, at: int = -1) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 0x40
    return bytes(damaged)


def error_of(part: PartitionBatches) -> CorruptRecordError:
    with pytest.raises(CorruptRecordError) as caught:
        part.take(ALL)
    assert not part
    return caught.value


@pytest.mark.parametrize(
    "damaged",
    [flipped(built(2, 2)), flipped(built(2, 2), 16), built(2, 2)[:8] + b"\xff" + built(2, 2)[9:]],
    ids=["records", "magic", "negative length"],
)
def test_damage_when_sound_batches_are_around_it_then_those_before_come_first_and_the_error_tells_the_next(
    damaged: bytes,
) -> None:
    part = batches_of(built(0, 2) + damaged + built(7))
    assert last_offsets(part) == [1]
    error = error_of(part)
    assert (error.topic_partition, error.offset, error.next_offset) == (PARTITION, 2, 7)
    assert error.position == len(built(0, 2))


@pytest.mark.parametrize(
    ("batch", "next_offset"),
    [
        (built(5, 3), 8),
        (built(5, 3, last_offset=11), None),  # as compacted, or damaged there: who knows
        (built(5, 3, last_offset=2**31), None),
    ],
)
def test_damage_when_nothing_sound_is_behind_it_then_its_header_tells_the_next_if_it_agrees_with_itself(
    batch: bytes, next_offset: int | None
) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        batches_of(flipped(batch), 5)
    assert (caught.value.offset, caught.value.next_offset) == (5, next_offset)


def test_damage_when_a_wrapper_is_behind_it_then_its_first_record_is_the_next() -> None:
    """Case 29: the header of a wrapper has its last offset only."""
    part = batches_of(wrapper(0) + flipped(wrapper(3)) + wrapper(6))
    assert last_offsets(part) == [2]
    error = error_of(part)
    assert (error.offset, error.next_offset) == (3, 6)


def test_damage_when_a_length_is_too_large_then_the_fetch_that_begins_there_tells_where_to_go_on() -> None:
    damaged = flipped(built(0), 9)
    part = batches_of(built(5) + damaged + built(9))
    assert last_offsets(part) == [5]
    assert not part
    with pytest.raises(CorruptRecordError, match="topic-3 at offset 6: batch not whole") as caught:
        batches_of(damaged + built(9), 6)
    assert caught.value.next_offset == 9


def test_damage_when_all_in_front_of_it_is_left_out_then_the_position_moves_to_it_first() -> None:
    part = batches_of(end_marker(10, commit=True) + flipped(built(11)), 10)
    assert (part.take(ALL), part.next_fetch_offset, bool(part)) == ([], 11, True)
    assert error_of(part).offset == 11


def test_damage_when_the_batch_to_trim_cannot_be_opened_then_it_is_told_likewise() -> None:
    """The CRC holds, the records are no zstd."""
    batch = bytearray(built(0, 3))
    batch[22] |= kf.Codec.ZSTD
    set_producer_state(batch, -1, -1, -1)
    with pytest.raises(CorruptRecordError, match="topic-3 at offset 1") as caught:
        batches_of(bytes(batch) + built(3), 1)
    assert caught.value.next_offset == 3
    whole = batches_of(bytes(batch), 1, PLAIN._replace(trims_first_batch=False))
    assert last_offsets(whole) == [2]


# Aborted transactions, against kafka-python's own reading


class Log:
    """Random transactions of some producers, one behind the other of each, and among each other."""

    def __init__(self, chance: random.Random) -> None:
        self.data: list[bytes] = []
        self.aborted: list[tuple[Aborted, int]] = []  # and the offset of the marker
        self.end = 0
        open_from: dict[int, int] = {}
        for _ in range(chance.randrange(30)):
            producer_id = chance.randrange(3)
            if chance.random() < 0.3 and producer_id in open_from:
                commit = chance.random() < 0.5
                if not commit:
                    self.aborted.append((Aborted(producer_id, open_from[producer_id]), self.end))
                self._append_marker(producer_id, commit=commit)
                del open_from[producer_id]
            elif chance.random() < 0.2:
                self._append(chance.randrange(1, 4), producer_id=7 if chance.random() < 0.5 else -1)
            else:
                open_from.setdefault(producer_id, self.end)
                self._append(chance.randrange(1, 4), producer_id=producer_id, is_transactional=True)

    def _append(self, count: int, producer_id: int, **options: Any) -> None:
        state = (
            {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
        )
        self.data.append(built(self.end, count, **state, **options))
        self.end += count

    def _append_marker(self, producer_id: int, *, commit: bool) -> None:
        builder = kf.RecordBatchBuilder(
            base_offset=self.end,
            producer_id=producer_id,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
        builder.append_end_transaction_marker(DAY, commit=commit)
        self.data.append(builder.build())
        self.end += 1

    def fetched(self, offset: int) -> tuple[bytes, list[Aborted]]:
        """What a broker answers: from the batch on that has the offset, and the aborted transactions that reach it."""
        data = b"".join(
            batch for batch in self.data if next(kf.MemoryRecords(batch).batches()).last_offset >= offset
        )
        return data, [aborted for aborted, marker in self.aborted if marker >= offset]


def offsets_by_kafka_python(data: bytes, offset: int, aborted: Sequence[Aborted]) -> list[int]:
    part = Fetcher.PartitionRecords(
        offset,
        PARTITION,
        kafka.record.MemoryRecords(data),
        isolation_level=IsolationLevel.READ_COMMITTED,
        aborted_transactions=aborted,
    )
    return [record.offset for record in part.take(ALL)]


def test_abort_marker_when_its_producer_has_no_open_transaction_then_leaves_nothing_out() -> None:
    """Case 22: such a marker is ignored, before a transaction of its producer and after it."""
    state = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data = [
        end_marker(0, commit=False),
        built(1, **state),
        end_marker(2, commit=False),
        end_marker(3, commit=False),
        built(4, **state),
        end_marker(5, commit=True),
        end_marker(6, commit=False),
        built(7),
    ]
    assert last_offsets(batches_of(b"".join(data), aborted=[Aborted(7, 1)])) == [4, 7]


def test_markers_when_they_are_kept_then_come_without_the_batches_of_aborted_transactions() -> None:
    state = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    data = [
        built(0, **state),
        end_marker(1, commit=False),
        built(2, **state),
        end_marker(3, commit=True),
    ]
    options = PLAIN._replace(keeps_control_batches=True)
    assert last_offsets(batches_of(b"".join(data), options=options, aborted=[Aborted(7, 0)])) == [1, 2, 3]


@pytest.mark.parametrize("number", range(60))
def test_committed_records_are_those_that_kafka_python_finds_in_the_same_bytes(
    seed: int, number: int
) -> None:
    log = Log(random.Random(seed + number))
    for offset in range(log.end):
        data, aborted = log.fetched(offset)
        random.Random(offset).shuffle(aborted)
        runs = batches_of(data, offset, aborted=aborted).take(ALL)
        batches = [kf.RecordBatch(run, row) for run in runs for row in range(len(run))]
        found = [record.offset for batch in batches for record in batch]
        assert found == offsets_by_kafka_python(data, offset, aborted)
