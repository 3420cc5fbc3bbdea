"""Records below the log start offset are deleted: no reader of a log hands them out, unless it is asked to."""

from __future__ import annotations

from pathlib import Path

import pytest

import kafkafmt as kf
from kafkafmt.log import LogDirectory, LogTail, PartitionLog
from kafkafmt.log.checkpoints import LOG_START_OFFSET_CHECKPOINT, CheckpointError, log_start_offsets_to_bytes
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.open_readers import read_memory
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.types import TopicPartition
from log.samples import DAY, batch, batches, marker, offsets, put_segment, transactional

PARTITION = TopicPartition("t", 0)


def start_at(offset: int, directory: Path) -> None:
    """As a broker does: by a rename."""
    temporary = directory / "checkpoint.tmp"
    temporary.write_bytes(log_start_offsets_to_bytes({PARTITION: offset}))
    temporary.rename(directory / LOG_START_OFFSET_CHECKPOINT)


def read_on(reader: LogReader) -> list[int]:
    found: list[int] = []
    while (run := reader.read(reader.end_offset)) is not None:
        assert not isinstance(run, SourceDamage)
        for number in range(len(run)):
            found += offsets(kf.RecordBatch(run, number))
    return found


def reader_of(folder: Path, **options: bool) -> LogReader:
    return LogReader(
        PARTITION,
        folder,
        SegmentCache(),
        read_memory(),
        is_committed=False,
        keeps_control_batches=False,
        **options,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Offsets 0 to 29 in batches of 5, a segment each 10."""
    folder = tmp_path / str(PARTITION)
    for base in (0, 10, 20):
        put_segment(folder, base, batches(base, base + 10, 5))
    return folder


@pytest.mark.parametrize("start", [0, 1, 5, 7, 10, 13, 29, 30])
def test_log_when_it_has_a_start_then_reads_begin_there(folder: Path, tmp_path: Path, start: int) -> None:
    start_at(start, tmp_path)
    log = PartitionLog(folder)
    assert (log.start_offset, log.end_offset) == (start, 30)
    assert offsets(log.records()) == list(range(start, 30))
    assert offsets(log.records(3, 25)) == list(range(max(start, 3), 25))
    assert all(found.last_offset >= start for found in log.batches())
    found = log.find_timestamp(DAY)
    assert (found and found.offset) == (start if start < 30 else None)
    position = log.find_offset(0)
    expected = None if start == 30 else (start // 10 * 10, start // 5 * 5)
    if position is not None:
        with position.segment.open(position.position) as records:
            assert (position.segment.base_offset, next(records.batches()).base_offset) == expected
    else:
        assert expected is None


def test_log_when_asked_from_the_segment_start_then_hands_out_all(folder: Path, tmp_path: Path) -> None:
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("no checkpoint")
    log = PartitionLog(folder, from_segment_start=True)
    assert (log.start_offset, offsets(log.records())) == (0, list(range(30)))
    log = LogDirectory(tmp_path).partition(PARTITION, from_segment_start=True)
    assert offsets(log.records()) == list(range(30))
    assert LogTail(folder, from_segment_start=True).start_offset == 0
    assert read_on(reader_of(folder, from_segment_start=True)) == list(range(30))


def test_log_when_the_checkpoint_is_malformed_then_nothing_is_handed_out(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_text("0\n1\nt zero 5\n")
    for read in (lambda: list(PartitionLog(folder).records()), lambda: LogTail(folder)):
        with pytest.raises(
            CheckpointError, match=r"log-start-offset-checkpoint: line 3: expected a partition"
        ):
            read()


def test_log_when_the_checkpoint_names_others_then_begins_at_its_first_segment(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / LOG_START_OFFSET_CHECKPOINT).write_bytes(
        log_start_offsets_to_bytes({TopicPartition("t", 1): 7, TopicPartition("u", 0): 8})
    )
    assert offsets(PartitionLog(folder).records()) == list(range(30))


def test_log_when_its_folder_is_opened_as_the_working_directory_then_has_its_start(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_at(7, tmp_path)
    monkeypatch.chdir(folder)
    assert offsets(PartitionLog(".").records()) == list(range(7, 30))
    assert offsets(LogDirectory(".").partition(PARTITION).records()) == list(range(7, 30))


def test_followed_log_when_records_are_deleted_then_its_start_rises_at_the_next_look(
    folder: Path, tmp_path: Path
) -> None:
    log = LogTail(folder)
    assert (log.start_offset, log.end_offset) == (0, 30)
    start_at(13, tmp_path)
    assert log.refresh()
    assert (log.start_offset, log.end_offset) == (13, 30)
    found = log.find(0)
    assert found is not None
    assert found.segment.segment.base_offset == 10
    assert not log.refresh()
    start_at(40, tmp_path)  # the log was cut off since: a broker goes on at the start, too
    assert log.refresh()
    assert (log.start_offset, log.end_offset, log.find(0)) == (40, 40, None)


def test_followed_log_when_timestamps_are_asked_for_then_deleted_records_have_none(tmp_path: Path) -> None:
    folder = tmp_path / str(PARTITION)
    put_segment(folder, 0, [batch(0, 5, timestamp=DAY + 900), batch(5, 5, timestamp=DAY + 100)])
    put_segment(folder, 10, [batch(10, 5, timestamp=DAY + 200)])
    log = LogTail(folder)
    assert log.find_max_timestamp() == (DAY + 900, 0)
    start_at(2, tmp_path)
    log.refresh()
    assert log.find_max_timestamp() == (DAY + 900, 2)
    assert log.find_timestamp(DAY) == (DAY + 900, 2)
    start_at(6, tmp_path)
    log.refresh()
    assert log.find_max_timestamp() == (DAY + 200, 10)
    assert log.find_timestamp(DAY) == (DAY + 100, 6)
    assert log.find_timestamp(DAY + 300) is None


def test_followed_log_when_a_transaction_is_open_below_the_start_then_the_stable_offset_is_not(
    tmp_path: Path,
) -> None:
    folder = tmp_path / str(PARTITION)
    put_segment(folder, 0, [transactional(0, 1, 3), batch(3, 5)])
    start_at(5, tmp_path)
    assert LogTail(folder).stable_offset == 5


@pytest.mark.parametrize("trims", [True, False])
def test_reader_when_the_log_has_a_start_then_begins_with_the_batch_that_holds_it(
    folder: Path, tmp_path: Path, trims: bool
) -> None:
    start_at(7, tmp_path)
    reader = reader_of(folder, trims_first_batch=trims)
    assert reader.offset == 7
    assert read_on(reader) == list(range(7 if trims else 5, 30))
    reader.seek(0)
    assert reader.offset == 7


def test_reader_when_records_are_deleted_in_front_of_it_then_goes_on_at_the_start(
    folder: Path, tmp_path: Path
) -> None:
    reader = reader_of(folder)
    start_at(13, tmp_path)
    reader.refresh()
    assert read_on(reader) == list(range(13, 30))


def test_aborted_transactions_when_they_began_below_the_start_then_are_known(tmp_path: Path) -> None:
    folder = tmp_path / str(PARTITION)
    put_segment(folder, 0, [transactional(0, 1, 5), marker(5, 1, commit=False), batch(6, 4)])
    start_at(3, tmp_path)
    (aborted,) = PartitionLog(folder).scan_aborted_transactions()
    assert (aborted.first_offset, aborted.last_offset) == (0, 5)
