"""Segments of a log that overlap: every reader hands out each offset once, and none is lost."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kafkafmt.log import LogAppender, LogTail, PartitionLog, Segment, overlaps
from kafkafmt.log.open_readers import read_memory
from kafkafmt.log.overlaps import SegmentEnds
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.records.file import FileRecords
from kafkafmt.types import TopicPartition
from log.samples import DAY, batch, batches, name, put_segment
from log.test_reader import offsets, reader_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As a compaction leaves it that was killed: the last segments are stale, and end before the merged one."""
    folder = tmp_path / "orders-0"
    put_segment(folder, 0, batches(0, 30, 5))
    put_segment(folder, 10, batches(10, 20, 5))
    put_segment(folder, 20, batches(20, 25, 5))
    return folder


def test_end_offset_when_last_segment_ends_before_others_then_is_highest_end(folder: Path) -> None:
    assert PartitionLog(folder).end_offset == 30
    assert PartitionLog(folder).closed_end_offset() == 30
    assert LogTail(folder).end_offset == 30
    assert reader_of(folder).end_offset == 30


@pytest.mark.parametrize("start", range(0, 31, 3))
def test_reader_when_last_segment_ends_before_others_then_all_offsets_come_once(
    folder: Path, start: int
) -> None:
    reader = reader_of(folder)
    reader.seek(start)
    assert [offset for offset in offsets(reader) if offset >= start] == list(range(start, 30))


@pytest.mark.parametrize("offset", range(30))
def test_find_when_nearest_segment_does_not_hold_offset_then_finds_where_it_is(
    folder: Path, offset: int
) -> None:
    found = PartitionLog(folder).find_offset(offset)
    assert found is not None
    assert (found.segment.base_offset, found.position) == (0, _position(folder, offset))
    followed = LogTail(folder).find(offset)
    assert followed is not None
    assert (followed.segment.segment.base_offset, followed.position) == (0, _position(folder, offset))


def _position(folder: Path, offset: int) -> int:
    size = (folder / name(20)).stat().st_size
    return offset // 5 * size


@pytest.mark.parametrize("start", [0, 12, 22, 27])
def test_log_when_segments_overlap_then_batches_and_records_come_once(folder: Path, start: int) -> None:
    log = PartitionLog(folder)
    assert [record.offset for record in log.records(start)] == list(range(start, 30))
    assert [batch.base_offset for batch in log.batches(start)] == list(range(start // 5 * 5, 30, 5))


def test_timestamps_when_last_segment_ends_before_others_then_are_found(folder: Path) -> None:
    for log in (PartitionLog(folder), LogTail(folder)):
        assert log.find_timestamp(DAY + 27) == (DAY + 27, 27)
    assert LogTail(folder).find_max_timestamp() == (DAY + 29, 29)


def test_timestamp_when_only_what_is_not_read_of_a_segment_has_it_then_is_not_found(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, [*batches(0, 10, 5), batch(18, 2)])  # compaction removed 10 to 17
    put_segment(tmp_path, 10, [batch(10, 5, timestamp=DAY + 99), *batches(15, 30, 5)])
    for log in (PartitionLog(tmp_path), LogTail(tmp_path)):
        assert log.find_timestamp(DAY + 30) is None
    assert LogTail(tmp_path).find_max_timestamp() == (DAY + 29, 29)


def test_last_segment_when_it_grows_past_others_then_what_is_behind_them_is_read(folder: Path) -> None:
    reader = reader_of(folder)
    assert offsets(reader) == list(range(30))
    with (folder / name(20)).open("ab") as file:
        file.write(b"".join(batches(25, 40, 5)))
    reader.refresh()
    assert offsets(reader) == list(range(30, 40))
    assert LogTail(folder).end_offset == PartitionLog(folder).end_offset == 40


def test_appender_when_last_segment_ends_before_others_then_goes_on_behind_them(folder: Path) -> None:
    with LogAppender(folder) as log:
        assert log.next_offset == 30
        log.append(batches(30, 35, 5)[0])
    assert offsets(reader_of(folder)) == list(range(35))


def test_end_of_a_closed_segment_when_a_read_failed_then_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, cache = PartitionLog(folder), SegmentCache()

    def fail(segment: Segment) -> int:
        raise OSError(f"{segment}: read failed")

    with monkeypatch.context() as failing:
        failing.setattr(Segment, "find_next_offset", fail)
        assert cache.segment_ends.read_segments(log.segments()).first_offsets == [0, 10, 20]
    assert cache.segment_ends.read_segments(log.segments()).first_offsets == [0]


def test_ends_of_closed_segments_when_a_log_is_followed_then_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "orders-0"
    for base_offset in range(0, 100, 10):
        put_segment(folder, base_offset, batches(base_offset, base_offset + 10, 5))
    read: list[int] = []
    whole = PartitionLog.segments.__globals__["Segment"].find_next_offset

    def counted(segment):  # type: ignore[no-untyped-def]
        read.append(segment.base_offset)
        return whole(segment)

    monkeypatch.setattr("kafkafmt.log.segment.Segment.find_next_offset", counted)
    cache = SegmentCache()
    log = LogTail(folder, cache)
    assert sorted(read) == list(range(0, 90, 10))
    for base_offset in (100, 110):
        put_segment(folder, base_offset, batches(base_offset, base_offset + 10, 5))
        log.refresh()
    reader = LogReader(
        TopicPartition("orders", 0),
        folder,
        cache,
        read_memory(),
        is_committed=False,
        keeps_control_batches=False,
    )
    assert offsets(reader) == list(range(120))
    assert sorted(read) == list(range(0, 110, 10))
    assert all(first < second for first, second in pairwise(sorted(read)))


def test_ends_of_overlapping_segments_when_they_have_indexes_then_only_their_last_batches_are_read_and_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, merged = len(batch(0, 5, size=5000)), batches(0, 30, 5, size=5000)
    entries = [(5 * number + 4, number * size) for number in range(1, 6)]
    put_segment(folder, 0, merged, index=entries)
    read: list[int] = []
    whole = FileRecords.read_at

    def counted(records: FileRecords, position: int, *arguments: Any) -> Any:
        if records.path == folder / name(0):
            read.append(position)
        return whole(records, position, *arguments)

    monkeypatch.setattr(FileRecords, "read_at", counted)
    ends, log = SegmentEnds(), PartitionLog(folder)
    assert ends.read_segments(log.segments()).first_offsets == [0]
    assert min(read) == 3 * size
    read.clear()
    assert ends.read_segments(log.segments()).first_offsets == [0]
    assert not read


def test_ends_when_another_thread_forgets_the_log_while_they_are_found_then_are_returned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(folder, 0, batches(0, 30, 5))
    put_segment(folder, 20, batches(20, 40, 5))
    ends, intact_end = SegmentEnds(), overlaps._intact_end

    def forgotten(segment: Segment, stamp: Any) -> Any:
        ends.keep(())
        return intact_end(segment, stamp)

    monkeypatch.setattr(overlaps, "_intact_end", forgotten)
    assert ends.read_segments(PartitionLog(folder).segments()).first_offsets == [0, 30]


def test_overlaps_when_their_segments_are_deleted_then_are_forgotten(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends, log = SegmentEnds(warns=True), PartitionLog(folder)
    for _ in range(2):
        ends.read_segments(log.segments())
    assert len(caplog.messages) == 2
    for segment in log.segments()[1:]:
        segment.path.unlink()
    ends.read_segments(log.segments())
    assert ends._logged == {folder: set()}
    ends.keep(())
    assert (ends._known, ends._logged) == ({}, {})
