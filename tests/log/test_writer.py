"""Writing segments: indexes as Kafka chooses them, and never half a segment, whatever ends the writer."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import kafkafmt as kf
from _kafkafmt.batches.scan import BatchRun
from kafkafmt.log import (
    AbortedTransaction,
    LogAppender,
    PartitionLog,
    PartitionLogWriter,
    Segment,
    SegmentWriter,
    remove_stale_temporaries,
)
from log.samples import DAY, batch, batches, entries, name, offsets, real_segments

INT32_MAX = 2**31 - 1


def write_and_fail(writer: SegmentWriter | PartitionLogWriter, data: bytes) -> None:
    with writer:
        writer.append(data)
        raise InterruptedError


def test_segment_is_there_with_its_indexes_once_committed(tmp_path: Path) -> None:
    data = batches(20, 30)
    with SegmentWriter(tmp_path / "a-0", 20) as writer:
        for one in data:
            writer.append(one)
        assert (writer.size_in_bytes, writer.next_offset) == (sum(map(len, data)), 30)
    assert sorted(path.name for path in writer.folder.iterdir()) == [
        name(20, suffix) for suffix in (".index", ".log", ".timeindex")
    ]
    assert writer.path.read_bytes() == b"".join(data)
    assert offsets(PartitionLog(tmp_path / "a-0").records()) == list(range(20, 30))


def test_nothing_a_reader_sees_is_there_before_the_commit(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        assert PartitionLog(tmp_path).segments() == []
        assert all(path.name.startswith(".") and path.name.endswith(".tmp") for path in tmp_path.iterdir())
    assert len(PartitionLog(tmp_path).segments()) == 1


def test_index_entries_follow_the_interval_and_the_highest_timestamp(tmp_path: Path) -> None:
    times = [5, 9, 3, 9, 12, 12, 1, 11]
    data = [batch(n, timestamp=DAY + time, size=400) for n, time in enumerate(times)]
    size = len(data[0])
    with SegmentWriter(tmp_path, 0, index_interval_bytes=2 * size - 1) as writer:
        writer.append(b"".join(data))
    assert entries(writer.path, ".index") == [(2, 2 * size), (4, 4 * size), (6, 6 * size)]
    assert entries(writer.path, ".timeindex") == [(DAY + 9, 1), (DAY + 12, 4)]
    with SegmentWriter(tmp_path / "wide", 0, index_interval_bytes=2 * size) as writer:
        writer.append(b"".join(data))
    assert entries(writer.path, ".index") == [(3, 3 * size), (6, 6 * size)]


def test_last_time_entry_holds_the_highest_timestamp_where_no_interval_ends(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 3) as writer:
        writer.append(batch(5, 2) + batch(8, 2, timestamp=DAY))
    assert entries(writer.path, ".index") == []
    assert entries(writer.path, ".timeindex") == [(DAY + 6, 3)]


def test_messages_without_timestamps_have_no_time_entries(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0, index_interval_bytes=0) as writer:
        writer.append(b"".join(batches(0, 3, magic=0)))
    assert [offset for offset, _ in entries(writer.path, ".index")] == [1, 2]
    assert entries(writer.path, ".timeindex") == []


def test_wrappers_are_indexed_by_their_last_offset(tmp_path: Path) -> None:
    data = batches(0, 9, 3, magic=1, codec=kf.Codec.LZ4)
    with SegmentWriter(tmp_path, 0, index_interval_bytes=0) as writer:
        writer.append(b"".join(data))
    assert entries(writer.path, ".index") == [(5, len(data[0])), (8, len(data[0]) + len(data[1]))]
    assert entries(writer.path, ".timeindex") == [(DAY + 5, 5), (DAY + 8, 8)]


@pytest.mark.parametrize("cut", [1, 3, 7, 20])
def test_entries_do_not_depend_on_how_batches_are_handed_over(tmp_path: Path, cut: int) -> None:
    data = [batch(n, timestamp=DAY + n * 37 % 50, size=n * 31 % 400) for n in range(60)]
    found = []
    for step in (1, cut, 60):
        folder = tmp_path / str(step)
        with SegmentWriter(folder, 0, index_interval_bytes=700) as writer:
            for first in range(0, 60, step):
                writer.append(b"".join(data[first : first + step]))
        found.append([writer.path.with_suffix(s).read_bytes() for s in (".log", ".index", ".timeindex")])
        (folder / name(0)).unlink()
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "path", real_segments(), ids=lambda path: f"{path.parent.name}/{path.stem.lstrip('0') or 0}"
)
def test_segment_of_a_real_broker_written_again_has_the_same_bytes(path: Path, tmp_path: Path) -> None:
    # The brokers of these topics were told an interval of their own, which the topics' names do not show.
    for interval in (4096, 1024):
        segment = Segment(path, is_active=True)
        with SegmentWriter(tmp_path, segment.base_offset, index_interval_bytes=interval) as writer:
            with segment.open() as records:
                for run in records.runs(run_bytes=5000):
                    writer.append_run(run)
            writer.add_aborted_transactions(segment.aborted_transactions() or [])
        assert writer.path.read_bytes() == path.read_bytes()[: writer.size_in_bytes]
        assert writer.path.with_suffix(".txnindex").exists() == path.with_suffix(".txnindex").exists()
        suffixes = [
            ".index",
            ".timeindex",
            *([".txnindex"] if path.with_suffix(".txnindex").exists() else []),
        ]
        same = all(entries(writer.path, suffix) == entries(path, suffix) for suffix in suffixes)
        writer.path.unlink()
        if same:
            return
    pytest.fail("the indexes differ from the broker's")


def test_segment_without_batches_is_empty_and_its_indexes_too(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 7) as writer:
        pass
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [0, 0, 0]
    assert PartitionLog(tmp_path).end_offset == writer.next_offset == 7


def test_aborted_transactions_are_written_in_the_order_of_their_markers(tmp_path: Path) -> None:
    aborted = [AbortedTransaction(5, 0, 9, 4), AbortedTransaction(6, 2, 4, 0)]
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0, 10))
        writer.add_aborted_transactions(aborted)
    assert entries(writer.path, ".txnindex") == [(0, 6, 2, 4, 0), (0, 5, 0, 9, 4)]
    assert Segment(writer.path).aborted_transactions() == aborted[::-1]


def test_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, 0)
    with pytest.raises(InterruptedError):
        write_and_fail(writer, batch(0))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="committed or aborted"):
        writer.append(batch(1))
    writer.abort()


def test_segment_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
    with pytest.raises(FileExistsError, match=name(0)):
        SegmentWriter(tmp_path, 0)
    assert len(list(tmp_path.iterdir())) == 3


def test_slower_of_two_writers_of_a_segment_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    fast, slow = SegmentWriter(tmp_path, 0), SegmentWriter(tmp_path, 0)
    fast.append(batch(0))
    slow.append(batch(0) + batch(1))
    fast.commit()
    with pytest.raises(FileExistsError, match=name(0)):
        slow.commit()
    assert len(list(tmp_path.iterdir())) == 3
    assert PartitionLog(tmp_path).end_offset == 1


def test_indexes_that_a_dead_writer_left_without_a_log_are_replaced(tmp_path: Path) -> None:
    for suffix in (".index", ".timeindex", ".txnindex"):
        (tmp_path / name(0, suffix)).write_bytes(b"stale")
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".index", ".log", ".timeindex"]
    assert Segment(writer.path).aborted_transactions() == []
    assert entries(writer.path, ".timeindex") == [(DAY, 0)]


def test_bytes_that_are_no_whole_batches_are_refused_and_nothing_of_them_written(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        with pytest.raises(ValueError, match="a partial batch"):
            writer.append(batch(1) + batch(2)[:-1])
        with pytest.raises(kf.CorruptRecordError):
            writer.append(batch(1) + b"\xff" * 40)
        with pytest.raises(kf.CorruptRecordError):
            writer.append(bytes(40))
        writer.append(b"")
        writer.append(batch(1))
    assert PartitionLog(tmp_path).end_offset == 2


def test_offsets_that_do_not_ascend_are_refused(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 10) as writer:
        with pytest.raises(kf.InvalidRecordError, match="expected 10 or more, found 9"):
            writer.append(batch(9))
        writer.append(batch(10, 5))
        with pytest.raises(kf.InvalidRecordError, match="expected 15 or more, found 14") as caught:
            writer.append(batch(14))
        assert caught.value.path == str(writer.path)
        with pytest.raises(kf.InvalidRecordError, match="expected 18 or more, found 17"):
            writer.append(batch(15, 3) + batch(17))
        writer.append(batch(15))


def test_offset_too_far_for_the_index_is_refused(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 5) as writer:
        with pytest.raises(ValueError, match="2\\^31 offsets"):
            writer.append(batch(5 + INT32_MAX + 1))
        writer.append(batch(5 + INT32_MAX))
    assert entries(writer.path, ".timeindex") == [(DAY + 5 + INT32_MAX, INT32_MAX)]


def test_more_bytes_than_a_position_can_say_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkafmt.log.batch_writer.MAX_INT32", 500)
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        with pytest.raises(ValueError, match="bytes in a segment"):
            writer.append(batch(1, size=400))
    assert writer.next_offset == 1


def test_run_with_batches_missing_inside_is_refused(tmp_path: Path) -> None:
    (run,) = kf.MemoryRecords(b"".join(batches(0, 5))).runs()
    gap = BatchRun(run.buffer, run.index[[0, 1, 3]], run.origin)
    with SegmentWriter(tmp_path, 0) as writer, pytest.raises(ValueError, match="end to end"):
        writer.append_run(gap)


def test_writers_of_one_segment_at_once_leave_what_one_of_them_wrote(tmp_path: Path) -> None:
    for round_number in range(20):
        folder = tmp_path / str(round_number)
        writers = [SegmentWriter(folder, 0, index_interval_bytes=0) for _ in range(4)]
        for number, writer in enumerate(writers):
            writer.append(b"".join(batches(0, 3 + number, size=50 * number)))
        refused = []

        def commit(writer: SegmentWriter, refused: list[SegmentWriter] = refused) -> None:
            try:
                writer.commit()
            except FileExistsError:
                refused.append(writer)

        threads = [threading.Thread(target=commit, args=(writer,)) for writer in writers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
        assert len(list(folder.iterdir())) == 3
        with kf.FileRecords(folder / name(0)) as records:
            index = records.index()
        assert entries(folder / name(0), ".index") == index[["last_offset", "position"]][1:].tolist()


@pytest.mark.parametrize("segment_bytes", [0, 2**31])
def test_segment_bytes_out_of_range_are_refused(tmp_path: Path, segment_bytes: int) -> None:
    with pytest.raises(ValueError, match="segment_bytes: expected 1 to"):
        PartitionLogWriter(tmp_path, segment_bytes=segment_bytes)


@pytest.mark.parametrize("base_offset", [-1, 2**63, 2**64])
def test_segment_writer_when_no_log_can_have_the_base_offset_then_value_error(
    tmp_path: Path, base_offset: int
) -> None:
    with pytest.raises(ValueError, match=f"base_offset: expected 0 to {2**63 - 1}, found {base_offset}"):
        SegmentWriter(tmp_path, base_offset)
    assert list(tmp_path.iterdir()) == []


def test_any_kind_of_buffer_is_taken(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0) as writer:
        for number, kind in enumerate((bytes, bytearray, memoryview, lambda data: np.frombuffer(data, "i1"))):
            writer.append(kind(batch(number)))
    assert offsets(PartitionLog(tmp_path).records()) == [0, 1, 2, 3]


def test_log_rolls_before_a_segment_would_grow_too_large(tmp_path: Path) -> None:
    data = batches(3, 33)
    size = len(data[0])
    with PartitionLogWriter(tmp_path, segment_bytes=7 * size) as writer:
        writer.append(b"".join(data[:11]))
        assert writer.committed == [tmp_path / name(3)]
        for one in data[11:]:
            writer.append(one)
    log = PartitionLog(tmp_path)
    assert [one.base_offset for one in log.segments()] == [3, 10, 17, 24, 31]
    assert writer.committed == [one.path for one in log.segments()]
    assert offsets(log.records()) == list(range(3, 33))


def test_batch_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path, segment_bytes=500) as writer:
        writer.append(batch(0) + batch(1, size=900) + batch(2, size=900) + batch(3))
    assert [path.name for path in writer.committed] == [name(0), name(1), name(2), name(3)]


def test_log_rolls_where_offsets_leave_the_reach_of_an_index(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path) as writer:
        writer.append(batch(1) + batch(1 + INT32_MAX) + batch(2 + INT32_MAX))
    assert [path.name for path in writer.committed] == [name(1), name(2 + INT32_MAX)]


def test_segment_that_starts_with_a_wrapper_is_named_for_its_first_inner_offset(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path) as writer:
        writer.append(batch(40, 6, magic=1, codec=kf.Codec.GZIP))
    assert writer.committed == [tmp_path / name(40)]


def test_log_without_batches_has_no_segments(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path / "a-0") as writer:
        writer.append(b"")
    assert writer.committed == []
    assert PartitionLog(tmp_path / "a-0").segments() == []


def test_error_while_writing_a_log_keeps_the_segments_before(tmp_path: Path) -> None:
    with pytest.raises(InterruptedError):
        write_and_fail(PartitionLogWriter(tmp_path, segment_bytes=1), batch(0) + batch(1))
    assert offsets(PartitionLog(tmp_path).records()) == [0]
    assert len(list(tmp_path.iterdir())) == 3


def test_aborted_transactions_of_a_log_go_to_the_segments_of_their_markers(tmp_path: Path) -> None:
    aborted = [AbortedTransaction(1, 0, 2, 3), AbortedTransaction(2, 1, 5, 6), AbortedTransaction(3, 4, 6, 7)]
    with PartitionLogWriter(tmp_path, segment_bytes=3 * len(batch(0))) as writer:
        writer.add_aborted_transactions(aborted)
        writer.append(b"".join(batches(0, 8)))
    found = [one.aborted_transactions() for one in PartitionLog(tmp_path).segments()]
    assert found == [aborted[:1], aborted[1:2], aborted[2:]]


def test_offsets_that_go_back_behind_a_full_segment_are_refused(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path, segment_bytes=1) as writer:
        writer.append(batch(100) + batch(101))
        with pytest.raises(kf.InvalidRecordError, match="expected 102 or more, found 50"):
            writer.append(batch(50))
        assert writer.next_offset == 102
        writer.append(batch(102))
    assert offsets(PartitionLog(tmp_path).records()) == [100, 101, 102]


def test_offsets_that_the_log_holds_already_are_refused(tmp_path: Path) -> None:
    with PartitionLogWriter(tmp_path) as writer:
        writer.append(batch(0, 10))
    with PartitionLogWriter(tmp_path) as writer:
        assert writer.next_offset == 10
        with pytest.raises(kf.InvalidRecordError, match="expected 10 or more, found 5"):
            writer.append(batch(5))
        writer.append(batch(10))
    assert offsets(PartitionLog(tmp_path).records()) == list(range(11))


KILLED = """
import os, signal, sys
import kafkafmt.log.writer as writer_module
from kafkafmt.log import SegmentWriter

folder, data, stage = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3])
calls = 0

def count(function):
    def counted(*arguments):
        global calls
        if calls == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*arguments)
    return counted

for owner, name in ((os, "fsync"), (os, "pwrite"), (writer_module.Path, "rename"), (writer_module.Path, "open")):
    setattr(owner, name, count(getattr(owner, name)))
with SegmentWriter(folder, 0) as writer:
    writer.append(data[: len(data) // 2])
    writer.append(data[len(data) // 2 :])
print(calls)
"""


def test_writer_killed_at_any_point_leaves_no_segment_or_a_whole_one(tmp_path: Path) -> None:
    data = batches(0, 40)
    source = tmp_path / "data"
    source.write_bytes(b"".join(data))
    outcomes = []
    for stage in range(100):
        folder = tmp_path / f"a-{stage}"
        done = subprocess.run(
            [sys.executable, "-c", KILLED, folder, source, str(stage)], capture_output=True, text=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        seen = offsets(PartitionLog(folder).records())
        outcomes.append(len(seen))
        assert seen in ([], list(range(40)))
        if not seen:
            with PartitionLogWriter(folder) as writer:  # the next run
                assert remove_stale_temporaries(folder) == []
                writer.append(source.read_bytes())
            assert entries(folder / name(0), ".timeindex")[-1] == (DAY + 39, 39)
        temporaries = [path.name for path in folder.iterdir() if path.name.startswith(".")]
        assert temporaries == []
        if done.returncode == 0:
            break
    assert outcomes.count(0) >= 8  # before each write, sync, rename
    assert outcomes[-1] == 40


def test_temporaries_of_a_living_writer_stay(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        assert remove_stale_temporaries(tmp_path) == []
        assert len(list(tmp_path.iterdir())) == 1
    assert offsets(PartitionLog(tmp_path).records()) == [0]


def test_only_temporaries_of_dead_writers_are_removed(tmp_path: Path) -> None:
    token = "0123456789abcdef"
    stale = [tmp_path / f".{name(5, suffix)}.{token}.tmp" for suffix in (".index", ".log")]
    stale.append(tmp_path / f".{name(6, '.timeindex')}.{token}.tmp")
    others = [
        tmp_path / other for other in (name(5), f"{name(5)}.tmp", ".5.log.tmp", ".hidden", name(5, ".index"))
    ]
    for path in (*stale, *others):
        path.touch()
    assert remove_stale_temporaries(tmp_path) == stale
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_writer_whose_new_temporary_is_taken_for_stale_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, removed = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not removed and operation == fcntl.LOCK_EX:
            removed.extend(tmp_path.iterdir())
            removed[0].unlink()
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
    assert len(removed) == 1
    assert offsets(PartitionLog(tmp_path).records()) == [0]


def test_writer_when_its_wait_for_the_lock_is_interrupted_then_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".tmp":
            raise KeyboardInterrupt
        original(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(KeyboardInterrupt):
        SegmentWriter(tmp_path, 0)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_file_system_without_locks_is_written_and_its_temporaries_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        assert remove_stale_temporaries(tmp_path) == []
    assert offsets(PartitionLog(tmp_path).records()) == [0]


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    writer = SegmentWriter(tmp_path, 0)
    writer.append(batch(0))
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        writer.commit()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("again", [True, False], ids=["appended again", "given up"])
def test_append_that_filled_the_disk_leaves_nothing_in_the_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    original, calls = os.pwrite, []

    def write_a_part(descriptor: int, data: memoryview, position: int) -> int:
        calls.append(position)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return original(descriptor, data[:40], position)

    with SegmentWriter(tmp_path, 0) as writer:
        writer.append(batch(0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", write_a_part)
            with pytest.raises(OSError, match="No space"):
                writer.append(batch(1, size=500))
        if again:
            writer.append(batch(1, size=500))
    assert writer.path.stat().st_size == writer.size_in_bytes
    assert offsets(PartitionLog(tmp_path).records()) == ([0, 1] if again else [0])


def test_reader_beside_a_writer_sees_whole_segments_with_indexes_only(tmp_path: Path) -> None:
    done = threading.Event()
    problems: list[str] = []
    seen: set[int] = set()

    def read() -> None:
        last_round = False
        while not last_round:
            last_round = done.is_set()
            log = PartitionLog(tmp_path)
            read_offsets = offsets(log.records())
            seen.add(len(read_offsets))
            if read_offsets != list(range(len(read_offsets))) or len(read_offsets) % 4:
                problems.append(f"offsets {read_offsets}")
            problems.extend(
                f"{one} without indexes"
                for one in log.segments()
                if not all(one.path.with_suffix(s).exists() for s in (".index", ".timeindex"))
            )

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with PartitionLogWriter(tmp_path, segment_bytes=4 * len(batch(0))) as writer:
            for one in batches(0, 120):
                writer.append(one)
    finally:
        done.set()
        reader.join()
    assert problems == []
    assert max(seen) == 120


@pytest.mark.parametrize("opened", [LogAppender, PartitionLogWriter, partial(SegmentWriter, base_offset=0)])
def test_writer_when_given_a_uri_then_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[str], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OSError, match="cannot be written: expected a local path, found a URI: 's3://bucket/orders-0'"
    ):
        opened("s3://key:secret@bucket/orders-0?region=eu-west-1")
    assert list(tmp_path.iterdir()) == []
