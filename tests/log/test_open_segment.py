"""A segment that stays open: batches whose soundness is remembered, against what reading them anew tells."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kafkafmt as kf
from kafkafmt._util.steps import finish
from kafkafmt.log import Segment, SegmentRecords, open_segment
from kafkafmt.log.open_segment import OpenSegment
from log.samples import batch, batches, put_segment

COUNT = 24
DATA = [batch(offset, 2, size=40 + 30 * (offset % 5)) for offset in range(0, 2 * COUNT, 2)]
STARTS = [sum(map(len, DATA[:number])) for number in range(COUNT + 1)]
END = STARTS[-1]


def opened(path: Path) -> OpenSegment:
    return OpenSegment(Segment(path), max_decompressed_bytes=1 << 20)


def plain_sound_end(broken: set[int], start: int, end: int) -> int | None:
    """By the numbers of the broken batches; None: the batch at `start` is one of them."""
    for number in range(start, COUNT):
        if STARTS[number + 1] > end:
            break
        if number in broken:
            return None if number == start else STARTS[number]
    return end


@settings(max_examples=150, deadline=None)
@given(
    st.sets(st.integers(0, COUNT - 1), max_size=3),
    st.lists(
        st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT), st.integers(0, 60)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([200, 1000, 1 << 18]),
    st.sampled_from([2, 1024]),
)
def test_sound_end_in_any_order_is_that_of_a_plain_check(
    broken: set[int], asked: list[tuple[int, int, int]], read_bytes: int, most_ranges: int
) -> None:
    data = [bytearray(one) for one in DATA]
    for number in broken:
        data[number][-1] ^= 1
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_segment, "READ_BYTES", read_bytes)
        patch.setattr(open_segment, "_MOST_RANGES", most_ranges)
        segment = opened(put_segment(Path(folder), 0, map(bytes, data)))
        for start, length, more in asked:
            # Of the batch that an end is within it is not asked whether it is sound.
            end = min(STARTS[min(start + max(length, 1), COUNT)] + more, END)
            expected = plain_sound_end(broken, start, end)
            if expected is None:
                with pytest.raises(kf.CorruptRecordError) as caught:
                    finish(segment.sound_end_steps(STARTS[start], end))
                assert caught.value.position == STARTS[start]
            else:
                assert finish(segment.sound_end_steps(STARTS[start], end)) == expected
        segment.records.close()


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("place", [11, 12, 16, -1], ids=["length", "CRC or epoch", "magic", "last byte"])
def test_sound_end_when_any_part_of_a_batch_is_damaged_then_in_front_of_it(
    tmp_path: Path, magic: int, number: int, place: int
) -> None:
    data = [bytearray(batch(offset, magic=magic)) for offset in range(6)]
    data[number][place] ^= 0x40
    position = sum(map(len, data[:number]))
    if magic == 2 and place == 12:  # the partition leader epoch, which is not under the CRC
        position = sum(map(len, data))
    path = put_segment(tmp_path, 0, map(bytes, data))
    segment = opened(path)
    end = path.stat().st_size
    if position:
        assert finish(segment.sound_end_steps(0, end)) == position
    else:
        with pytest.raises(kf.KafkaFormatError) as caught:
            finish(segment.sound_end_steps(0, end))
        assert (caught.value.path, caught.value.position) == (str(path), 0)


def test_sound_end_of_what_was_checked_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = opened(put_segment(tmp_path, 0, DATA))
    assert finish(segment.sound_end_steps(STARTS[4], STARTS[9])) == STARTS[9]
    assert finish(segment.sound_end_steps(STARTS[9], STARTS[12])) == STARTS[12]
    monkeypatch.setattr(SegmentRecords, "read_at", None)
    for start in range(4, 12):
        for stop in range(start + 1, 13):
            assert finish(segment.sound_end_steps(STARTS[start], STARTS[stop])) == STARTS[stop]


def test_sound_end_within_a_batch_when_it_was_found_before_then_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = opened(put_segment(tmp_path, 0, DATA))
    for end in (STARTS[9] + 1, STARTS[10] - 1):
        assert finish(segment.sound_end_steps(STARTS[4], end)) == end
    monkeypatch.setattr(SegmentRecords, "read_at", None)
    for end in range(STARTS[9] + 1, STARTS[10]):
        assert finish(segment.sound_end_steps(STARTS[4], end)) == end


def test_offset_bound_is_above_all_in_front_of_a_position(tmp_path: Path) -> None:
    segment = opened(put_segment(tmp_path, 0, DATA))
    assert segment.offset_bound(STARTS[5]) is None
    for number in (3, 9, 20):
        finish(segment.sound_end_steps(STARTS[number], STARTS[number + 2]))
    for number, position in enumerate(STARTS):
        bound = segment.offset_bound(position)
        assert bound is None or bound >= 2 * number
    assert segment.offset_bound(STARTS[11]) == 22


def test_batch_size_is_told_of_whole_batches_alone(tmp_path: Path) -> None:
    segment = opened(put_segment(tmp_path, 0, DATA))
    assert segment.batch_size(STARTS[3], STARTS[4]) == len(DATA[3])
    assert segment.batch_size(STARTS[3], STARTS[4] - 1) is None
    assert segment.batch_size(END, END) is None


def test_batch_that_is_larger_than_what_is_read_at_a_time_is_found(tmp_path: Path) -> None:
    large = batch(1, size=5 << 20)
    segment = opened(put_segment(tmp_path, 0, [batch(0), large, batch(2)]))
    for offset, position in ((2, len(batch(0)) + len(large)), (1, len(batch(0))), (0, 0)):
        row = finish(segment.find_steps(offset, segment.records.end_position))
        assert row is not None
        assert row["position"] == position
    assert finish(segment.find_steps(3, segment.records.end_position)) is None


def test_what_is_passed_over_is_remembered_within_bounds(tmp_path: Path) -> None:
    segment = opened(put_segment(tmp_path, 0, batches(0, 3)))
    for number in range(1000):
        segment.remember_passed((1, number), number)
        assert segment.passed[1, number] == number
    assert len(segment.passed) <= 256
