"""Finding offsets and timestamps in a segment: the answer never depends on what its indexes say."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kafkafmt as kf
import reference as ref
from kafkafmt.log import Segment, SegmentRecords, find_damage
from log.samples import DAY, batch, batches, entries, name, positions, put_segment, real_segments

BASE = 1000
STOP = 1400
INTERVAL = 500


def timestamps(offset: int) -> int:
    """Mostly ascending, with outliers: what a topic with late and early records has."""
    return DAY + offset * 10 + (3000 if offset % 97 == 0 else -250 if offset % 7 == 0 else 0)


def contents() -> list[bytes]:
    """Batches of 1 to 4 records with gaps of every kind between them."""
    result, offset = [], BASE
    while offset < STOP:
        count = 1 + offset % 4
        builder = kf.RecordBatchBuilder(base_offset=offset, last_offset=offset + count)
        for number in range(count):
            builder.append(timestamps(offset + number), None, bytes(40))
        result.append(builder.build())
        offset += count + 1 + (5 if offset % 11 == 0 else 0)
    return result


def good_indexes(data: list[bytes]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Entries by Kafka's rule, written the slow way."""
    offset_entries, time_entries = [], []
    position = last_position = 0
    highest, at = -1, 0
    for one in data:
        (parsed,) = kf.MemoryRecords(one).batches()
        if parsed.max_timestamp > highest:
            highest, at = parsed.max_timestamp, parsed.last_offset - BASE
        if position - last_position > INTERVAL:
            offset_entries.append((parsed.last_offset - BASE, position))
            if not time_entries or highest > time_entries[-1][0]:
                time_entries.append((highest, at))
            last_position = position
        position += len(one)
    if not time_entries or highest > time_entries[-1][0]:
        time_entries.append((highest, at))
    return offset_entries, time_entries


DATA = contents()
OFFSET_ENTRIES, TIME_ENTRIES = good_indexes(DATA)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return put_segment(tmp_path, BASE, DATA, index=OFFSET_ENTRIES, time_index=TIME_ENTRIES)


def expected_positions() -> dict[int, int | None]:
    """For every offset the position of the batch that Kafka's search would return."""
    result: dict[int, int | None] = {}
    for offset in range(BASE - 2, STOP + 10):
        position = 0
        result[offset] = None
        for one in DATA:
            (parsed,) = kf.MemoryRecords(one).batches()
            if parsed.last_offset >= offset:
                result[offset] = position
                break
            position += len(one)
    return result


EXPECTED = expected_positions()
RECORDS = [(record.timestamp, record.offset) for one in DATA for record in kf.MemoryRecords(one).records()]
WANTED_TIMESTAMPS = sorted({t + d for t, _ in RECORDS for d in (-1, 0, 1)} | {0, DAY})[::7]


def assert_all_found(path: Path) -> None:
    segment = Segment(path)
    assert {offset: segment.find_offset(offset) for offset in EXPECTED} == EXPECTED
    assert segment.find_next_offset() == next(kf.MemoryRecords(DATA[-1]).batches()).next_offset
    for wanted in WANTED_TIMESTAMPS:
        assert segment.find_timestamp(wanted) == next((one for one in RECORDS if one[0] >= wanted), None)


def test_offsets_and_timestamps_are_found_by_good_indexes(path: Path) -> None:
    assert len(Segment(path).offset_index) == len(OFFSET_ENTRIES) > 20
    assert len(Segment(path).time_index) == len(TIME_ENTRIES) > 3
    assert_all_found(path)


def test_search_with_an_index_reads_a_small_part_of_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(0, 2000, size=2000)
    size = len(data[0])
    index = [(number, sum(map(len, data[:number]))) for number in range(2, 2000, 2)]
    path = put_segment(tmp_path, 0, data, index=index, time_index=[(DAY + n, n) for n, _ in index])
    read = []

    original = SegmentRecords.read_at

    def counting(self: SegmentRecords, position: int, size: int, *rest: Any) -> memoryview | bytes:
        read.append(size)
        return original(self, position, size, *rest)

    monkeypatch.setattr(SegmentRecords, "read_at", counting)
    assert Segment(path).find_offset(1500) == index[749][1]
    assert Segment(path).find_timestamp(DAY + 1900) == (DAY + 1900, 1900)
    assert Segment(path).find_next_offset() == 2000
    assert sum(read) < 2000 * size / 4


WrongIndexes = Callable[[list[tuple[int, int]]], list[tuple[int, int]]]

WRONG: dict[str, WrongIndexes] = {
    "empty": lambda _: [],
    "in reverse": lambda good: good[::-1],
    "without its first half": lambda good: good[len(good) // 2 :],
    "all one entry": lambda good: [good[3]] * len(good),
    "keys too low": lambda good: [(key - 7, value) for key, value in good],
    "keys too high": lambda good: [(key + 7, value) for key, value in good],
    "keys far too high": lambda good: [(key + 2**30, value) for key, value in good],
    "negative keys": lambda good: [(-key, value) for key, value in good],
    "values too low": lambda good: [(key, value - 1) for key, value in good],
    "values too high": lambda good: [(key, value + 1) for key, value in good],
    "values past the end": lambda good: [(key, value + 2**30) for key, value in good],
    "negative values": lambda good: [(key, -value) for key, value in good],
    "values of the entry behind": lambda good: [(good[i][0], good[i + 1][1]) for i in range(len(good) - 1)],
    "values of the entry before": lambda good: [(good[i + 1][0], good[i][1]) for i in range(len(good) - 1)],
    "values of the last entry": lambda good: [(key, good[-1][1]) for key, _ in good],
    "zeros in the middle": lambda good: [*good[:5], (0, 0), *good[6:]],
    "preallocated": lambda good: [*good, *[(0, 0)] * 1000],
    "all zeros": lambda good: [(0, 0)] * len(good),
    "random": lambda good: [
        (random.Random(i).randrange(400), random.Random(-i).randrange(40_000)) for i in range(50)
    ],
}


@pytest.mark.parametrize("how", WRONG)
def test_offset_index_that_is_wrong_changes_no_answer(path: Path, how: str) -> None:
    put_segment(path.parent, BASE, DATA, index=WRONG[how](OFFSET_ENTRIES))
    assert_all_found(path)


@pytest.mark.parametrize("how", WRONG)
def test_time_index_that_is_wrong_changes_no_answer(path: Path, how: str) -> None:
    put_segment(path.parent, BASE, DATA, time_index=WRONG[how](TIME_ENTRIES))
    assert_all_found(path)


def test_time_index_without_its_last_entries_changes_no_answer(path: Path) -> None:
    for kept in range(len(TIME_ENTRIES)):
        put_segment(path.parent, BASE, DATA, time_index=TIME_ENTRIES[:kept])
        segment = Segment(path)
        highest = max(RECORDS)[0]
        assert segment.find_timestamp(highest) == next(one for one in RECORDS if one[0] == highest)
        assert segment.find_timestamp(highest + 1) is None


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_index_of_any_bytes_changes_no_answer(path: Path, data: st.DataObject) -> None:
    put_segment(path.parent, BASE, DATA, index=OFFSET_ENTRIES, time_index=TIME_ENTRIES)
    good = {suffix: path.with_suffix(suffix).read_bytes() for suffix in (".index", ".timeindex")}
    for suffix, held in good.items():
        first = data.draw(st.integers(0, len(held)))
        middle = data.draw(st.binary(max_size=64))
        path.with_suffix(suffix).write_bytes(
            held[:first] + middle + held[data.draw(st.integers(0, len(held))) :]
        )
    segment = Segment(path)
    for offset in data.draw(st.lists(st.sampled_from(sorted(EXPECTED)), max_size=10)):
        assert segment.find_offset(offset) == EXPECTED[offset]
    for wanted in data.draw(st.lists(st.sampled_from(WANTED_TIMESTAMPS), max_size=10)):
        assert segment.find_timestamp(wanted) == next((one for one in RECORDS if one[0] >= wanted), None)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_that_is_missing_torn_unreadable_or_a_folder_changes_no_answer(path: Path, suffix: str) -> None:
    index = path.with_suffix(suffix)
    data = index.read_bytes()
    index.write_bytes(data[:-5])
    assert_all_found(path)
    index.write_bytes(data[:3])
    assert_all_found(path)
    index.unlink()
    assert_all_found(path)
    index.mkdir()
    assert_all_found(path)


def test_index_that_points_at_a_batch_inside_a_value_is_not_followed(tmp_path: Path) -> None:
    hidden = batch(7, 3)
    builder = kf.RecordBatchBuilder()
    builder.append(DAY, None, bytes(300))
    builder.append(DAY, None, hidden)
    outer = builder.build()
    data = [outer, *batches(2, 20)]
    # A copy of a batch, with the right CRC, and offsets that fit: its header alone would do.
    path = put_segment(tmp_path, 0, data, index=[(9, outer.index(hidden))])
    assert Segment(path).find_offset(12) == positions(path)[12]


def test_index_entries_of_many_batches_appended_at_once_are_followed(tmp_path: Path) -> None:
    data = batches(0, 60, 2)
    size = len(data[0])
    path = put_segment(tmp_path, 0, data, index=[(29, 10 * len(data[10]) - 10 * (len(data[10]) - size))])
    # The entry says the last offset of the append and the position of its first batch.
    for offset in range(60):
        assert Segment(path).find_offset(offset) == positions(path)[offset]


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_are_found_by_last_offset(tmp_path: Path, magic: int, codec: kf.Codec) -> None:
    data = [batch(offset, 3, magic=magic, codec=codec) for offset in range(0, 90, 5)]
    starts = np.cumsum([0, *map(len, data)])
    index = [(i * 5 + 2, int(starts[i])) for i in range(3, 18, 3)]
    path = put_segment(tmp_path, 0, data, index=index, time_index=[(DAY + 47, 47)])
    segment = Segment(path)
    held = positions(path)
    for offset in range(88):
        assert segment.find_offset(offset) == held[min(o for o in held if o >= offset)]
    assert segment.find_offset(88) is None
    assert segment.find_timestamp(DAY + 48) == ((DAY + 50, 50) if magic == 1 else None)
    assert segment.find_timestamp(DAY + 2) == ((DAY + 2, 2) if magic == 1 else None)


def test_timestamp_in_a_batch_that_only_claims_it_is_looked_for_behind(tmp_path: Path) -> None:
    claims = ref.batch_of([ref.Row(0, DAY, None, b"v")], max_timestamp=DAY + 5)
    emptied = ref.batch(b"", 0, base_offset=1, last_offset_delta=3, max_timestamp=DAY + 5)
    data = [claims, emptied, batch(5, 2, timestamp=DAY), batch(7, 1, timestamp=DAY + 9)]
    assert Segment(put_segment(tmp_path, 0, data)).find_timestamp(DAY + 1) == (DAY + 9, 7)


def test_time_entry_that_cannot_be_reached_is_not_needed_for_what_is_before(tmp_path: Path) -> None:
    data = [batch(0, timestamp=DAY), b"\xff" * 50, batch(1, timestamp=DAY)]
    path = put_segment(tmp_path, 0, data, time_index=[(DAY - 5, 1)])
    assert Segment(path).find_timestamp(DAY - 1) == (DAY, 0)
    with pytest.raises(kf.CorruptRecordError):
        Segment(path).find_timestamp(DAY + 1)


def test_append_time_is_what_a_timestamp_search_sees(tmp_path: Path) -> None:
    fields = {"timestamp_type": kf.TimestampType.LOG_APPEND_TIME}
    data = [batch(0, 3, log_append_time=DAY, **fields), batch(3, 3, log_append_time=DAY + 60, **fields)]
    assert Segment(put_segment(tmp_path, 0, data)).find_timestamp(DAY + 1) == (DAY + 60, 3)


def test_damage_in_the_batch_a_search_needs_is_told_with_its_file(tmp_path: Path) -> None:
    data = batches(0, 10)
    broken = bytearray(data[4])
    broken[-1] ^= 1
    path = put_segment(tmp_path, 0, [*data[:4], broken, *data[5:]])
    with pytest.raises(kf.CorruptRecordError, match="CRC") as caught:
        Segment(path).find_timestamp(DAY + 4)
    assert (caught.value.path, caught.value.position) == (str(path), sum(map(len, data[:4])))
    assert Segment(path).find_offset(7) == sum(map(len, data[:7]))  # headers are whole


def test_active_segment_with_a_torn_end_is_read_to_the_last_whole_batch(tmp_path: Path) -> None:
    """Case 30."""
    data, torn = batches(0, 5), batch(5)
    for size in range(1, len(torn)):
        path = put_segment(tmp_path, 0, [*data, torn[:size]])
        with Segment(path, is_active=True).open() as records:
            assert [one.offset for one in records.records()] == [0, 1, 2, 3, 4]
        assert Segment(path, is_active=True).find_next_offset() == 5
        with (
            Segment(path).open() as records,
            pytest.raises(kf.CorruptRecordError, match=r"part of one|zeros") as caught,
        ):
            list(records.records())
        assert caught.value.position == sum(map(len, data))
        assert caught.value.path == str(path)


@pytest.mark.parametrize("zeros", [1, 11, 12, 17, 18, 100_000, 3_000_000])
def test_active_segment_with_a_tail_of_zeros_is_read_to_the_last_whole_batch(
    tmp_path: Path, zeros: int
) -> None:
    """Case 30."""
    data = batches(0, 5)
    path = put_segment(tmp_path, 0, [*data, bytes(zeros)])
    active = Segment(path, is_active=True)
    with active.open() as records:
        assert len(records.index()) == 5
    assert active.find_next_offset() == 5
    assert active.find_offset(5) is None
    assert active.find_timestamp(DAY + 5) is None
    with Segment(path).open() as records, pytest.raises(kf.CorruptRecordError, match=f"{zeros} zeros"):
        records.index()


def test_length_that_reaches_past_the_end_in_front_of_valid_batches_is_damage(tmp_path: Path) -> None:
    data = batches(0, 5)
    lying = bytearray(data[2])
    struct.pack_into(">i", lying, 8, 1_000_000)
    path = put_segment(tmp_path, 0, [*data[:2], lying, *data[3:]])
    with Segment(path, is_active=True).open() as records:
        with pytest.raises(kf.CorruptRecordError, match="past the end") as caught:
            list(records.batches())
        assert caught.value.position == len(data[0]) * 2
        assert records.position_after(caught.value) == len(data[0]) * 3


def test_damaged_length_when_values_are_longs_then_no_incomplete_batch_at_the_end(tmp_path: Path) -> None:
    """Otherwise a repair would cut off the sound batches after it."""
    data = []
    for number in range(60):
        builder = kf.RecordBatchBuilder(base_offset=number * 4000)
        for value in range(4000):
            builder.append(DAY, None, struct.pack(">q", value * 536_869))
        data.append(bytearray(builder.build()))
    data[10][8] ^= 0x40
    path = put_segment(tmp_path, 0, data)
    with Segment(path, is_active=True).open() as records:
        with pytest.raises(kf.CorruptRecordError, match="past the end"):
            list(records.batches())
        (damage,) = find_damage(records)
    assert (damage.kind, damage.position) == ("corrupt", 10 * len(data[0]))
    assert damage.end_position == 11 * len(data[0])


@pytest.mark.parametrize("left_over", [0, 1, 30])
def test_file_that_is_cut_while_it_is_read_ends_there(tmp_path: Path, left_over: int) -> None:
    data = batches(0, 5)
    size = len(data[0])
    path = put_segment(tmp_path, 0, data)
    with Segment(path, is_active=True).open() as active, Segment(path).open() as rolled:
        path.write_bytes(b"".join(data)[: 2 * size + left_over])
        assert len(active.index()) == 2
        with pytest.raises(kf.CorruptRecordError, match="part of one"):
            rolled.index()


def test_part_of_a_segment_is_read_without_a_look_at_its_end(tmp_path: Path) -> None:
    data = batches(0, 5)
    size = len(data[0])
    path = put_segment(tmp_path, 0, [*data, b"torn"])
    with Segment(path).open(size, 3 * size + 5) as records:
        assert [one.base_offset for one in records.batches()] == [1, 2]


@pytest.mark.parametrize(
    "path", real_segments(), ids=lambda path: f"{path.parent.name}/{path.stem.lstrip('0') or 0}"
)
def test_segment_of_a_real_broker_gives_the_same_answers_with_its_indexes_and_without(
    path: Path, tmp_path: Path
) -> None:
    bare = tmp_path / name(int(path.stem))
    bare.write_bytes(path.read_bytes())
    indexed, scanned = Segment(path, is_active=True), Segment(bare, is_active=True)
    with kf.FileRecords(path) as records:
        rows = [(record.timestamp, record.offset) for record in records.records(control=True)]
    assert len(indexed.offset_index) == len(entries(path, ".index"))
    assert len(indexed.time_index) == len(entries(path, ".timeindex"))
    assert indexed.find_next_offset() == scanned.find_next_offset()
    for offset in range(indexed.base_offset, indexed.find_next_offset() + 2, 5):
        assert indexed.find_offset(offset) == scanned.find_offset(offset)
    for wanted in sorted({timestamp for timestamp, _ in rows if timestamp >= 0})[::9]:
        expected = next(one for one in rows if one[0] >= wanted)
        assert indexed.find_timestamp(wanted) == scanned.find_timestamp(wanted) == expected
