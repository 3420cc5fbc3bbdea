"""A log followed while it grows, is rolled, cut off, compacted and damaged: what is told is what is there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kafkafmt as kf
from kafkafmt._util.steps import finish
from kafkafmt.log import PartitionLog, PartitionLogWriter, SegmentRecords, SegmentWriter, open_segment
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.tail import LogTail
from log.samples import (
    DAY,
    LOGS,
    batch,
    batches,
    malformed_marker,
    marker,
    name,
    put_segment,
    transactional,
)

REAL_LOGS = sorted(path.name for path in LOGS.iterdir())
LONG_AGO_NS = 10_000_000_000


def append(folder: Path, base_offset: int, data: bytes) -> None:
    with (folder / name(base_offset)).open("ab") as file:
        file.write(data)


def age(path: Path) -> None:
    """As if nobody had written to it for a while."""
    then = time.time_ns() - LONG_AGO_NS
    os.utime(path, ns=(then, then))


def renew(path: Path) -> None:
    """As if somebody had written to it this instant, however long the machine stopped since."""
    then = time.time_ns() + LONG_AGO_NS
    os.utime(path, ns=(then, then))


def settle(folder: Path) -> None:
    """As if nothing had changed for a while."""
    for path in (*folder.glob("*.log"), folder):
        age(path)


def found_offsets(log: LogTail, start: int) -> list[int]:
    """The offsets of all records from `start` on, as a consumer gets them, batch by batch."""
    offsets: list[int] = []
    while (found := log.find(start)) is not None:
        data = os.pread(found.segment.records.fileno(), found.size, found.position)
        read = [record.offset for record in kf.MemoryRecords(data).records()]
        offsets += [offset for offset in read if offset >= start]
        start = read[-1] + 1
    return offsets


# Growth


def test_batches_are_there_one_by_one_as_they_are_appended(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, [])
    log = LogTail(tmp_path)
    assert (log.start_offset, log.end_offset, log.find(0)) == (0, 0, None)
    for offset in range(0, 30, 3):
        append(tmp_path, 0, batch(offset, 3))
        assert log.refresh()
        assert log.end_offset == offset + 3
        assert found_offsets(log, 0) == list(range(offset + 3))
        assert not log.refresh()


@pytest.mark.parametrize("codec", [kf.Codec.NONE, kf.Codec.GZIP])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_batch_that_comes_in_pieces_is_there_once_it_is_whole(
    tmp_path: Path, magic: int, codec: kf.Codec
) -> None:
    first, second = (batch(offset, 3, magic=magic, codec=codec, size=10) for offset in (0, 3))
    put_segment(tmp_path, 0, [first])
    log = LogTail(tmp_path)
    ends = []
    for byte in second:
        append(tmp_path, 0, bytes([byte]))
        log.refresh()
        ends.append(log.end_offset)
    assert set(ends[:-1]) <= {3, 4, 5}  # messages that stand alone are there one by one
    assert ends == sorted(ends)
    assert ends[-1] == 6
    assert log.damage is None


def test_log_opened_at_a_torn_batch_ends_in_front_of_it(tmp_path: Path) -> None:
    data = batches(0, 20)
    for cut in (1, 11, 12, 60, len(data[-1]) - 1):
        folder = tmp_path / str(cut)
        path = put_segment(folder, 0, [*data[:-1], data[-1][:cut]])
        age(path)
        log = LogTail(folder)
        assert (log.end_offset, log.damage) == (19, None)
        append(folder, 0, data[-1][cut:])
        assert log.refresh()
        assert log.end_offset == 20


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_log_opened_at_a_wrapper_or_batch_whose_end_is_not_written_ends_in_front_of_it(
    tmp_path: Path, magic: int
) -> None:
    """The file has its size and zeros at its end: what a crash leaves."""
    data = [batch(offset, 5, magic=magic, codec=kf.Codec.GZIP) for offset in range(0, 50, 5)]
    path = put_segment(tmp_path, 0, [*data[:-1], data[-1][:-30] + bytes(30)])
    assert LogTail(tmp_path).end_offset == 45
    age(path)
    log = LogTail(tmp_path)
    assert log.end_offset == 45
    assert log.damage is not None
    assert log.damage.position == sum(map(len, data[:-1]))


def test_preallocated_file_ends_where_its_zeros_begin_and_is_filled_in(tmp_path: Path) -> None:
    data = batches(0, 40)
    path = put_segment(tmp_path, 0, [])
    os.truncate(path, 1 << 30)
    log = LogTail(tmp_path)
    with path.open("r+b") as file:
        for offset, one in enumerate(data):
            assert log.end_offset == offset
            file.write(one)
            file.flush()
            assert log.refresh()
    settle(tmp_path)
    assert not log.refresh()
    assert (log.end_offset, log.damage) == (40, None)
    assert found_offsets(log, 0) == list(range(40))


def test_segments_of_a_writer_are_there_once_committed(tmp_path: Path) -> None:
    log = LogTail(tmp_path)
    assert log.end_offset == 0
    with PartitionLogWriter(tmp_path, segment_bytes=1500) as writer:
        for offset in range(0, 60, 2):
            writer.append(batch(offset, 2))
            log.refresh()
            committed = PartitionLog(tmp_path).end_offset
            assert log.end_offset == committed
            assert found_offsets(log, 0) == list(range(committed))
    log.refresh()
    assert (log.end_offset, found_offsets(log, 0)) == (60, list(range(60)))


@pytest.mark.parametrize("follows_transactions", [False, True])
def test_roll_behind_a_segment_that_grew_unseen_hides_no_record(
    tmp_path: Path, follows_transactions: bool
) -> None:
    data = batches(0, 30)
    put_segment(tmp_path, 0, data[:10])
    log = LogTail(tmp_path)
    assert found_offsets(log, 0) == list(range(10))
    assert not follows_transactions or log.stable_offset == 10
    append(tmp_path, 0, b"".join(data[10:20]))
    put_segment(tmp_path, 20, data[20:])
    assert log.refresh()
    assert log.end_offset == 30
    assert found_offsets(log, 0) == list(range(30))
    assert log.stable_offset == 30


def test_roll_to_an_empty_segment_ends_the_log_at_its_base_offset(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 10))
    log = LogTail(tmp_path)
    put_segment(tmp_path, 12, [])
    assert log.refresh()
    assert (log.end_offset, found_offsets(log, 3)) == (12, list(range(3, 10)))
    append(tmp_path, 12, batch(12))
    assert log.refresh()
    assert (log.end_offset, found_offsets(log, 8)) == (13, [8, 9, 12])


def test_refresh_of_what_has_settled_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_segment(tmp_path, 0, batches(0, 10))
    put_segment(tmp_path, 10, batches(10, 20))
    settle(tmp_path)
    log = LogTail(tmp_path)
    log.refresh()

    def fail(*_: Any) -> None:
        raise AssertionError("read, listed or opened")

    for target, attribute in ((SegmentRecords, "read_at"), (os, "scandir"), (os, "open"), (os, "pread")):
        monkeypatch.setattr(target, attribute, fail)
    assert not log.refresh()


def test_growth_is_read_without_what_was_read_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = batches(0, 400, size=10_000)
    put_segment(tmp_path, 0, data[:-1])
    log = LogTail(tmp_path)
    read = count_reads(monkeypatch)
    append(tmp_path, 0, data[-1])
    assert log.refresh()
    assert sum(read) < 2 * len(data[-1])


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of reads from now on."""
    read: list[int] = []
    original = SegmentRecords.read_at

    def counting(self: SegmentRecords, position: int, size: int, memory: bytearray | None = None) -> Any:
        read.append(size)
        return original(self, position, size, memory)

    monkeypatch.setattr(SegmentRecords, "read_at", counting)
    return read


# Logs that lose something


def test_retention_moves_the_start(tmp_path: Path) -> None:
    for base in (0, 10, 20):
        put_segment(tmp_path, base, batches(base, base + 10))
    log = LogTail(tmp_path)
    before = log.find(0)
    assert before is not None
    (tmp_path / name(0)).unlink()
    assert log.refresh()
    assert (log.start_offset, log.end_offset) == (10, 30)
    found = log.find(0)
    assert found is not None
    assert found.segment.segment.base_offset == 10
    assert len(os.pread(before.segment.records.fileno(), before.size, before.position)) == before.size


def test_log_that_loses_all_segments_is_empty(tmp_path: Path) -> None:
    path = put_segment(tmp_path, 5, batches(5, 10))
    log = LogTail(tmp_path)
    path.unlink()
    assert log.refresh()
    assert (log.start_offset, log.end_offset, log.find(0), log.stable_offset) == (0, 0, None, 0)


def test_compaction_that_replaces_a_segment_is_seen(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 10, size=3000))
    put_segment(tmp_path, 10, batches(10, 20))
    log = LogTail(tmp_path)
    assert found_offsets(log, 0) == list(range(20))
    kept = [batch(offset) for offset in (1, 4, 7)]
    with SegmentWriter(tmp_path, 0, replace=True) as writer:
        writer.append(b"".join(kept))
    log.refresh()
    assert found_offsets(log, 0) == [1, 4, 7, *range(10, 20)]
    assert found_offsets(log, 8) == list(range(10, 20))


@pytest.mark.parametrize("regrown", [0, 1, 12])
def test_last_segment_that_is_cut_off_is_read_anew_though_it_grew_again(tmp_path: Path, regrown: int) -> None:
    data = batches(0, 20)
    path = put_segment(tmp_path, 0, data)
    log = LogTail(tmp_path)
    assert found_offsets(log, 0) == list(range(20))
    assert log.stable_offset == 20
    os.truncate(path, sum(map(len, data[:12])))
    append(tmp_path, 0, b"".join(batch(offset, 2, size=170) for offset in range(12, 12 + 2 * regrown, 2)))
    assert log.refresh()
    end = 12 + 2 * regrown
    assert (log.end_offset, log.stable_offset, log.damage) == (end, end, None)
    assert found_offsets(log, 0) == list(range(end))


def test_log_that_loses_its_last_segment_ends_in_front_of_it(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 10))
    last = put_segment(tmp_path, 10, batches(10, 20))
    log = LogTail(tmp_path)
    last.unlink()
    assert log.refresh()
    assert (log.end_offset, found_offsets(log, 0)) == (10, list(range(10)))
    append(tmp_path, 0, batch(10))
    assert log.refresh()
    assert log.end_offset == 11


def test_folder_that_is_gone_is_told_and_one_that_comes_back_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    put_segment(folder, 0, batches(0, 10))
    log = LogTail(folder)
    shutil.rmtree(folder)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            log.refresh()
    put_segment(folder, 100, batches(100, 105))
    assert log.refresh()
    assert (log.start_offset, log.end_offset) == (100, 105)
    assert found_offsets(log, 0) == list(range(100, 105))


def test_segment_that_is_listed_and_cannot_be_opened_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems list what was deleted."""
    put_segment(tmp_path, 0, batches(0, 10))
    log = LogTail(tmp_path)
    listed = PartitionLog(tmp_path).segments()
    (tmp_path / name(0)).unlink()
    monkeypatch.setattr(PartitionLog, "segments", lambda self, known: list(listed))
    with pytest.raises(FileNotFoundError):
        log.refresh()


# Damage


def test_broken_batch_at_the_end_is_one_being_written_and_after_a_while_damage(tmp_path: Path) -> None:
    data = batches(0, 10)
    broken = data[-1][:-1] + b"?"
    path = put_segment(tmp_path, 0, [*data[:-1], broken])
    renew(path)
    log = LogTail(tmp_path)
    assert (log.end_offset, log.damage) == (9, None)
    age(path)
    log.refresh()
    assert log.end_offset == 9
    assert log.damage is not None
    assert (log.damage.path, log.damage.position) == (str(path), sum(map(len, data[:-1])))
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(data[-1][-1:])
    assert log.refresh()
    assert (log.end_offset, log.damage) == (10, None)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a length that leads astray": lambda data: data[:8] + (90).to_bytes(4, "big") + data[12:],
    "a length behind the end": lambda data: data[:8] + (1 << 20).to_bytes(4, "big") + data[12:],
    "a negative length": lambda data: data[:8] + b"\xff" * 4 + data[12:],
    "zeros": lambda data: bytes(len(data)),
    "a missing byte": lambda data: data[:30] + data[31:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("segments", [[0], [0, 10]])
@pytest.mark.parametrize("is_watched", [False, True], ids=["opened", "grown"])
def test_damage_in_the_middle_hides_nothing_behind_it(
    tmp_path: Path, damage: str, segments: list[int], is_watched: bool
) -> None:
    data = batches(0, 20)
    data[6] = DAMAGES[damage](data[6])
    stops = [*segments[1:], 20]
    path = put_segment(tmp_path, 0, data[:5] if is_watched else data[: stops[0]])
    log = LogTail(tmp_path)
    if is_watched:
        assert log.stable_offset == 5  # so what comes is followed through all segments
        append(tmp_path, 0, b"".join(data[5 : stops[0]]))
    for base, stop in zip(segments[1:], stops[1:], strict=True):
        put_segment(tmp_path, base, data[base:stop])
    settle(tmp_path)
    log.refresh()
    assert (log.end_offset, log.damage) == (20, None)
    assert log.stable_offset == 20
    opened = log.find(0)
    assert opened is not None
    end = opened.segment.records.end_position
    assert [offset for offset in range(6) if log.find(offset) is None] == []
    with pytest.raises(kf.KafkaFormatError) as caught:  # noqa: PT012
        found = log.find(6)
        assert found is not None
        finish(found.segment.sound_end_steps(found.position, end))
    assert (caught.value.path, caught.value.position) == (str(path), sum(map(len, data[:6])))


@pytest.mark.parametrize("lost", [1, 50, 100])
def test_closed_segment_that_lost_its_end_is_told(tmp_path: Path, lost: int) -> None:
    data = batches(0, 20)
    path = put_segment(tmp_path, 0, data[:10])
    put_segment(tmp_path, 10, data[10:])
    os.truncate(path, path.stat().st_size - lost)
    log = LogTail(tmp_path)
    assert log.find(8) is not None
    with pytest.raises(kf.CorruptRecordError) as caught:
        log.find(9)
    assert (caught.value.path, caught.value.position) == (str(path), sum(map(len, data[:9])))
    assert found_offsets(log, 10) == list(range(10, 20))


# Finding batches


@pytest.mark.parametrize("with_indexes", [True, False], ids=["indexes", "no indexes"])
@pytest.mark.parametrize("most_places", [4096, 3], ids=["all places", "places thinned out"])
@pytest.mark.parametrize("log_name", REAL_LOGS)
def test_every_offset_is_found_where_the_log_has_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log_name: str,
    most_places: int,
    with_indexes: bool,
) -> None:
    monkeypatch.setattr(open_segment, "_MOST_PLACES", most_places)
    monkeypatch.setattr(open_segment, "_SEARCH_BYTES", 1000)
    monkeypatch.setattr(open_segment, "_NEAR_BYTES", 5000)
    folder = LOGS / log_name
    if not with_indexes:
        folder = tmp_path / log_name
        shutil.copytree(LOGS / log_name, folder, ignore=shutil.ignore_patterns("*index"))
    known, log = PartitionLog(folder), LogTail(folder)
    assert (log.start_offset, log.end_offset) == (known.start_offset, known.end_offset)
    offsets = list(range(known.start_offset, known.end_offset + 2))
    places = {offset: known.find_offset(offset) for offset in offsets}
    for offset in (*offsets[::7], *reversed(offsets), *offsets):
        expected, found = places[offset], log.find(offset)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            assert (found.segment.segment, found.position) == expected
            data = os.pread(found.segment.records.fileno(), 1 << 20, found.position)
            assert found.size == next(kf.MemoryRecords(data).batches()).size_in_bytes


def test_places_that_are_known_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_segment, "_MOST_PLACES", 50)
    monkeypatch.setattr(open_segment, "_MOST_RANGES", 20)
    put_segment(tmp_path, 0, batches(0, 300))
    log = LogTail(tmp_path)
    for offset in range(0, 300, 2):
        found = log.find(offset)
        assert found is not None
        assert (
            finish(found.segment.sound_end_steps(found.position, found.position + found.size))
            > found.position
        )
    assert len(found.segment._places) <= 50
    assert len(found.segment._sound) <= 20
    assert found_offsets(log, 0) == list(range(300))


def test_segments_that_are_open_are_bounded_and_what_is_read_stays_open(tmp_path: Path) -> None:
    for base in range(0, 100, 10):
        put_segment(tmp_path, base, batches(base, base + 10))
    cache = SegmentCache(3)
    log = LogTail(tmp_path, cache)
    first = log.find(0)
    assert first is not None
    assert found_offsets(log, 0) == list(range(100))
    assert len(cache._open) == 3
    assert len(os.pread(first.segment.records.fileno(), 10, 0)) == 10


def test_segments_that_are_deleted_are_closed_at_the_next_refresh(tmp_path: Path) -> None:
    for base in range(0, 50, 10):
        put_segment(tmp_path, base, batches(base, base + 10))
    cache = SegmentCache()
    log = LogTail(tmp_path, cache)
    assert found_offsets(log, 0) == list(range(50))
    (tmp_path / "00000000000000000000.log").unlink()
    (tmp_path / "00000000000000000010.log").rename(tmp_path / "00000000000000000010.log.deleted")
    log.refresh()
    assert sorted(path.name for path in cache._open) == [f"{base:020}.log" for base in (20, 30, 40)]


def test_batch_behind_a_segment_is_the_first_of_the_next_that_has_one(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 5))
    put_segment(tmp_path, 5, [])
    put_segment(tmp_path, 10, batches(10, 12))
    log = LogTail(tmp_path)
    found = log.find(0)
    assert found is not None
    behind = finish(log.find_after_steps(found.segment))
    assert behind is not None
    assert (behind.segment.segment.base_offset, behind.position) == (10, 0)
    assert finish(log.find_after_steps(behind.segment)) is None


# Timestamps


def test_highest_timestamp_is_that_of_any_segment(tmp_path: Path) -> None:
    assert LogTail(tmp_path).find_max_timestamp() is None
    put_segment(tmp_path, 0, [batch(0), batch(1, timestamp=DAY + 500), batch(2)])
    put_segment(tmp_path, 3, batches(3, 6), time_index=[(DAY + 5, 2)])
    log = LogTail(tmp_path)
    assert log.find_max_timestamp() == (DAY + 500, 1)
    append(tmp_path, 3, batch(6, timestamp=DAY + 600))
    log.refresh()
    assert log.find_max_timestamp() == (DAY + 600, 6)
    assert log.find_timestamp(DAY + 501) == (DAY + 600, 6)


# Transactions

# Producers 1 and 2 interleaved: 1 aborts, 2 aborts, 1 commits, 1 aborts, 2 stays open.
TRANSACTIONS = [
    transactional(0, 1, 3),
    transactional(3, 2, 2),
    batch(5),
    transactional(6, 1),
    marker(7, 1, commit=False),
    transactional(8, 1),
    marker(9, 2, commit=False),
    marker(10, 1, commit=True),
    transactional(11, 1, 2),
    marker(13, 1, commit=False),
    transactional(14, 2),
    batch(15),
]
STABLE_OFFSETS = [0, 0, 0, 0, 3, 3, 8, 11, 11, 14, 14, 14]
ABORTED = [(1, 0, 7, 3), (2, 3, 9, 8), (1, 11, 13, 14)]


@pytest.mark.parametrize("asked_first", range(len(TRANSACTIONS) + 1))
def test_stable_offset_stands_in_front_of_what_is_open_from_whenever_it_is_asked_for(
    tmp_path: Path, asked_first: int
) -> None:
    put_segment(tmp_path, 0, TRANSACTIONS[:asked_first])
    log = LogTail(tmp_path)
    assert log.stable_offset == (STABLE_OFFSETS[asked_first - 1] if asked_first else 0)
    for one, stable in zip(TRANSACTIONS[asked_first:], STABLE_OFFSETS[asked_first:], strict=True):
        append(tmp_path, 0, one)
        log.refresh()
        assert log.stable_offset == stable
    assert aborted(log, 0, 16) == ABORTED


def aborted(log: LogTail, start: int, stop: int) -> list[tuple[int, ...]]:
    """Of transactions that the log tells for a fetch from `start` to behind the batch that holds `stop - 1`."""
    last = log.find(stop - 1)
    assert last is not None
    told = log.aborted_transactions(start, last.segment, last.position + last.size)
    return [one for one in told if one.first_offset < stop]


@pytest.mark.parametrize("rolled_at", range(1, len(TRANSACTIONS)))
@pytest.mark.parametrize("is_followed", [False, True])
def test_aborted_transactions_over_a_roll_are_those_of_the_log(
    tmp_path: Path, rolled_at: int, is_followed: bool
) -> None:
    put_segment(tmp_path, 0, TRANSACTIONS[: rolled_at - 1])
    log = LogTail(tmp_path)
    assert not is_followed or log.stable_offset == STABLE_OFFSETS[max(rolled_at - 2, 0)] * (rolled_at > 1)
    append(tmp_path, 0, TRANSACTIONS[rolled_at - 1])
    base = next(kf.MemoryRecords(TRANSACTIONS[rolled_at]).batches()).base_offset
    put_segment(tmp_path, base, TRANSACTIONS[rolled_at:])
    log.refresh()
    assert log.stable_offset == STABLE_OFFSETS[-1]
    for start in range(16):
        for stop in range(start + 1, 17):
            needed = [one for one in ABORTED if one[2] >= start and one[1] < stop]
            told = aborted(log, start, stop)
            assert told[: len(needed)] == needed
            assert all(one in ABORTED for one in told)


@pytest.mark.parametrize("without", [(), ("*.snapshot",), ("*.txnindex",), ("*.snapshot", "*index")])
@pytest.mark.parametrize("log_name", ["transactions-0", "open-transaction-0", "none-0", "compacted-0"])
def test_aborted_transactions_of_a_broker_s_log_are_those_of_its_indexes(
    tmp_path: Path, log_name: str, without: tuple[str, ...]
) -> None:
    known = PartitionLog(LOGS / log_name)
    folder = tmp_path / log_name
    shutil.copytree(LOGS / log_name, folder, ignore=shutil.ignore_patterns(*without))
    if "*.txnindex" in without:
        for snapshot in folder.glob("*.snapshot"):
            snapshot.unlink()  # a snapshot without the index beside it says that none were aborted
    log = LogTail(folder)
    assert log.stable_offset == LogTail(LOGS / log_name).stable_offset
    offsets = list(range(known.start_offset, known.end_offset))
    for start in offsets[::3]:
        for stop in {start + 1, min(start + 20, known.end_offset), known.end_offset}:
            assert aborted(log, start, stop) == known.aborted_transactions(start, stop)


def test_transactions_that_retention_took_are_forgotten(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, [transactional(0, 1), marker(1, 1, commit=False)])
    put_segment(tmp_path, 2, [transactional(2, 1), marker(3, 1, commit=False), batch(4)])
    log = LogTail(tmp_path)
    assert log.stable_offset == 5
    assert aborted(log, 0, 5) == [(1, 0, 1, 2), (1, 2, 3, 4)]
    (tmp_path / name(0)).unlink()
    log.refresh()
    assert aborted(log, 0, 5) == [(1, 2, 3, 4)]
    assert len(log._followed_transactions().aborted) == 1


def test_transaction_that_is_open_in_the_snapshot_alone_holds_the_stable_offset(tmp_path: Path) -> None:
    """Its first records were deleted, or are far in front: they are not looked for."""
    folder = tmp_path / "open-transaction-0"
    shutil.copytree(LOGS / "open-transaction-0", folder)
    (snapshot,) = folder.glob("*.snapshot")
    end = PartitionLog(folder).end_offset
    assert int(snapshot.stem) == end
    put_segment(folder, end, [batch(end)])
    log = LogTail(folder)
    assert (log.stable_offset, log.end_offset) == (12, end + 1)


def test_transactions_around_damage_are_followed(tmp_path: Path) -> None:
    broken = bytearray(batch(5))
    broken[-1] ^= 1
    path = put_segment(tmp_path, 0, [*TRANSACTIONS[:2], bytes(broken), *TRANSACTIONS[3:]])
    age(path)
    log = LogTail(tmp_path)
    assert (log.stable_offset, log.end_offset) == (14, 16)
    assert log.aborted_transactions(0, log._open(log._segments[0]), path.stat().st_size) == ABORTED


@pytest.mark.parametrize("has_known_transactions", [False, True])
def test_refresh_when_a_marker_is_malformed_then_it_hides_no_batches_and_its_transaction_stays_open(
    tmp_path: Path, has_known_transactions: bool
) -> None:
    path = put_segment(tmp_path, 0, [batch(0, 2)])
    log = LogTail(tmp_path)
    if has_known_transactions:
        assert log.stable_offset == 2
    parts = [
        transactional(2, 1, 2),
        transactional(4, 2, 2),
        marker(6, 2, commit=False),
        malformed_marker(7, 1),
        batch(8, 2),
    ]
    append(tmp_path, 0, b"".join(parts))
    renew(path)  # a broker may be writing it
    for _ in range(2):
        log.refresh()
        assert (log.end_offset, log.damage) == (10, None)
        assert (log.stable_offset, log.open_transactions) == (2, {1: 2})
        assert [(one.producer_id, one.last_offset) for one in aborted(log, 0, 10)] == [(2, 6)]
        ((offset, error),) = log.unreadable_markers
        assert (offset, error.path) == (7, str(path))
        assert error.position == len(batch(0, 2)) + sum(map(len, parts[:3]))
    append(tmp_path, 0, marker(10, 1, commit=True))
    log.refresh()
    assert (log.stable_offset, log.open_transactions) == (11, {})


@pytest.mark.parametrize("read_at", range(len(TRANSACTIONS) + 1))
@pytest.mark.parametrize("rolled_at", [None, 4, 7, 10])
def test_transactions_that_are_read_while_the_log_grows_go_on_where_reading_ended(
    tmp_path: Path, read_at: int, rolled_at: int | None
) -> None:
    """As a thread reads them; the log is followed meanwhile, rolled, and asked for them in the end."""
    put_segment(tmp_path, 0, TRANSACTIONS[:read_at])
    log = LogTail(tmp_path)
    unread, base = log.unread_transactions, 0
    assert unread is not None
    for number in range(read_at, len(TRANSACTIONS)):
        if number == rolled_at:
            base = next(kf.MemoryRecords(TRANSACTIONS[number]).batches()).base_offset
            put_segment(tmp_path, base, [])
        append(tmp_path, base, TRANSACTIONS[number])
        log.refresh()
    log.follow_transactions(unread, unread.read())
    assert log.unread_transactions is None
    assert log.stable_offset == STABLE_OFFSETS[-1]
    assert aborted(log, 0, 16) == ABORTED


def test_transactions_that_were_read_of_a_log_that_was_cut_off_meanwhile_are_read_anew(
    tmp_path: Path,
) -> None:
    path = put_segment(tmp_path, 0, TRANSACTIONS)
    log = LogTail(tmp_path)
    unread = log.unread_transactions
    assert unread is not None
    read = unread.read()
    os.truncate(path, sum(map(len, TRANSACTIONS[:4])))
    log.refresh()
    log.follow_transactions(unread, read)
    assert log.unread_transactions is not None
    assert (log.stable_offset, log.aborted_transactions(0, log._open(log._segments[0]), 1)) == (0, [])
