"""Cutting segments into ranges: each from a batch's beginning to another's, whatever an index says."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import split_points
from kafkafmt.log.indexes import OffsetIndex
from log.samples import batch, batches, offsets, put_segment, real_segments

SIZE = len(batch(0, 5))


def index_of(segment: Path) -> OffsetIndex:
    return OffsetIndex.read(segment.with_suffix(".index"), int(segment.stem))


def index(base_offset: int, *entries: tuple[int, int]) -> OffsetIndex:
    return OffsetIndex.from_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries), base_offset)


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A hundred batches of the same size."""
    return put_segment(tmp_path / "a-0", 0, batches(0, 500, 5))


@pytest.mark.parametrize("segment", real_segments(), ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("split_bytes", [1, 1000, 5000, 2**20])
def test_ranges_when_real_segment_then_hold_its_records(
    segment: Path, with_index: bool, split_bytes: int
) -> None:
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, split_bytes, index_of(segment) if with_index else None)
        ends = [end for _, end in ranges]
        assert ranges == list(pairwise([0, *ends]))
        assert ends[-1:] == [records.size_in_bytes]
        found = []
        for start, end in ranges:
            with kf.FileRecords(segment, start, end) as part:
                found += offsets(part.records())
        assert found == offsets(records.records())


def test_ranges_when_no_index_then_first_batches_behind_each_target(segment: Path) -> None:
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, 10 * SIZE + 1)
    assert [start // SIZE for start, _ in ranges] == [0, 11, 22, 33, 44, 55, 66, 77, 88]
    assert all(start % SIZE == 0 for start, _ in ranges)


def test_ranges_when_rest_is_small_then_part_of_the_last(segment: Path) -> None:
    with kf.FileRecords(segment) as records:
        assert split_points(records, 80 * SIZE) == [(0, 100 * SIZE)]
        assert split_points(records, 60 * SIZE) == [(0, 60 * SIZE), (60 * SIZE, 100 * SIZE)]


def test_ranges_when_index_then_its_entries(segment: Path) -> None:
    entries = [(5 * number + 4, SIZE * number) for number in range(3, 100, 3)]
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, 20 * SIZE, index(0, *entries))
    assert [start // SIZE for start, _ in ranges] == [0, 18, 36, 54, 72]


@pytest.mark.parametrize(
    "entry",
    [(299, 59 * SIZE + 1), (1, 59 * SIZE), (299, 200 * SIZE)],
    ids=["inside a batch", "of another offset", "past the end"],
)
def test_ranges_when_index_lies_then_headers_decide(segment: Path, entry: tuple[int, int]) -> None:
    with kf.FileRecords(segment) as records:
        assert split_points(records, 60 * SIZE, index(0, entry)) == split_points(records, 60 * SIZE)


def test_ranges_when_index_names_a_batch_inside_a_value_of_another_offset_then_headers_decide(
    tmp_path: Path,
) -> None:
    builder = kf.RecordBatchBuilder(base_offset=10)
    builder.append(0, b"", batch(7, size=1000))
    inside = builder.build()
    segment = put_segment(tmp_path / "a-0", 10, [inside, *batches(11, 20)])
    position = inside.index(batch(7, size=1000))
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, position, index(10, (0, position)))
    assert position not in [start for start, _ in ranges]


def test_ranges_when_index_ends_early_then_headers_go_on(segment: Path) -> None:
    entries = [(5 * number + 4, SIZE * number) for number in range(3, 40, 3)]
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, 20 * SIZE, index(0, *entries))
    assert [start // SIZE for start, _ in ranges] == [0, 18, 36, 56, 76]


def test_ranges_when_damage_ends_the_chain_then_rest_is_one(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[50 * SIZE + 8 : 50 * SIZE + 12] = b"\xff\xff\xff\xff"
    segment.write_bytes(data)
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, 20 * SIZE)
    assert [(start // SIZE, end // SIZE) for start, end in ranges] == [(0, 20), (20, 40), (40, 100)]


def test_ranges_when_batches_are_large_then_each_its_own(tmp_path: Path) -> None:
    segment = put_segment(tmp_path / "a-0", 0, batches(0, 4, size=200_000))
    with kf.FileRecords(segment) as records:
        starts = records.index()["position"].tolist()
        assert [start for start, _ in split_points(records, 100)] == starts


def test_ranges_when_part_of_a_file_then_within_it(segment: Path) -> None:
    with kf.FileRecords(segment, 20 * SIZE, 60 * SIZE) as records:
        assert split_points(records, 20 * SIZE, index(0, (49, 9 * SIZE))) == [
            (20 * SIZE, 40 * SIZE),
            (40 * SIZE, 60 * SIZE),
        ]


def test_ranges_when_preallocated_then_zeros_are_of_the_last(tmp_path: Path) -> None:
    segment = put_segment(tmp_path / "a-0", 0, [*batches(0, 10), bytes(100_000)])
    with kf.FileRecords(segment) as records:
        ranges = split_points(records, 1000)
    assert ranges[-1][1] - ranges[-1][0] >= 100_000


def test_ranges_when_empty_then_none(tmp_path: Path) -> None:
    with kf.FileRecords(put_segment(tmp_path / "a-0", 0, [])) as records:
        assert split_points(records, 1) == []


def test_split_bytes_when_below_one_then_refused(segment: Path) -> None:
    with (
        kf.FileRecords(segment) as records,
        pytest.raises(ValueError, match="split_bytes: expected 1 or more"),
    ):
        split_points(records, 0)
