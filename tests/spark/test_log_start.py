"""Offsets in segments that are not handed out: those below the log start, and those that another segment has."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyarrow import fs

from file_systems import BUCKET
from kafkafmt.log import PartitionLog, overlaps
from kafkafmt.log.checkpoints import CheckpointError
from kafkafmt.log.overlaps import find_readable_end
from log.samples import DAY, batches, put_segment
from log.test_log_start import PARTITION, start_at
from spark.growing import GrowingLog
from spark.reads import offsets, rows
from spark.test_log_stream import Query

TOPIC = PARTITION.topic


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Offsets 0 to 29 in batches of 5, a segment each 10."""
    for base in (0, 10, 20):
        put_segment(tmp_path / str(PARTITION), base, batches(base, base + 10, 5))
    return tmp_path / str(PARTITION)


def put_overlapping(folder: Path, *, index: bool = True) -> None:
    """What a compaction merged into the first segment, and left, of which the last part alone is of its own."""
    log = [(0, 0, 26), (10, 10, 18), (18, 18, 30)]
    for base, first, stop in log:
        found = batches(first, stop, 2)
        entries = [(first + 2 - base, len(found[0]))]
        put_segment(folder, base, found, index=entries if index else None)


@pytest.mark.parametrize("start", [1, 7, 10, 13, 29, 30, 99])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_records_when_below_the_log_start_then_are_not_read(
    folder: Path, tmp_path: Path, start: int, isolation: str
) -> None:
    start_at(start, tmp_path)
    wanted = list(range(start, 30))
    for path in (tmp_path, folder, f"{tmp_path}/*-0"):
        assert offsets(path, isolation=isolation) == wanted
    assert offsets(tmp_path, startingTimestamp=DAY, isolation=isolation) == wanted
    found = rows(tmp_path, unit="batches", columns="baseOffset,lastOffset", isolation=isolation)
    assert [row["lastOffset"] for row in found] == [one for one in (4, 9, 14, 19, 24, 29) if one >= start]
    assert offsets(tmp_path, fromSegmentStart="true") == list(range(30))
    (tmp_path / "log-start-offset-checkpoint").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match="expected a version, found 'no checkpoint'"):
        offsets(tmp_path)
    assert offsets(tmp_path, fromSegmentStart="true") == list(range(30))


def test_offset_when_below_the_log_start_then_is_outside_the_log(folder: Path, tmp_path: Path) -> None:
    start_at(7, tmp_path)
    with pytest.raises(ValueError, match="startingOffsets 5 is outside the log: the log has 7 to 30"):
        offsets(tmp_path, startingOffsets='{"t": {"0": 5}}')
    assert offsets(tmp_path, startingOffsets='{"t": {"0": 8}}') == list(range(8, 30))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_stream_when_the_log_start_rises_then_goes_on_there(
    folder: Path, tmp_path: Path, isolation: str
) -> None:
    start_at(13, tmp_path)
    query = Query(tmp_path, isolation=isolation, maxRowsPerTrigger=3)
    assert [offset for _, _, offset in query.trigger()] == [13, 14]
    start_at(21, tmp_path)
    behind = Query(tmp_path, query.reached, isolation=isolation, failOnDataLoss="false")
    assert behind.offsets() == list(range(21, 30))
    start_at(40, tmp_path)  # past the end: what comes next begins there
    later = Query(tmp_path, isolation=isolation)
    assert later.offsets() == []
    put_segment(folder, 40, batches(40, 44, 2))
    assert later.offsets() == [40, 41, 42, 43]


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_segments_when_they_overlap_then_each_offset_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, isolation: str, index: bool
) -> None:
    put_overlapping(tmp_path / str(PARTITION), index=index)
    with caplog.at_level(logging.WARNING):
        assert offsets(tmp_path, isolation=isolation) == list(range(30))
    told = [record.getMessage() for record in caplog.records]
    assert [one.partition(": offsets ")[2] for one in told] == [
        "10 to 17 are in a segment before it, too: left out",
        "18 to 25 are in a segment before it, too: left out",
    ]
    assert [one.offset for one in PartitionLog(tmp_path / str(PARTITION)).records()] == list(range(30))
    for first, end in ((0, 12), (11, 19), (17, 27), (25, 30), (26, 30)):
        bounds = {
            "startingOffsets": f'{{"t": {{"0": {first}}}}}',
            "endingOffsets": f'{{"t": {{"0": {end}}}}}',
        }
        assert offsets(tmp_path, isolation=isolation, **bounds) == list(range(first, end))
    assert offsets(tmp_path, startingTimestamp=DAY + 20, isolation=isolation) == list(range(20, 30))
    found = rows(tmp_path, unit="batches", columns="baseOffset")
    assert [row["baseOffset"] for row in found] == list(range(0, 30, 2))


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerTrigger": 4}, {"maxFilesPerTrigger": 1}])
def test_segments_when_they_overlap_then_a_stream_has_each_offset_once(
    tmp_path: Path, limit: Mapping[str, int]
) -> None:
    folder = tmp_path / str(PARTITION)
    put_overlapping(folder)
    put_segment(folder, 27, batches(27, 29, 1))  # within the one before it
    query = Query(tmp_path, **limit)
    found = [offset for rows in query.triggers() for _, _, offset in rows]
    assert found == list(range(30))
    put_segment(folder, 30, batches(30, 34, 2))
    assert [offset for rows in query.triggers() for _, _, offset in rows] == [30, 31, 32, 33]


def test_ends_of_segments_when_a_stream_knows_them_then_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = GrowingLog(tmp_path / "orders-0")
    looked: list[int] = []
    monkeypatch.setattr(
        overlaps,
        "find_readable_end",
        lambda one: looked.append(one.base_offset) or find_readable_end(one),
    )
    query = Query(tmp_path)
    for _ in range(4):
        log.append_batches()
        log.roll()
        query.trigger()
    assert looked == [0, 10, 20, 30]


def test_damage_when_at_the_end_of_a_segment_then_its_end_is_that_of_what_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / str(PARTITION)
    put_segment(folder, 0, [*batches(0, 10, 5), b"damage" * 20, *batches(10, 15, 5), b"damage"])
    put_segment(folder, 12, batches(12, 20, 2))
    assert offsets(tmp_path, onCorrupt="skip") == [*range(15), *range(15, 20)]


def test_remote_log_when_it_has_a_start_or_overlaps_then_is_read_as_a_local_one(
    folder: Path, tmp_path: Path, s3: fs.FileSystem, s3_options: Mapping[str, str]
) -> None:
    start_at(13, tmp_path)
    put_overlapping(tmp_path / "overlaps" / str(PARTITION))
    fs.copy_files(str(tmp_path), f"{BUCKET}/starts", destination_filesystem=s3)
    for path in (f"s3://{BUCKET}/starts", f"s3://{BUCKET}/starts/{PARTITION}"):
        assert offsets(path, **s3_options) == list(range(13, 30))
        assert offsets(path, fromSegmentStart="true", **s3_options) == list(range(30))
    overlaps = f"s3://{BUCKET}/starts/overlaps"
    with pytest.raises(
        ValueError, match=r"0\.log: offsets 10 to 2\d may be in the next segment, too.*checkOverlaps"
    ):
        offsets(overlaps, **s3_options)
    assert offsets(overlaps, checkOverlaps="true", **s3_options) == list(range(30))
