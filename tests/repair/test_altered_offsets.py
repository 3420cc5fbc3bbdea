"""Batches that are left out though their offsets are kept: by others, or by copies of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
from file_limits import free_descriptors
from kafkafmt.jobs.repair import PartitionReport, repair
from log.samples import DAY, batch, moved, put_segment


def compacted(base_offset: int, count: int, kept: set[int]) -> bytes:
    """A batch of which compaction left some records."""
    builder = kf.RecordBatchBuilder(base_offset=base_offset, last_offset=base_offset + count - 1)
    for offset in sorted(kept):
        builder.append_with_offset(offset, DAY + offset, offset.to_bytes(8, "big"), bytes(100))
    return builder.build()


def planned(folder: Path, *segments: list[bytes]) -> PartitionReport:
    for number, contents in enumerate(segments):
        put_segment(folder, number * 20, contents)
    return repair(folder, None).partitions[0]


@pytest.mark.parametrize(
    ("segments", "lost"),
    [
        ([[batch(0, 10), batch(10, 10)], [moved(batch(20, 10), 3)]], None),
        ([[batch(0, 10), batch(10, 10)], [batch(20, 10), moved(batch(30, 10), 3)]], None),
        ([[batch(0, 10), batch(10, 10), moved(batch(20, 10), 4)]], None),
        ([[batch(0, 10), moved(batch(10, 10), 0)], [batch(20, 10)]], (10, 19)),
        ([[batch(0, 10), moved(batch(10, 10), 20)], [batch(20, 10)]], (10, 19)),
        ([[moved(batch(0, 10), 20)], [batch(20, 10)]], None),
    ],
)
def test_batch_when_its_base_offset_became_that_of_others_then_is_lost_and_no_duplicate(
    tmp_path: Path, segments: list[list[bytes]], lost: tuple[int, int] | None
) -> None:
    report = planned(tmp_path, *segments)
    (one,) = report.lost
    assert (one.is_lost, one.records, one.first_offset) == (True, 10, lost and lost[0])
    assert one.kind != "duplicate"
    assert report.records == 10 * sum(map(len, segments)) - 10


@pytest.mark.parametrize(
    "segments",
    [
        [[batch(0, 10), batch(10, 10), batch(10, 10)]],
        [[batch(0, 10), batch(10, 10), batch(20, 10), batch(0, 10), batch(10, 10)]],
        [[batch(0, 10), batch(10, 10)], [batch(0, 10)]],
        # A compaction was killed before it deleted the segments that it had merged.
        [[batch(0, 10), compacted(20, 10, {22, 29})], [batch(20, 10)]],
        [[batch(0, 10), compacted(10, 10, {12}), compacted(20, 10, {22})], [batch(20, 10)], [batch(40, 5)]],
    ],
)
def test_batch_when_its_records_are_kept_then_is_a_duplicate_and_not_lost(
    tmp_path: Path, segments: list[list[bytes]]
) -> None:
    report = planned(tmp_path, *segments)
    assert report.is_lossless
    assert {one.kind for one in report.lost} == {"duplicate"}


def test_copies_when_they_are_more_than_a_process_may_open_then_each_is_a_duplicate(tmp_path: Path) -> None:
    segment = put_segment(tmp_path, 0, [batch(0, 10), batch(10, 10)])
    for number in range(40):
        segment.with_name(f"{segment.stem} copy {number}.log").write_bytes(segment.read_bytes())
    with free_descriptors(20):
        report = repair(tmp_path, None).partitions[0]
    assert [one.kind for one in report.lost] == ["duplicate"] * 40
