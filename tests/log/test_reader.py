"""A log read on from any offset hands out what is behind it, once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
import reference as ref
from _kafkafmt.batches.producer_state import set_producer_state
from kafkafmt.log import LogAppender, PartitionLog
from kafkafmt.log.cut import LogCut
from kafkafmt.log.gaps import SourceDamage
from kafkafmt.log.open_readers import read_memory
from kafkafmt.log.open_segment import READ_BYTES
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment import SegmentRecords
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.time_range import TimeRange
from kafkafmt.types import Isolation, TopicPartition
from log.samples import DAY, batch, batches, malformed_marker, marker, moved, put_segment, transactional

PARTITION = TopicPartition("t", 0)


def reader_of(folder: Path, *, is_committed: bool = False, keeps_control_batches: bool = False) -> LogReader:
    return LogReader(
        PARTITION,
        folder,
        SegmentCache(),
        read_memory(),
        is_committed=is_committed,
        keeps_control_batches=keeps_control_batches,
    )


def offsets(reader: LogReader, end_offset: int | None = None) -> list[int]:
    """Those of all records that it hands out from where it is."""
    found: list[int] = []
    while True:
        read = reader.read(reader.end_offset if end_offset is None else end_offset)
        if read is None:
            return found
        assert not isinstance(read, SourceDamage)
        for number in range(len(read)):
            found += [record.offset for record in kf.RecordBatch(read, number)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


@pytest.mark.parametrize("start", [0, 1, 9, 10, 13, 49, 50])
def test_read_when_begun_anywhere_then_all_records_from_there(folder: Path, start: int) -> None:
    with LogAppender(folder) as log:
        for first in range(0, 50, 10):
            log.append(batch(first, 10))
    reader = reader_of(folder)
    reader.seek(start)
    assert offsets(reader) == list(range(start, 50))


def test_read_when_bounded_then_what_is_behind_comes_when_the_bound_is_lifted(folder: Path) -> None:
    with LogAppender(folder) as log:
        for first in range(0, 50, 10):
            log.append(batch(first, 10))
    reader = reader_of(folder)
    assert offsets(reader, 20) == list(range(20))
    assert offsets(reader) == list(range(20, 50))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_read_when_the_bound_is_within_a_batch_or_wrapper_then_that_comes_whole(
    folder: Path, magic: int
) -> None:
    folder.mkdir()
    fields = {"magic": magic, "codec": kf.Codec.GZIP, "timestamp": -1 if magic == 0 else None}
    put_segment(folder, 0, batches(0, 50, 10, **fields))
    reader = reader_of(folder)
    assert offsets(reader, 15) == list(range(20))
    reader.seek(0)
    assert offsets(reader, 5) == list(range(10))
    assert offsets(reader, 30) == list(range(10, 30))


def test_read_when_bounded_in_bytes_then_runs_are_as_small_or_one_batch(folder: Path) -> None:
    with LogAppender(folder) as log:
        for first in range(0, 50, 10):
            log.append(batch(first, 10))
    size = len(batch(0, 10))
    reader = reader_of(folder)
    counts = []
    while (run := reader.read(50, 2 * size + 1)) is not None:
        assert not isinstance(run, SourceDamage)
        counts.append(len(run))
        reader.rest()
    assert counts == [2, 2, 1]
    reader.seek(0)
    first = reader.read(50, 1)
    assert first is not None
    assert not isinstance(first, SourceDamage)
    assert len(first) == 1


def test_read_when_begun_within_a_batch_then_it_is_trimmed_or_whole(folder: Path) -> None:
    with LogAppender(folder) as log:
        log.append(batch(0, 10))
    for trims, expected in ((True, 7), (False, 0)):
        reader = LogReader(
            PARTITION,
            folder,
            SegmentCache(),
            read_memory(),
            is_committed=False,
            keeps_control_batches=False,
            trims_first_batch=trims,
        )
        reader.seek(7)
        run = reader.read(10)
        assert run is not None
        assert not isinstance(run, SourceDamage)
        assert int(run.index["base_offset"][0]) == expected
        assert reader.offset == 10


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_read_when_begun_within_a_batch_or_wrapper_then_no_record_below_comes(
    folder: Path, magic: int, codec: kf.Codec
) -> None:
    """Case 38. The header of a wrapper does not tell its first offset."""
    fields = {"magic": magic, "codec": codec, "timestamp": -1 if magic == 0 else None}
    put_segment(folder, 0, batches(0, 30, 10, **fields))
    put_segment(folder, 30, batches(30, 50, 10, **fields))
    reader = reader_of(folder)
    for start in (0, 7, 10, 19, 25, 30, 34, 49):
        reader.seek(start)
        assert offsets(reader) == list(range(start, 50))
    (folder.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 37\n")
    assert offsets(reader_of(folder)) == list(range(37, 50))


def test_read_when_wrappers_follow_each_other_then_each_comes_whole_however_often_it_is_opened(
    folder: Path,
) -> None:
    data = batches(0, 50, 10, magic=1, codec=kf.Codec.GZIP)
    put_segment(folder, 0, data[:3])
    put_segment(folder, 30, data[3:])
    reader = reader_of(folder)
    read = []
    while (run := reader.read(50, 1)) is not None:
        assert not isinstance(run, SourceDamage)
        read.append(bytes(run.batch(0)))
        reader.rest()
    assert read == data


def test_read_when_segments_overlap_within_a_wrapper_then_each_offset_comes_once(folder: Path) -> None:
    fields = {"magic": 1, "codec": kf.Codec.GZIP}
    put_segment(folder, 0, batches(0, 10, 5, **fields))
    put_segment(folder, 7, batches(7, 17, 5, **fields))
    assert offsets(reader_of(folder)) == list(range(17))


def test_read_when_a_wrapper_follows_damage_then_it_comes_whole(folder: Path) -> None:
    data = batches(0, 30, 10, magic=1, codec=kf.Codec.GZIP)
    damaged = bytearray(data[0])
    damaged[-1] ^= 1
    put_segment(folder, 0, [bytes(damaged), *data[1:]])
    reader = reader_of(folder)
    damage = reader.read(30)
    assert isinstance(damage, SourceDamage)
    assert (damage.offset, damage.next_offset) == (0, 10)
    reader.rest()
    assert offsets(reader) == list(range(10, 30))


def test_read_when_begun_within_a_wrapper_that_cannot_be_decompressed_then_it_comes_whole(
    folder: Path,
) -> None:
    unreadable = ref.message(1, 9, DAY, None, b"no gzip", attributes=ref.GZIP)
    put_segment(folder, 0, [unreadable, *batches(10, 20, 10, magic=1)])
    reader = reader_of(folder)
    reader.seek(7)
    run = reader.read(20)
    assert run is not None
    assert not isinstance(run, SourceDamage)
    assert bytes(run.batch(0)) == unreadable


@pytest.mark.parametrize("is_cut", [False, True])
def test_read_when_a_batch_that_is_begun_or_ended_within_cannot_be_opened_then_it_is_damage(
    folder: Path, is_cut: bool
) -> None:
    unreadable = bytearray(batch(0, 10))
    unreadable[22] |= kf.Codec.GZIP
    set_producer_state(unreadable, -1, -1, -1)  # the CRC matches
    put_segment(folder, 0, [bytes(unreadable), batch(10, 10)])
    reader = reader_of(folder)
    if is_cut:
        reader.end_at(LogCut(7, {}))
    else:
        reader.seek(7)
    damage = reader.read(20)
    assert isinstance(damage, SourceDamage)
    assert (damage.offset, damage.next_offset) == ((0, 7) if is_cut else (7, 10))
    assert str(folder) in damage.message
    assert offsets(reader) == ([] if is_cut else list(range(10, 20)))


def test_read_when_a_gap_comes_before_an_empty_last_segment_then_ends_there(folder: Path) -> None:
    """Compaction has removed tombstones at the end of the segment before."""
    put_segment(folder, 0, [batch(0, 5)])
    put_segment(folder, 8, [])
    reader = reader_of(folder)
    assert offsets(reader) == list(range(5))
    assert reader.offset == reader.end_offset == 8
    with LogAppender(folder) as log:
        log.append(batch(8, 5))
    reader.refresh()
    assert offsets(reader) == list(range(8, 13))


def test_read_when_committed_then_an_open_transaction_comes_once_it_has_ended(folder: Path) -> None:
    with LogAppender(folder) as log:
        log.append(batch(0, 3))
        log.append(transactional(3, 7))
        log.append(batch(4, 3))
        reader = reader_of(folder, is_committed=True)
        assert offsets(reader) == [0, 1, 2]
        log.append(marker(7, 7, commit=True))
        reader.refresh()
        assert offsets(reader) == [3, 4, 5, 6]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_read_when_segments_before_the_next_one_are_gone_then_tells_of_deleted_offsets_alone(
    folder: Path, is_deleted: bool
) -> None:
    """Retention deletes from the log's start; compaction leaves the start where it was."""
    with LogAppender(folder, segment_bytes=1) as log:
        for first in range(0, 50, 10):
            log.append(batch(first, 10))
    gone: list[tuple[int, int]] = []
    reader = LogReader(
        PARTITION,
        folder,
        SegmentCache(),
        read_memory(),
        is_committed=False,
        keeps_control_batches=False,
        on_gone=lambda *offsets: gone.append(offsets),
    )
    assert offsets(reader, 10) == list(range(10))
    for base_offset in (0, 10, 20) if is_deleted else (10, 20):
        for path in folder.glob(f"{base_offset:020}.*"):
            path.unlink()
    assert offsets(reader) == list(range(30, 50))
    assert gone == ([(10, 30)] if is_deleted else [])


def read_all(
    reader: LogReader, most_bytes: int = READ_BYTES
) -> tuple[list[int], list[tuple[int, int | None]]]:
    """The offsets of all records that it hands out, and the bounds of all damage that it reports."""
    found: list[int] = []
    damaged: list[tuple[int, int | None]] = []
    while (read := reader.read(reader.end_offset, most_bytes)) is not None:
        if isinstance(read, SourceDamage):
            assert "expected" in read.message
            damaged.append((read.offset, read.next_offset))
            continue
        for number in range(len(read)):
            found += [record.offset for record in kf.RecordBatch(read, number)]
    return found, damaged


@pytest.mark.parametrize("base_offset", [5, 25, 40, 1000, 2**40, 2**63 - 1])
@pytest.mark.parametrize("has_next", [True, False])
def test_read_when_the_base_offset_of_a_batch_is_damaged_then_it_alone_is_missing_and_told(
    folder: Path, base_offset: int, has_next: bool
) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], base_offset), *found[2:]])
    if has_next:
        put_segment(folder, 50, [batch(50, 10)])
    end = 60 if has_next else 50
    assert read_all(reader_of(folder)) == ([*range(10), *range(20, end)], [(10, 20)])


@pytest.mark.parametrize("base_offset", [11, 25, 35, 40, 100_000, 2**30, 2**40])
def test_read_when_the_base_offset_of_the_last_batch_is_damaged_then_the_later_segments_are_read(
    folder: Path, base_offset: int
) -> None:
    put_segment(folder, 0, [batch(0, 10), moved(batch(10, 10), base_offset)])
    put_segment(folder, 20, [batch(20, 10)])
    put_segment(folder, 30, [batch(30, 10)])
    assert read_all(reader_of(folder)) == ([*range(10), *range(20, 40)], [(10, 20)])


@pytest.mark.parametrize("last_offset_delta", [10, 15, 19, 1000])
def test_read_when_the_last_offset_of_a_segment_is_damaged_then_the_later_segments_are_read(
    folder: Path, last_offset_delta: int
) -> None:
    """The end of a segment is found by headers, so the batch may seem to have the offsets of later segments."""
    damaged = bytearray(batch(10, 10))
    damaged[23:27] = last_offset_delta.to_bytes(4, "big")
    put_segment(folder, 0, [batch(0, 10), bytes(damaged)])
    put_segment(folder, 20, [batch(20, 10)])
    put_segment(folder, 30, [batch(30, 10)])
    assert read_all(reader_of(folder)) == ([*range(10), *range(20, 40)], [(10, 20)])
    records = PartitionLog(folder).records()
    assert [next(records).offset for _ in range(10)] == list(range(10))
    with pytest.raises(kf.CorruptRecordError):
        next(records)
    assert [record.offset for record in PartitionLog(folder).records(20)] == list(range(20, 40))


@pytest.mark.parametrize("base_offset", [3, 21, 35, 45, 1000])
def test_read_when_the_only_base_offset_of_a_segment_is_damaged_then_the_later_segments_are_read(
    folder: Path, base_offset: int
) -> None:
    put_segment(folder, 0, batches(0, 20, 10))
    put_segment(folder, 20, [moved(batch(20, 10), base_offset)])
    put_segment(folder, 30, [batch(30, 10)])
    put_segment(folder, 40, [batch(40, 10)])
    assert read_all(reader_of(folder)) == ([*range(20), *range(30, 50)], [(20, 30)])


@pytest.mark.parametrize("end_offset", [None, 25, 40])
@pytest.mark.parametrize("base_offset", [25, 35, 1000])
def test_records_when_the_last_base_offset_of_a_segment_is_damaged_then_is_an_error_and_hides_no_segment(
    folder: Path, base_offset: int, end_offset: int | None
) -> None:
    put_segment(folder, 0, [batch(0, 10), moved(batch(10, 10), base_offset)])
    put_segment(folder, 20, [batch(20, 10)])
    put_segment(folder, 30, [batch(30, 10)])
    records = PartitionLog(folder).records(0, end_offset)
    assert [next(records).offset for _ in range(10)] == list(range(10))
    with pytest.raises(kf.InvalidRecordError, match=f"expected less than 20, .* found {base_offset}"):
        next(records)
    assert [record.offset for record in PartitionLog(folder).records(20)] == list(range(20, 40))


@pytest.mark.parametrize("is_last", [True, False])
def test_read_when_the_first_base_offset_of_a_segment_is_damaged_then_it_alone_is_missing_and_told(
    folder: Path, is_last: bool
) -> None:
    """It seems to be below the segment, as if an earlier one had it."""
    put_segment(folder, 0, batches(0, 20, 10))
    rest = [] if is_last else [batch(30, 10)]
    os.utime(put_segment(folder, 20, [moved(batch(20, 10), 3), *rest]), (1, 1))  # no broker is writing it
    expected = [*range(20), *range(30, 30 if is_last else 40)], [(20, None if is_last else 30)]
    assert read_all(reader_of(folder)) == expected


def test_read_when_a_batch_with_a_damaged_base_offset_was_returned_then_the_rest_is_told_to_be_missing(
    folder: Path,
) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], 30), *found[2:]])
    assert read_all(reader_of(folder), 1) == ([*range(10), *range(30, 40)], [(40, None)])


@pytest.mark.parametrize("base_offset", [45, 1000])
@pytest.mark.parametrize("is_changed", [False, True])
def test_read_when_a_damaged_base_offset_follows_damage_then_the_batches_after_both_are_read(
    folder: Path, base_offset: int, is_changed: bool
) -> None:
    found = batches(0, 60, 10)
    damaged = bytearray(moved(found[1], 1000))
    damaged[-1] ^= is_changed
    put_segment(folder, 0, [found[0], bytes(damaged), moved(found[2], base_offset), *found[3:]])
    assert read_all(reader_of(folder)) == ([*range(10), *range(30, 60)], [(10, 30)])


@pytest.mark.parametrize("most_bytes", [1, READ_BYTES])
@pytest.mark.parametrize(
    "size", [100, READ_BYTES // 15, READ_BYTES // 5]
)  # a read has all batches, one, or a part
def test_read_when_a_damaged_base_offset_is_after_the_end_of_the_read_then_it_is_no_end(
    folder: Path, most_bytes: int, size: int
) -> None:
    found = batches(0, 50, 10, size=size)
    put_segment(folder, 0, [found[0], moved(found[1], 35), *found[2:]])
    reader = reader_of(folder)
    reader.end_at(LogCut(30, {}))
    assert read_all(reader, most_bytes) == ([*range(10), *range(20, 30)], [(10, 20)])


def test_read_when_a_segment_ends_with_damage_and_the_next_one_overlaps_it_then_that_is_read(
    folder: Path,
) -> None:
    damaged = bytearray(batch(20, 5))
    damaged[-1] ^= 1
    put_segment(folder, 0, [*batches(0, 20, 5), bytes(damaged)])
    put_segment(folder, 10, batches(10, 40, 5))
    assert read_all(reader_of(folder)) == ([*range(40)], [])


def test_read_when_such_a_segment_lacks_the_damaged_offsets_then_they_are_told_to_be_missing(
    folder: Path,
) -> None:
    damaged = bytearray(batch(20, 5))
    damaged[-1] ^= 1
    put_segment(folder, 0, [*batches(0, 20, 5), bytes(damaged)])
    put_segment(folder, 10, [*batches(10, 20, 5), *batches(30, 40, 5)])
    assert read_all(reader_of(folder)) == ([*range(20), *range(30, 40)], [(20, 30)])


@pytest.mark.parametrize("count", [20, 20_000])
def test_log_when_the_last_base_offset_is_too_low_then_it_is_not_the_end(folder: Path, count: int) -> None:
    contents = b"".join(batches(0, count, size=1))
    path = put_segment(folder, 0, [contents, moved(batch(count, size=1), 3)])
    os.utime(path, (1, 1))  # no broker is writing it
    reader = reader_of(folder)
    assert reader.end_offset == count
    assert read_all(reader) == ([*range(count)], [(count, None)])
    message = f"expected {count} or more, found 3 .batch at position {len(contents)}"
    with pytest.raises(kf.InvalidRecordError, match=message):
        PartitionLog(folder).end_offset  # noqa: B018


@pytest.mark.parametrize("size", [1000, 5000])  # an index entry for a few batches, or for each
def test_log_when_it_has_an_index_and_the_last_base_offset_is_too_low_then_it_is_not_the_end(
    folder: Path, size: int
) -> None:
    with LogAppender(folder) as log:
        for offset in range(100):
            log.append(batch(offset, size=size))
    (path,) = folder.glob("*.log")
    data = path.read_bytes()
    last = len(data) - len(batch(99, size=size))
    path.write_bytes(data[:last] + moved(data[last:], 3))
    os.utime(path, (1, 1))  # no broker is writing it
    assert read_all(reader_of(folder)) == ([*range(99)], [(99, None)])
    with pytest.raises(kf.InvalidRecordError, match="expected 99 or more, found 3 "):
        PartitionLog(folder).end_offset  # noqa: B018


def test_log_when_a_base_offset_near_its_end_is_too_high_then_it_is_not_the_end(folder: Path) -> None:
    found = batches(0, 60, 10, size=40_000)  # each is read alone
    size = len(found[0])
    entries = [(10 * number + 9, number * size) for number in range(1, 6)]
    path = put_segment(folder, 0, [*found[:3], moved(found[3], 5000), *found[4:]], index=entries)
    os.utime(path, (1, 1))  # no broker is writing it
    reader = reader_of(folder)
    assert reader.end_offset == 60
    assert read_all(reader) == ([*range(30), *range(40, 60)], [(30, 40)])


def test_records_when_a_batch_with_a_damaged_base_offset_was_read_alone_then_no_later_segment_is_hidden(
    folder: Path,
) -> None:
    found = batches(0, 40, 10, size=120_000)
    put_segment(folder, 0, [found[0], moved(found[1], 100_000), *found[2:]])
    put_segment(folder, 40, [batch(40, 10)])
    put_segment(folder, 50, [batch(50, 10)])
    read = [one.offset for one in PartitionLog(folder).records()]
    assert [offset for offset in read if offset < 100_000] == [*range(10), *range(20, 60)]


def test_records_when_a_damaged_base_offset_seems_to_be_at_their_end_then_is_an_error(folder: Path) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], 35), *found[2:]])
    with pytest.raises(kf.InvalidRecordError, match="expected less than 40, found 35 "):
        [*PartitionLog(folder).records(0, 40)]


def test_read_when_a_damaged_base_offset_seems_to_be_the_last_of_the_log_then_it_alone_is_missing_and_told(
    folder: Path,
) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], 40), *found[2:]])
    assert read_all(reader_of(folder), 1) == ([*range(10), *range(20, 50)], [(10, 20)])


def test_read_when_it_begins_after_the_records_of_a_wrapper_with_a_damaged_offset_then_all_are_read(
    folder: Path,
) -> None:
    found = batches(0, 50, 10, magic=0, codec=kf.Codec.GZIP, timestamp=-1)
    put_segment(folder, 0, [found[0], moved(found[1], 24), *found[2:]])
    reader = reader_of(folder)
    reader.seek(22)
    assert read_all(reader) == ([*range(22, 50)], [])


@pytest.mark.parametrize("base_offset", [35, 1000])
@pytest.mark.parametrize("magic", [0, 1])
def test_records_when_their_end_is_in_a_wrapper_after_one_with_a_damaged_offset_then_is_an_error(
    folder: Path, magic: int, base_offset: int
) -> None:
    """The header of the next wrapper has its last offset, which is after the end."""
    fields = {"magic": magic, "codec": kf.Codec.GZIP, "timestamp": -1 if magic == 0 else None}
    found = batches(0, 50, 10, **fields)
    put_segment(folder, 0, [found[0], moved(found[1], base_offset + 9), *found[2:]])
    with pytest.raises(kf.InvalidRecordError, match=f"expected less than 22, found {base_offset + 9} "):
        [*PartitionLog(folder).records(0, 22)]
    assert [one.offset for one in PartitionLog(folder).records(0, 5)] == [*range(5)]


@pytest.mark.parametrize("end_offset", [20, 30])
def test_records_when_a_base_offset_after_their_end_is_too_low_then_all_come(
    folder: Path, end_offset: int
) -> None:
    found = batches(0, 60, 10)
    number = end_offset // 10 + 1
    put_segment(folder, 0, [*found[:number], moved(found[number], 3), *found[number + 1 :]])
    assert [one.offset for one in PartitionLog(folder).records(0, end_offset)] == [*range(end_offset)]


def test_records_when_a_large_batch_is_after_their_end_then_it_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_segment(folder, 0, [batch(0), batch(10), batch(11, size=20_000_000)])
    read_at, sizes = SegmentRecords.read_at, list[int]()

    def noted(self: SegmentRecords, position: int, size: int, memory: bytearray | None = None) -> Any:
        sizes.append(size)
        return read_at(self, position, size, memory)

    monkeypatch.setattr(SegmentRecords, "read_at", noted)
    assert [one.offset for one in PartitionLog(folder).records(0, 5)] == [0]
    assert sum(sizes) < 4_000_000


@pytest.mark.parametrize("run_bytes", [1, len(batch(0, 10)) * 2, READ_BYTES])
def test_runs_when_a_damaged_base_offset_is_after_the_end_then_is_an_error_and_not_the_end(
    folder: Path, run_bytes: int
) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], 1000), *found[2:]])
    runs = PartitionLog(folder).runs(0, 50, run_bytes=run_bytes)
    assert next(runs).index["last_offset"].tolist() == [9]
    with pytest.raises(kf.InvalidRecordError, match="expected less than 50, found 1000"):
        next(runs)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_records_when_a_damaged_base_offset_is_after_the_end_then_is_an_error_and_not_the_end(
    folder: Path, isolation: Isolation
) -> None:
    found = batches(0, 50, 10)
    put_segment(folder, 0, [found[0], moved(found[1], 1000), *found[2:]])
    records = PartitionLog(folder).records(0, 50, isolation=isolation)
    assert [next(records).offset for _ in range(10)] == list(range(10))
    with pytest.raises(
        kf.InvalidRecordError, match="offsets of a log ascend: expected less than 50, found 1000"
    ):
        next(records)


def test_read_when_a_marker_is_malformed_then_it_is_damage_between_the_records(folder: Path) -> None:
    parts = [transactional(0, 1, 2), malformed_marker(2, 1), batch(3, 2), marker(5, 1, commit=True), batch(6)]
    path = put_segment(folder, 0, parts)
    reader = reader_of(folder, is_committed=True)
    assert offsets(reader, 2) == [0, 1]
    damage = reader.read(reader.end_offset)
    assert isinstance(damage, SourceDamage)
    assert (damage.offset, damage.next_offset) == (2, 3)
    assert str(path) in damage.message
    assert f"position {len(parts[0])}" in damage.message
    assert offsets(reader) == [3, 4, 6]
    assert offsets(reader_of(folder)) == [0, 1, 3, 4, 6]  # without regard to transactions


def test_read_when_a_transaction_with_a_malformed_marker_is_open_then_the_damage_ends_the_records(
    folder: Path,
) -> None:
    path = put_segment(folder, 0, [batch(0, 2), transactional(2, 1, 2), malformed_marker(4, 1), batch(5)])
    reader = reader_of(folder, is_committed=True)
    assert read_all(reader) == ([0, 1], [(2, 2)])
    with path.open("ab") as file:
        file.write(marker(6, 1, commit=True) + batch(7))
    reader.refresh()
    assert offsets(reader) == [2, 3, 5, 7]


def test_read_when_a_malformed_marker_was_returned_as_damage_then_it_is_no_batch_later(folder: Path) -> None:
    path = put_segment(folder, 0, [transactional(0, 1, 2), malformed_marker(2, 1), batch(3)])
    reader = reader_of(folder, is_committed=True, keeps_control_batches=True)
    assert read_all(reader) == ([], [(0, 0)])
    with path.open("ab") as file:
        file.write(marker(4, 1, commit=True))
    reader.refresh()
    runs = []
    while (run := reader.read(reader.end_offset)) is not None:
        assert not isinstance(run, SourceDamage)
        runs += run.index["base_offset"].tolist()
    assert runs == [0, 3, 4]


def test_bound_when_a_malformed_marker_keeps_records_before_the_end_out_then_it_is_damage(
    folder: Path,
) -> None:
    put_segment(folder, 0, [batch(0, 2), transactional(2, 1, 2), malformed_marker(4, 1), batch(5), batch(6)])
    reader = reader_of(folder, is_committed=True)
    reader.bound(TimeRange(None, DAY + 6), skips_damage=False)
    assert reader.held_by is None
    assert reader.read(reader.end_offset) is not None
    assert reader.held_by is not None
    assert reader.held_by.offset == 4
    assert read_all(reader) == ([], [(2, 2)])
    assert reader.held_by is None
    within = reader_of(folder, is_committed=True)  # record 2 is before the end
    within.bound(TimeRange(None, DAY + 3), skips_damage=False)
    assert read_all(within) == ([0, 1], [(2, 2)])
