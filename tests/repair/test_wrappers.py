"""Compressed message sets of formats v0 and v1: their headers have the last offset only."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
import reference as ref
from kafkafmt.jobs.repair import repair
from log.samples import DAY, batch, batches, moved, put_segment


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("segments", [[[0, 3, 6]], [[0, 3], [6]], [[0], [3, 6]]], ids=str)
def test_wrapper_when_it_is_corrupt_between_others_then_its_offsets_are_lost(
    tmp_path: Path, magic: int, segments: list[list[int]]
) -> None:
    for offsets in segments:
        wrappers = [bytearray(batch(offset, 3, magic=magic, codec=kf.Codec.GZIP)) for offset in offsets]
        if 3 in offsets:
            wrappers[offsets.index(3)][-1] ^= 1
        put_segment(tmp_path, offsets[0], wrappers)
    report = repair(tmp_path, None).partitions[0]
    assert [(one.kind, one.is_lost, one.first_offset, one.last_offset) for one in report.lost] == [
        ("corrupt", True, 3, 5)
    ]
    assert not report.is_lossless
    assert (report.first_offset, report.last_offset) == (0, 8)


def test_wrapper_when_its_offset_became_lower_than_those_in_it_then_it_ends_the_lost_range(
    tmp_path: Path,
) -> None:
    first, moved, last = (bytearray(batch(offset, 3, magic=0, codec=kf.Codec.GZIP)) for offset in (0, 30, 6))
    moved[:8] = (5).to_bytes(8, "big")
    put_segment(tmp_path, 0, [first, bytes(range(100, 160)), moved, last])
    (lost,) = repair(tmp_path, None).partitions[0].lost
    assert (lost.kind, lost.is_lost, lost.first_offset, lost.last_offset) == ("corrupt", True, 3, 4)


def test_log_when_its_last_segment_has_only_a_wrapper_that_no_segment_can_hold_then_an_empty_one_stays(
    tmp_path: Path,
) -> None:
    end = 2**40
    source, target = tmp_path / "source" / "t-0", tmp_path / "target" / "t-0"
    put_segment(source, 0, [bytes(range(100, 160))])
    put_segment(
        source, end, [ref.wrapper(0, ref.GZIP, [ref.Row(at, -1, None, b"value", ()) for at in (10, end)])]
    )
    report = repair(source, target).partitions[0]
    assert {(one.kind, one.is_lost) for one in report.lost} == {("corrupt", True), ("out of order", True)}
    assert [path.name for path in target.glob("*.log")] == [f"{end:020d}.log"]
    assert not repair(target, None).partitions[0].is_changed


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("removed", [{18, 19}, {14}, {*range(10, 20)}], ids=["last", "middle", "all"])
def test_compaction_when_it_was_killed_then_what_it_removed_from_wrappers_is_not_lost(
    tmp_path: Path, magic: int, removed: set[int]
) -> None:
    """The segment that it has written overlaps those that it has read. No header of a wrapper shows a gap."""

    def wrappers(first: int, stop: int, removed: set[int]) -> list[bytes]:
        found = []
        for base_offset in range(first, stop, 10):
            builder = kf.RecordBatchBuilder(magic, kf.Codec.GZIP, base_offset=base_offset)
            kept = [offset for offset in range(base_offset, base_offset + 10) if offset not in removed]
            for offset in kept:
                builder.append_with_offset(offset, DAY + offset if magic else -1, b"%d" % offset, b"value")
            found += [builder.build()] if kept else []
        return found

    put_segment(tmp_path, 0, wrappers(0, 30, removed))
    put_segment(tmp_path, 10, wrappers(10, 30, set()))
    report = repair(tmp_path, None).partitions[0]
    assert report.is_lossless
    assert {one.kind for one in report.lost} == {"duplicate"}
    assert (report.first_offset, report.last_offset) == (0, 29)


@pytest.mark.parametrize("magic", [0, 1])
def test_segment_when_a_damaged_wrapper_before_it_seems_to_have_its_offsets_then_it_is_not_a_duplicate(
    tmp_path: Path, magic: int
) -> None:
    """A compaction that was killed would have left a copy of some batch."""
    fields = {"magic": magic, "codec": kf.Codec.GZIP, "timestamp": -1 if magic == 0 else None}
    put_segment(
        tmp_path, 0, [batch(0, 10, **fields), batch(10, 10, **fields), moved(batch(20, 10, **fields), 61)]
    )
    put_segment(tmp_path, 30, batches(30, 60, 10, **fields))
    report = repair(tmp_path, None).partitions[0]
    assert not report.is_lossless
    assert any(one.is_lost for one in report.lost)
