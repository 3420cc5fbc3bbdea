"""A job is there wholly or not at all: overlaps, jobs that die, drivers killed in the middle of a commit, streams."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kafkafmt
from kafkafmt.errors import CorruptRecordError
from kafkafmt.log import LogDirectory
from kafkafmt.log.broker_files.cluster_files import CLEAN_SHUTDOWN
from kafkafmt.log.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    log_start_offsets_to_bytes,
    offset_checkpoint,
)
from kafkafmt.log.listing import list_segments
from kafkafmt.log.partition_metadata import read_topic_id, write_topic_id
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.spark.sink.commit import Commit, recover
from kafkafmt.spark.sink.manifest import StreamBatch
from kafkafmt.spark.sink.staging import Owner, new_attempt, remove
from kafkafmt.types import TopicPartition
from log.samples import batch, marker, put_segment, transactional
from log.test_log_start import start_at
from spark.reads import rows
from spark.writes import Rows, content, job, staged, write
from syncs import Syncs

COLUMNS = ("value", "topic", "partition", "offset")


def records(*offsets: int, topic: str = "t", partition: int = 0) -> list[dict[str, Any]]:
    return [
        {"value": b"%d" % offset, "topic": topic, "partition": partition, "offset": offset}
        for offset in offsets
    ]


def offsets(folder: Path, topic: str = "t", partition: int = 0) -> list[int]:
    log = LogDirectory(folder).partition((topic, partition))
    return [record.offset for record in log.records()]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kept", ["keep", "dense"])
def test_commit_when_it_returns_then_all_segments_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, overwrite: bool
) -> None:
    syncs = Syncs.noted(monkeypatch)
    for first in (0, 100):
        tasks = [records(*range(one, one + 50), partition=one % 3) for one in (first, first + 50)]
        write(tmp_path / "logs", *tasks, offsets=kept, overwrite=overwrite, segmentBytes=500)
    assert list(tmp_path.glob("logs/t-*/*.log"))
    assert syncs.lost(tmp_path, {".lock", ".kafkafmt-lock"}) == []


# Offsets that are kept


def test_ranges_when_apart_then_are_segments_wherever_they_lie(tmp_path: Path) -> None:
    write(tmp_path, records(100, 101), records(10, 19))
    write(tmp_path, records(*range(20, 100)), records(0, 9), records(102))
    names = [path.name for path in sorted(tmp_path.glob("t-0/*.log"))]
    assert names == [f"{base:020d}.log" for base in (0, 10, 20, 100, 102)]
    assert offsets(tmp_path) == [0, 9, 10, 19, *range(20, 103)]


@pytest.mark.parametrize(
    ("tasks", "line"),
    [
        ([records(0, 5), records(5, 9)], "partition t-0: offsets 0 to 5 and 5 to 9 overlap: repartition("),
        ([records(60), records(50, 59)], "partition t-0: offsets 50 to 59 overlap with those that are there, 50 to 59"),
        ([records(59, 70)], "partition t-0: offsets 59 to 70 overlap with those that are there, 50 to 59 ("),
        ([records(10, 50)], "partition t-0: offsets 10 to 50 overlap with those that are there, 50 to 59 ("),
        ([records(0, 99)], "partition t-0: offsets 0 to 99 overlap with those that are there, 50 to 59 ("),
        ([records(1, topic="other"), records(52, 53)], "partition t-0: offsets 52 to 53 overlap with"),
    ],
)  # fmt: skip
def test_ranges_when_they_overlap_then_one_line_and_nothing_is_written(
    tmp_path: Path, tasks: list[Rows], line: str
) -> None:
    write(tmp_path, records(*range(50, 60)))
    with pytest.raises(ValueError, match=line.replace("(", "\\(")) as caught:
        write(tmp_path, *tasks)
    assert "\n" not in str(caught.value)
    assert content(tmp_path) == ["t-0"]
    assert offsets(tmp_path) == list(range(50, 60))


def test_segment_that_is_empty_when_in_the_way_then_replaced_or_told(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{7:020d}.log").touch()
    with pytest.raises(ValueError, match=f"{7:020d}.log begins within offsets 5 to 8"):
        write(tmp_path, records(5, 8))
    write(tmp_path, records(7, 8))
    assert offsets(tmp_path) == [7, 8]


@pytest.mark.parametrize("overwrite", [False, True])
def test_offsets_when_below_the_log_start_then_refused_and_dense_ones_begin_there(
    tmp_path: Path, overwrite: bool
) -> None:
    write(tmp_path, records(0, 1, 2))
    start_at(10, tmp_path)
    with pytest.raises(
        ValueError, match="partition t-0: log-start-offset-checkpoint says that offsets below 10 are"
    ):
        write(tmp_path, records(9, 10), overwrite=overwrite)
    write(tmp_path, records(7), records(9), overwrite=overwrite, offsets="dense")
    assert offsets(tmp_path) == [10, 11]
    write(tmp_path, records(12, 15), overwrite=overwrite)
    assert offsets(tmp_path) == ([12, 15] if overwrite else [10, 11, 12, 15])
    assert content(tmp_path) == ["log-start-offset-checkpoint", "t-0"]


def test_partition_when_on_another_file_system_then_refused_and_later_writes_go_on(tmp_path: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs two file systems")
    with tempfile.TemporaryDirectory(dir=shared) as elsewhere:
        (tmp_path / "t-1").symlink_to(elsewhere)
        for overwrite in (False, True):
            with pytest.raises(
                OSError, match="expected a folder on the file system of its log directory"
            ) as caught:
                write(tmp_path, records(0), records(0, partition=1), overwrite=overwrite)
            assert caught.value.errno == errno.EXDEV
        assert content(tmp_path) == ["t-1"]
        write(tmp_path, records(0, 1))
        assert offsets(tmp_path) == [0, 1]


@pytest.mark.parametrize("overwrite", [False, True])
def test_partition_when_a_link_to_nothing_then_refused_and_later_writes_go_on(
    tmp_path: Path, overwrite: bool
) -> None:
    (tmp_path / "t-1").symlink_to(tmp_path / "unmounted" / "t-1")
    with pytest.raises(FileNotFoundError, match=r"expected a folder, found a link to nothing: .*t-1"):
        write(tmp_path, records(0), records(0, partition=1), overwrite=overwrite)
    assert content(tmp_path) == ["t-1"]
    write(tmp_path, records(0, 1))
    assert offsets(tmp_path) == [0, 1]


# Overwriting


def test_overwrite_when_committed_then_replaces_the_partitions_that_are_written(tmp_path: Path) -> None:
    write(tmp_path, records(0, 1, 2), records(5, 6), records(0, partition=1))
    write(tmp_path, records(1, 2), records(3), records(9, partition=2), overwrite=True)
    assert [offsets(tmp_path, partition=number) for number in range(3)] == [[1, 2, 3], [0], [9]]
    write(tmp_path, records(7), records(9), overwrite=True, offsets="dense")
    assert offsets(tmp_path) == [0, 1]
    assert content(tmp_path) == ["t-0", "t-1", "t-2"]


def test_overwrite_when_committed_then_the_topic_id_stays(tmp_path: Path) -> None:
    write(tmp_path, records(0, 1), records(0, partition=1))
    topic_id = uuid.uuid4()
    write_topic_id(tmp_path / "t-0", topic_id)
    write(tmp_path, records(5), records(7), records(9, partition=1), overwrite=True)
    assert [offsets(tmp_path, partition=number) for number in (0, 1)] == [[5, 7], [9]]
    assert [read_topic_id(tmp_path / f"t-{number}") for number in (0, 1)] == [topic_id, None]


def test_segment_when_put_before_a_snapshot_then_its_aborted_records_are_left_out(tmp_path: Path) -> None:
    for base in (10, 20):
        put_segment(tmp_path / "t-0", base, [batch(base, 2)])
        (tmp_path / "t-0" / f"{base:020}.snapshot").write_bytes(ProducerStates().snapshot())
    cell = transactional(12, 1, 2) + marker(14, 1, commit=False)
    write(tmp_path, [{"topic": "t", "partition": 0, "batch": cell}])
    found = kafkafmt.scan(tmp_path, isolation="read_committed").to_arrow()
    assert found["offset"].to_pylist() == [10, 11, 20, 21]
    assert [path.name for path in tmp_path.glob("t-0/*.snapshot")] == [f"{10:020}.snapshot"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_directory_of_a_stopped_broker_when_written_to_then_it_reads_the_new_batches(
    tmp_path: Path, overwrite: bool
) -> None:
    for partition in range(3):
        write(tmp_path, records(0, 1, 7, 8, partition=partition))
    (tmp_path / CLEAN_SHUTDOWN).write_bytes(b'{"version":0,"brokerEpoch":5}')
    points = tmp_path / RECOVERY_POINT_CHECKPOINT
    points.write_bytes(log_start_offsets_to_bytes({TopicPartition("t", number): 9 for number in range(3)}))
    write(tmp_path, records(9, 10), records(20, 21, partition=1), overwrite=overwrite)
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert offset_checkpoint(points) == {
        ("t", 0): 0 if overwrite else 9,
        ("t", 1): 0 if overwrite else 9,
        ("t", 2): 9,
    }
    points.write_bytes(b"damaged")
    write(tmp_path, records(30, partition=2), overwrite=overwrite)
    assert points.read_bytes() == b"damaged"


def test_recovery_points_when_they_cannot_be_read_then_refused_before_the_commit(tmp_path: Path) -> None:
    write(tmp_path, records(0))
    (tmp_path / RECOVERY_POINT_CHECKPOINT).mkdir()
    for overwrite in (False, True):
        with pytest.raises(OSError, match="regular file"):
            write(tmp_path, records(1), overwrite=overwrite)
    assert content(tmp_path) == [RECOVERY_POINT_CHECKPOINT, "t-0"]
    (tmp_path / RECOVERY_POINT_CHECKPOINT).rmdir()
    write(tmp_path, records(2))
    assert offsets(tmp_path) == [0, 2]


def test_job_without_rows_when_committed_then_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, records(0))
    for overwrite in (False, True):
        write(tmp_path, [], [], overwrite=overwrite)
    assert offsets(tmp_path) == [0]
    assert content(tmp_path) == ["t-0"]


# Jobs that end badly


def test_staging_when_not_committed_then_no_reader_sees_it(tmp_path: Path) -> None:
    write(tmp_path, records(0))
    one = job(tmp_path, *COLUMNS)
    staged(one, records(1, 2), records(3))
    assert len(content(tmp_path)) == 2
    assert offsets(tmp_path) == [0]
    patterns = ["", "/*", "/*/*.log", "/*-0"]
    assert [len(list_segments(f"{tmp_path}{pattern}")) for pattern in patterns] == [1] * 4
    assert len(rows(tmp_path)) == 1
    one.abort([])
    assert content(tmp_path) == ["t-0"]


def test_attempt_when_another_succeeded_then_is_not_counted(tmp_path: Path) -> None:
    one = job(tmp_path, *COLUMNS)
    staged(one, records(0, 1, 2))
    one.commit(staged(one, records(0, 1, 2), records(3)))
    assert offsets(tmp_path) == [0, 1, 2, 3]
    assert content(tmp_path) == ["t-0"]


def test_folder_when_an_executor_has_none_of_it_then_one_line(tmp_path: Path) -> None:
    one = job(tmp_path / "there", *COLUMNS)
    results = staged(one, records(0))
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="driver and executors have to share it"):
        staged(one, records(1))
    (tmp_path / "there").mkdir()
    with pytest.raises(FileNotFoundError, match="found no file: driver and executors have to share this"):
        one.commit(results)


def dead_owner() -> Owner:
    """This machine's, and a process that has ended."""
    found = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid(), open('/proc/self/stat').read().split()[21])"],
        capture_output=True,
        text=True,
        check=True,
    )
    process, started = map(int, found.stdout.split())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Owner(boot, str(Path("/proc/self/ns/pid").readlink()), process, started)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are told apart by /proc")
def test_staging_of_others_when_the_next_job_comes_then_that_of_the_dead_is_removed(tmp_path: Path) -> None:
    dead = dead_owner()
    me = replace(dead, process=os.getpid(), started=int(Path("/proc/self/stat").read_text().split()[21]))
    owners = {"dead": dead, "alive": me, "other machine": replace(dead, boot="elsewhere"), "unknown": None}
    names = {}
    for name, owner in owners.items():
        one = replace(job(tmp_path, *COLUMNS), owner=owner)
        names[name] = staged(one, records(0))[0].staging
    write(tmp_path, records(5))
    assert set(content(tmp_path)) == {"t-0", *(names[name] for name in owners if name != "dead")}
    recover(tmp_path, remove_staging=True)
    assert content(tmp_path) == ["t-0"]


KILLED = """
import json, os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from spark.sink.test_commit import COLUMNS, job, records, staged, write

folder, overwrite = Path(sys.argv[1]), sys.argv[2] == "True"
calls = 0

def count(function):
    def counted(*arguments, **options):
        global calls
        if calls == stage:
            os.kill(os.getpid(), signal.SIGKILL)
        calls += 1
        return function(*arguments, **options)
    return counted

for stage in range(60):
    write(folder / str(stage), records(0, 1))
    one = job(folder / str(stage), *COLUMNS, overwrite=overwrite)
    results = staged(one, records(7, 8), records(9, 20), records(5, partition=1))
    child = os.fork()
    if not child:
        Path.rename, Path.unlink, os.rmdir = count(Path.rename), count(Path.unlink), count(os.rmdir)
        one.commit(results)
        os._exit(0)
    if not os.waitpid(child, 0)[1]:
        break
"""


@pytest.mark.full
@pytest.mark.parametrize("overwrite", [False, True])
def test_driver_when_killed_anywhere_in_a_commit_then_the_next_write_shows_all_or_nothing(
    tmp_path: Path, overwrite: bool
) -> None:
    command = [sys.executable, "-c", KILLED, tmp_path, str(overwrite), Path(__file__).parents[2]]
    subprocess.run(command, check=True)
    before, after = [0, 1], ([7, 8, 9, 20] if overwrite else [0, 1, 7, 8, 9, 20])
    outcomes = []
    for stage in range(len(list(tmp_path.iterdir()))):
        folder = tmp_path / str(stage)
        visible = offsets(folder) if (folder / "t-0").exists() else None
        assert visible in ([before, None, after] if overwrite else [after[:2], after[:4], after])
        recover(folder, remove_staging=True)
        is_committed = "t-1" in content(folder)
        assert content(folder) == (["t-0", "t-1"] if is_committed else ["t-0"])
        assert offsets(folder) == (after if is_committed else before)
        assert not is_committed or offsets(folder, partition=1) == [5]
        outcomes.append(is_committed)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}
    assert len(outcomes) > 8


def test_task_when_it_fails_after_its_job_was_aborted_then_leaves_no_staging_folder(tmp_path: Path) -> None:
    failing = replace(job(tmp_path, *COLUMNS), owner=Owner("boot", "namespace", 1, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="a/b"):
            staged(failing, records(0, topic="a/b"))
        failing.abort([])
    with pytest.raises(ValueError, match="a/b"):
        staged(failing, records(0, topic="a/b"))
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_commit_that_failed_behind_the_manifest_when_aborted_then_is_finished_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = job(tmp_path, *COLUMNS)
    results = staged(one, records(0, 1), records(2, partition=1))

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kafkafmt.spark.sink.manifest.put_segment", fail)
        with pytest.raises(OSError, match="No space left"):
            one.commit(results)
    with caplog.at_level(logging.WARNING):
        one.abort(results)
    assert offsets(tmp_path) == [0, 1]
    assert content(tmp_path) == ["t-0", "t-1"]
    assert [message.partition(": ")[2] for message in caplog.messages] == [
        f"the commit of job {one.staging[10:42]}, which writes to t, had begun, and is finished: all of its rows are "
        "in the log directory, also if its write raised an error or was killed"
    ]


# Streams


def commit(folder: Path, query: str, number: int, *tasks: Rows, **options: object) -> None:
    one = job(folder, *COLUMNS, **options)
    results = [replace(result, query=query) for result in staged(one, *tasks)]
    one.commit(results, number)


@pytest.mark.parametrize("mode", ["keep", "dense"])
def test_batch_of_a_stream_when_committed_again_then_doubles_nothing(tmp_path: Path, mode: str) -> None:
    for number in (0, 1, 1, 2, 1, 0, 2, 3):
        commit(tmp_path, "q-1", number, records(number * 2), records(number * 2 + 1), offsets=mode)
    assert [row["value"] for row in rows(tmp_path, columns="value")] == [b"%d" % n for n in range(8)]
    assert offsets(tmp_path) == list(range(8))
    assert content(tmp_path) == [".kafkafmt-stream-q-1", "t-0"]
    commit(tmp_path, "another", 0, records(90), offsets=mode)
    assert len(offsets(tmp_path)) == 9


def test_batch_of_a_stream_when_its_driver_died_in_the_commit_then_is_known_to_be_there(
    tmp_path: Path,
) -> None:
    one = job(tmp_path, *COLUMNS)
    results = [replace(result, query="q") for result in staged(one, records(0, 1))]
    placed = Commit(tmp_path, keeps_offsets=True)
    placed._manifest(tmp_path / one.staging, results[0].segments, StreamBatch("q", 4))
    commit(tmp_path, "q", 4, records(0, 1))
    assert offsets(tmp_path) == [0, 1]
    assert json.loads((tmp_path / ".kafkafmt-stream-q").read_text()) == {"batch": 4}


def test_staging_of_a_stream_s_failed_batch_when_the_next_one_is_committed_then_is_removed(
    tmp_path: Path,
) -> None:
    failed = job(tmp_path, *COLUMNS)
    owner = Owner("elsewhere", "pid", 1, 1, query="q")
    replaced = replace(failed, owner=owner)
    new_attempt(tmp_path, replaced.staging, owner)
    commit(tmp_path, "q", 1, records(0))
    assert content(tmp_path) == [".kafkafmt-stream-q", "t-0"]


# Behind what is there


@pytest.mark.parametrize("mode", ["keep", "dense"])
@pytest.mark.parametrize("tail", [batch(20, 10)[:30], bytes(100)], ids=["cut-off batch", "zeros"])
def test_log_whose_end_is_cut_off_when_appended_to_then_one_line_and_it_stays_readable(
    tmp_path: Path, mode: str, tail: bytes
) -> None:
    put_segment(tmp_path / "t-0", 0, [batch(0), tail])
    before = offsets(tmp_path)
    with pytest.raises(CorruptRecordError, match=f"{0:020d}.log"):
        write(tmp_path, records(500, 501), offsets=mode)
    assert offsets(tmp_path) == before
    assert content(tmp_path) == ["t-0"]


def test_staging_when_its_removal_was_cut_short_then_still_tells_whose_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = replace(job(tmp_path, *COLUMNS), owner=replace(Owner.here() or Owner("", "", 1, 1), started=-1))
    staged(one, records(0))
    (staging,) = tmp_path.glob(".kafkafmt-*.staging")
    removed: list[str] = []

    def killed(path: Path, **_: object) -> None:
        removed.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("kafkafmt.spark.sink.staging.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove(staging)
    assert removed != [staging.name]
    assert (staging / "owner.json").exists()
