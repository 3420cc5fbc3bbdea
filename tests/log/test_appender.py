"""The appender: what it appends is what readers find, at once, and after crashes, full disks and second writers."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kafkafmt as kf
from file_limits import file_size_limit
from kafkafmt._util.files import open_regular
from kafkafmt.log import LogAppender, LogDirectory, LogTail, PartitionLog, SegmentWriter
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.records.runs import whole_batches
from log.samples import batch, batches, entries, marker, name, offsets, put_segment, transactional


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


def test_log_when_there_is_none_then_it_is_an_empty_segment(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "t-0") as log:
        assert log.next_offset == 0
    assert segments(tmp_path / "t-0") == [name(0)]
    assert PartitionLog(tmp_path / "t-0").end_offset == 0
    assert list(LogDirectory(tmp_path).partitions()) == [("t", 0)]


def test_append_when_done_then_followers_see_it_at_once(tmp_path: Path) -> None:
    with LogAppender(tmp_path) as log:
        followed = LogTail(tmp_path)
        for number, data in enumerate(batches(0, 30, 3)):
            log.append(data)
            followed.refresh()
            assert followed.end_offset == log.next_offset == 3 * number + 3
        assert offsets(PartitionLog(tmp_path).records()) == list(range(30))


def test_first_batch_when_at_an_offset_then_the_segment_is_named_for_it(tmp_path: Path) -> None:
    with LogAppender(tmp_path) as log:
        log.append(batch(1000, 5))
        assert segments(tmp_path) == [name(1000)]
    with LogAppender(tmp_path) as log:
        assert log.next_offset == 1005
    assert PartitionLog(tmp_path).start_offset == 1000


def test_empty_log_when_begun_at_an_offset_then_goes_on_there_once_opened_anew(tmp_path: Path) -> None:
    with LogAppender(tmp_path) as log:
        log.begin_at(500)
        log.begin_at(700)
        with pytest.raises(ValueError, match="expected to continue at 700"):
            log.begin_at(699)
    with LogAppender(tmp_path) as log:
        assert (log.next_offset, segments(tmp_path)) == (700, [name(700)])
        log.append(batch(700))
        with pytest.raises(ValueError, match="expected to continue at 701"):
            log.begin_at(1000)


def test_indexes_when_grown_piece_by_piece_then_equal_those_of_a_writer(tmp_path: Path) -> None:
    parts = batches(0, 400, 2, size=300)
    with SegmentWriter(tmp_path / "written", 0) as writer:
        writer.append(b"".join(parts))
    for start in range(0, 200, 25):
        with LogAppender(tmp_path / "grown") as log:
            for part in parts[start : start + 25]:
                log.append(part)
    for suffix in (".log", ".index", ".timeindex"):
        found, expected = (tmp_path / folder / name(0, suffix) for folder in ("grown", "written"))
        assert found.read_bytes() == expected.read_bytes(), suffix


def test_run_when_larger_than_what_is_left_then_goes_to_the_next_segment_whole(tmp_path: Path) -> None:
    parts = batches(0, 40)
    size = len(parts[0])
    with LogAppender(tmp_path, segment_bytes=10 * size) as log:
        log.append(b"".join(parts[:6]))
        log.append(b"".join(parts[6:12]))
        assert segments(tmp_path) == [name(0), name(6)]
        log.append(b"".join(parts[12:]))
    assert segments(tmp_path) == [name(0), name(6), name(12), name(22), name(32)]
    assert contents(tmp_path) == b"".join(parts)
    for path in tmp_path.glob("*.log"):
        assert len(entries(path, ".timeindex")) == 1


def test_run_when_a_part_is_appended_then_only_that_is(tmp_path: Path) -> None:
    parts = batches(0, 10)
    run = whole_batches(b"".join(parts))
    with LogAppender(tmp_path) as log:
        log.append_run(run, 2, 5)
        log.append_run(run, 7)
    assert contents(tmp_path) == b"".join(parts[2:5] + parts[7:])


def test_offsets_when_they_do_not_ascend_then_nothing_is_appended(tmp_path: Path) -> None:
    with LogAppender(tmp_path, segment_bytes=1) as log:
        log.append(batch(5, 5))
        for data in (batch(9), batch(10) + batch(10)):
            with pytest.raises(kf.InvalidRecordError, match="ascend"):
                log.append(data)
        assert log.next_offset == 10
    assert contents(tmp_path) == batch(5, 5)


@pytest.mark.parametrize("base_offset", [0, 2**40])
def test_log_when_a_base_offset_is_damaged_then_is_refused_and_stays_as_it_is(
    tmp_path: Path, base_offset: int
) -> None:
    """No CRC covers a base offset."""
    data = batch(0, 5) + base_offset.to_bytes(8, "big") + batch(5, 5)[8:]
    put_segment(tmp_path, 0, [data])
    with pytest.raises(kf.InvalidRecordError, match="expected"):
        LogAppender(tmp_path)
    assert contents(tmp_path) == data


def test_second_appender_when_one_has_the_log_then_is_refused(tmp_path: Path) -> None:
    with LogAppender(tmp_path), pytest.raises(BlockingIOError, match="another writer has the log open"):
        LogAppender(tmp_path)
    with LogAppender(tmp_path) as log:
        log.append(batch(0))


@pytest.mark.parametrize("left", [1, 13, 61, 160])
def test_log_when_the_last_batch_is_cut_off_then_it_goes_and_the_rest_stays(
    tmp_path: Path, left: int
) -> None:
    parts = batches(0, 100, size=500)
    with LogAppender(tmp_path) as log:
        log.append(b"".join(parts))
    with (tmp_path / name(0)).open("ab") as file:
        file.write(batch(100, size=500)[:left])
    with LogAppender(tmp_path) as log:
        assert (log.next_offset, log.truncated_bytes) == (100, left)
        log.append(batch(100))
    assert contents(tmp_path) == b"".join([*parts, batch(100)])


def test_log_when_its_end_is_zeros_or_a_batch_that_is_not_valid_then_that_goes(tmp_path: Path) -> None:
    torn = bytearray(batch(3))
    torn[-1] ^= 1
    for number, tail in enumerate((bytes(5000), bytes(torn), bytes(torn) + bytes(70))):
        put_segment(tmp_path / f"t-{number}", 0, [*batches(0, 3), tail])
        with LogAppender(tmp_path / f"t-{number}") as log:
            assert (log.next_offset, log.truncated_bytes) == (3, len(tail))
        assert contents(tmp_path / f"t-{number}") == b"".join(batches(0, 3))


def test_log_when_a_valid_batch_stands_behind_damage_then_nothing_is_cut_off(tmp_path: Path) -> None:
    data = bytearray(b"".join(batches(0, 5)))
    data[300] ^= 1
    path = put_segment(tmp_path, 0, [bytes(data)])
    with pytest.raises(kf.CorruptRecordError, match=r"a valid batch begins at 3\d\d") as raised:
        LogAppender(tmp_path)
    assert raised.value.path == str(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "preallocated", "stale", "wrong"])
def test_indexes_when_not_what_they_were_then_are_made_anew(tmp_path: Path, damage: str) -> None:
    parts = batches(0, 200, size=300)
    with LogAppender(tmp_path) as log:
        log.append(b"".join(parts[:100]))
    for suffix in (".index", ".timeindex"):
        path = tmp_path / name(0, suffix)
        before = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(
                {
                    "empty": b"",
                    "odd": before[:-5],
                    "preallocated": before + bytes(4096),
                    "stale": before[: len(before) // 24 // 2 * 24],
                    "wrong": before[:-8] + b"\0\0\0\x50\0\0\0\x51",
                }[damage]
            )
    with LogAppender(tmp_path) as log:
        assert (log.next_offset, log.truncated_bytes) == (100, 0)
        log.append(b"".join(parts[100:]))
    with SegmentWriter(tmp_path / "written", 0) as writer:
        writer.append(b"".join(parts))
    for suffix in (".log", ".index", ".timeindex"):
        assert (tmp_path / name(0, suffix)).read_bytes() == (
            tmp_path / "written" / name(0, suffix)
        ).read_bytes()


def test_log_when_killed_while_an_empty_segment_is_replaced_then_opens(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, [])
    put_segment(tmp_path, 1000, [])
    with LogAppender(tmp_path) as log:
        assert segments(tmp_path) == [name(1000)]
        log.append(batch(1000))


def test_log_when_killed_between_the_steps_of_a_roll_then_opens_and_goes_on(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, batches(0, 5))
    (tmp_path / name(5, ".snapshot")).write_bytes(b"half")
    (tmp_path / name(5, ".txnindex")).write_bytes(b"half")
    with LogAppender(tmp_path, segment_bytes=1) as log:
        log.append(batch(5))
    assert segments(tmp_path) == [name(0), name(5)]
    assert PartitionLog(tmp_path).aborted_transactions() == []


@pytest.mark.parametrize("room", [0, 100, 1000])
def test_append_when_the_disk_is_full_then_the_log_is_as_it_was(tmp_path: Path, room: int) -> None:
    first, second = b"".join(batches(0, 20)), b"".join(batches(20, 40))
    with LogAppender(tmp_path) as log:
        log.append(first)
        with file_size_limit(len(first) + room), pytest.raises(OSError, match="too large") as raised:
            log.append(second)
        assert raised.value.filename == str(tmp_path / name(0))
        assert (log.next_offset, contents(tmp_path)) == (20, first)
        log.append(second)
    assert contents(tmp_path) == first + second


def test_abort_when_its_marker_cannot_be_appended_then_no_index_tells_of_it(tmp_path: Path) -> None:
    first = transactional(0, 7) + batch(1, size=3000)
    with LogAppender(tmp_path) as log:
        log.append(first)
        with file_size_limit(len(first) + 10), pytest.raises(OSError, match="too large"):
            log.append(marker(2, 7, commit=False))
        assert PartitionLog(tmp_path).aborted_transactions() == []
        log.append(marker(2, 7, commit=False))
        assert PartitionLog(tmp_path).aborted_transactions() == [(7, 0, 2, 3)]


def test_roll_when_the_new_segment_cannot_be_opened_then_the_next_append_creates_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = batches(0, 2)
    with LogAppender(tmp_path, segment_bytes=len(first)) as log:
        log.append(first)
        with monkeypatch.context() as patched:
            patched.setattr("kafkafmt.log.growing_segment.open_regular", out_of_descriptors)
            with pytest.raises(OSError, match="Too many open files"):
                log.append(second)
        assert segments(tmp_path) == [name(0)]
        log.append(second)
    assert segments(tmp_path) == [name(0), name(1)]
    assert contents(tmp_path) == first + second


def test_roll_when_an_index_cannot_be_written_then_the_next_append_closes_the_segment_with_all_entries(
    tmp_path: Path,
) -> None:
    """The time index of a closed segment ends with its highest timestamp."""
    parts = batches(0, 100, size=300)
    first = b"".join(parts[:-1])
    with SegmentWriter(tmp_path / "written", 0) as writer:
        writer.append(first)
    with LogAppender(tmp_path / "log", segment_bytes=len(first)) as log:
        log.append(first)
        index = tmp_path / "log" / name(0, ".index")
        index.rename(tmp_path / "kept")
        index.mkdir()
        with pytest.raises(OSError, match=r"\.index"):
            log.append(parts[-1])
        index.rmdir()
        (tmp_path / "kept").rename(index)
        log.append(parts[-1])
    for suffix in (".index", ".timeindex"):
        found, expected = (tmp_path / folder / name(0, suffix) for folder in ("log", "written"))
        assert found.read_bytes() == expected.read_bytes()


def out_of_descriptors(path: Path, flags: int) -> int:
    if path.name == name(1):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
    return open_regular(path, flags)


def test_aborts_when_the_log_is_rolled_and_opened_anew_then_each_segment_tells_its_own(
    tmp_path: Path,
) -> None:
    parts = [
        transactional(0, 1, 2),
        transactional(2, 2),
        marker(3, 1, commit=False),
        transactional(4, 1),
        batch(5),
        marker(6, 2, commit=False),
        marker(7, 1, commit=True),
    ]
    for part in parts:
        with LogAppender(tmp_path, segment_bytes=300) as log:
            log.append(part)
    assert len(segments(tmp_path)) > 2
    log_there = PartitionLog(tmp_path)
    expected = list(log_there.scan_aborted_transactions())
    assert expected == [(1, 0, 3, 2), (2, 2, 6, 4)]
    assert [
        one for segment in log_there.segments() for one in segment.aborted_transactions() or ()
    ] == expected
    followed = LogTail(tmp_path)
    assert followed.stable_offset == 8
    assert all(path.with_suffix(".snapshot").exists() for path in tmp_path.glob("*.log"))


def test_aborts_when_earlier_segments_have_no_index_then_stay_aborted_after_a_roll(tmp_path: Path) -> None:
    put_segment(tmp_path, 0, [transactional(0, 1, 2), marker(2, 1, commit=False), transactional(3, 1)])
    put_segment(tmp_path, 4, [marker(4, 1, commit=False), transactional(5, 2)])
    expected = list(PartitionLog(tmp_path).scan_aborted_transactions())
    with LogAppender(tmp_path, segment_bytes=300) as log:
        for part in (marker(6, 2, commit=True), transactional(7, 1), marker(8, 1, commit=True)):
            log.append(part)
    assert list(tmp_path.glob("*.snapshot"))
    log_there = PartitionLog(tmp_path)
    assert log_there.aborted_transactions() == expected
    assert [record.offset for record in log_there.records(isolation="read_committed")] == [5, 7]


def test_transaction_index_when_the_log_lacks_a_marker_then_loses_its_entry(tmp_path: Path) -> None:
    with LogAppender(tmp_path) as log:
        log.append(transactional(0, 1) + marker(1, 1, commit=False) + transactional(2, 1))
        log.append(marker(3, 1, commit=False))
    data = (tmp_path / name(0)).read_bytes()
    (tmp_path / name(0)).write_bytes(data[:-10])
    with LogAppender(tmp_path) as log:
        assert PartitionLog(tmp_path).aborted_transactions() == [(1, 0, 1, 2)]
        log.append(marker(3, 1, commit=True))
        assert PartitionLog(tmp_path).aborted_transactions() == [(1, 0, 1, 2)]


def sequenced(offset: int, count: int, sequence: int, *, epoch: int = 0, producer_id: int = 9) -> bytes:
    return batch(offset, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_producers_when_the_log_is_read_then_tell_the_offset_of_each_sequence_number(tmp_path: Path) -> None:
    with LogAppender(tmp_path, segment_bytes=1) as log:
        log.append(sequenced(0, 3, 0))
        log.append(sequenced(3, 2, 3))
        log.append(batch(5, 4))
        log.append(sequenced(9, 2, 5))
    with LogAppender(tmp_path) as log:
        state = log.producers.get(9)
        assert state is not None
        assert (state.producer_epoch, state.next_sequence) == (0, 7)
        assert state.find(5, 2) == 9
        assert state.find(7, 1) is None
        log.append(sequenced(11, 1, 0, epoch=1))
        state = log.producers.get(9)
        assert state is not None
        assert (state.producer_epoch, state.next_sequence, state.find(5, 2)) == (1, 1, None)
        assert log.producers.get(8) is None


def test_producers_when_sequence_numbers_begin_anew_behind_the_largest_then_go_on() -> None:
    states = ProducerStates()
    states.add(whole_batches(sequenced(0, 3, 2**31 - 2) + sequenced(3, 2, 1)), 0, 2)
    state = states.get(9)
    assert state is not None
    assert (state.next_sequence, state.find(0, 3), state.find(2**31 - 1, 2)) == (3, 2, 1)
    again = ProducerStates.from_snapshot(states.snapshot())
    assert again is not None
    assert again.get(9) == state


_KILLED = """
import sys
from pathlib import Path
from kafkafmt.log import LogAppender
from tests.log.samples import batch
log = LogAppender(sys.argv[1], segment_bytes=50_000)
offset = log.next_offset
while True:
    log.append(b"".join(batch(o, 3, size=200) for o in range(offset, offset + 30, 3)))
    offset += 30
    print(log.flush(), flush=True)
"""


@pytest.mark.parametrize("lines", [1, 20, 47])
def test_log_when_its_writer_is_killed_then_all_that_was_flushed_is_there(tmp_path: Path, lines: int) -> None:
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", _KILLED, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        with process:
            flushed = [int(process.stdout.readline()) for _ in range(lines)]
            process.send_signal(signal.SIGKILL)
        with LogAppender(tmp_path, segment_bytes=50_000) as log:
            assert log.next_offset >= flushed[-1]
            assert log.next_offset % 3 == 0
        assert offsets(PartitionLog(tmp_path).records()) == list(range(log.next_offset))


def test_log_when_read_while_it_grows_then_only_whole_batches_are_seen(tmp_path: Path) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            followed, log, last = LogTail(tmp_path), PartitionLog(tmp_path), 0
            while not ended.is_set():
                followed.refresh()
                assert followed.end_offset >= last
                assert followed.damage is None
                last = followed.end_offset
                found = [record.offset for record in log.records(max(last - 50, 0))]
                assert found == list(range(found[0], found[0] + len(found))) if found else True
                assert last % 4 == 0
        except BaseException as error:
            failures.append(error)

    with LogAppender(tmp_path, segment_bytes=200_000) as log:
        reader = threading.Thread(target=read)
        reader.start()
        try:
            for start in range(0, 4000, 40):
                log.append(b"".join(batches(start, start + 40, 4, size=500)))
        finally:
            ended.set()
            reader.join()
    assert not failures


def test_flush_when_the_log_is_rolled_meanwhile_then_does_no_harm(tmp_path: Path) -> None:
    ended = threading.Event()
    with LogAppender(tmp_path, segment_bytes=2000) as log:

        def flush() -> None:
            while not ended.is_set():
                log.flush()

        thread = threading.Thread(target=flush)
        thread.start()
        try:
            for data in batches(0, 300):
                log.append(data)
        finally:
            ended.set()
            thread.join()
        assert log.flush() == 300
    assert offsets(PartitionLog(tmp_path).records()) == list(range(300))


def test_flush_when_a_batch_comes_meanwhile_then_does_not_count_it_as_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    with LogAppender(tmp_path) as log:
        log.append(batch(0))

        def late(descriptor: int) -> None:
            fsync(descriptor)
            log.append(batch(log.next_offset))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", late)
            assert (log.flush(), log.next_offset) == (1, 2)
        assert log.flush() == 2


def test_log_when_a_flush_has_failed_then_later_appends_and_flushes_fail_and_close_flushes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reports bytes that it could not write once: a second flush would succeed without them."""
    flushed: list[int] = []

    def fail_once(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = LogAppender(tmp_path)
    log.append(batch(0))
    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(OSError, match=r"Input/output error.*\.log"):
        log.flush()
    for refused in (log.flush, lambda: log.append(batch(1))):
        with pytest.raises(OSError, match=r"Input/output error.*\.log"):
            refused()
    log.close()
    assert len(flushed) == 1


def test_appender_when_closed_then_takes_nothing(tmp_path: Path) -> None:
    log = LogAppender(tmp_path)
    log.close()
    log.close()
    with pytest.raises(ValueError, match="closed"):
        log.append(batch(0))


def test_is_in_place_when_the_log_is_closed_then_value_error(tmp_path: Path) -> None:
    log = LogAppender(tmp_path / "orders-0")
    log.append(batch(0))
    assert log.is_in_place
    log.close()
    with pytest.raises(ValueError, match=f"{tmp_path}/orders-0: the log was closed"):
        _ = log.is_in_place
