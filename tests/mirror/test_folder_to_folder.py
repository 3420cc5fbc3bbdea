"""A log directory mirrored to another, by the command line."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from child_processes import started
from cli.logs import command, run
from kafkafmt.log import LogAppender, LogDirectory
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, set_topic_config
from log.samples import LOGS, marker, transactional
from mirror.folders import (
    KEPT,
    NOW,
    batch,
    batches,
    log_bytes,
    mirror,
    put_log,
    records,
    stopped,
)
from mirror.reading import end_of
from mirror.running import SECONDS, wait_until

pytestmark = pytest.mark.slow


def following(source: Path, target: Path, *options: object) -> AbstractContextManager[subprocess.Popen[str]]:
    """A mirror that follows."""
    return started(
        command("mirror", source, target, "--follow", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_end(target: Path, offset: int, partition: tuple[str, int] = ("t", 0)) -> None:
    """Until the log there ends at that offset: each look asks the file system."""
    wait_until(lambda: end_of(target, *partition) >= offset)


def test_bytes_offsets_and_topics_are_those_of_the_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches())
    put_log(source / "t-1", batches(1000, 1200))
    put_log(source / "u-0", [batch(5)])
    set_topic_config(source, "t", TopicConfig(4, {"cleanup.policy": "compact"}))
    ended = mirror(source, target)
    assert ended.status == 0
    for partition in ("t-0", "t-1", "u-0"):
        assert log_bytes(target / partition) == log_bytes(source / partition)
    assert read_topic_configs(target) == {
        "t": TopicConfig(4, {"cleanup.policy": "compact"}),
        "u": TopicConfig(1, KEPT),
    }
    assert ended.summary["batches"] == 51
    assert ended.summary["records"] == 510
    assert ended.summary["lag"] == {"t-0": 0, "t-1": 0, "u-0": 0}


def test_real_logs_are_copied_byte_by_byte(tmp_path: Path) -> None:
    assert mirror(LOGS, tmp_path).status == 0
    for topic_partition, folder in LogDirectory(LOGS).folders().items():
        # One of them is preallocated, with zeros behind its last batch.
        assert log_bytes(folder).rstrip(b"\0") == log_bytes(tmp_path / str(topic_partition)).rstrip(b"\0")


def test_mirror_that_begins_again_goes_on_where_it_ended(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 100))
    mirror(source, target)
    shutil.rmtree(source)
    put_log(source / "t-0", batches(0, 200))
    ended = mirror(source, target)
    assert ended.summary["batches"] == 10
    assert log_bytes(target / "t-0") == log_bytes(source / "t-0")


def test_mirror_that_was_killed_goes_on_exactly_where_it_was(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 3000), segment_bytes=1 << 20)
    mirror(source, target)
    (segment,) = (target / "t-0").glob("*.log")
    os.truncate(segment, segment.stat().st_size // 2 + 1)  # what a crash leaves: the beginning of a batch
    assert mirror(source, target).status == 0
    assert log_bytes(target / "t-0") == log_bytes(source / "t-0")


def test_following_mirror_moves_what_comes_and_ends_at_sigterm(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with LogAppender(source / "t-0") as appender:
        appender.append(batch(0))
        with following(source, target, "--json") as running:
            wait_for_end(target, 10)
            appender.append(batch(10) + batch(20))
            appender.flush()
            wait_for_end(target, 30)
            running.send_signal(signal.SIGTERM)
            summary, errors = running.communicate(timeout=SECONDS)
            assert running.returncode == 0, errors
            assert '"batches": 3' in summary
    assert log_bytes(target / "t-0") == log_bytes(source / "t-0")


def test_partition_that_comes_and_one_that_goes_while_a_mirror_follows(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", [batch(0)])
    with following(source, target, "--json") as running:
        wait_for_end(target, 10)
        shutil.rmtree(source / "t-0")
        put_log(source / "u-3", [batch(5)])
        wait_for_end(target, 15, ("u", 3))
        running.send_signal(signal.SIGINT)
        summary, errors = running.communicate(timeout=SECONDS)
        assert running.returncode == 0, errors
        assert '"lag": {"u-3": 0}' in summary
    assert read_topic_configs(target)["u"] == TopicConfig(4, KEPT)


def test_metrics_and_progress_tell_what_was_moved(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 100))
    with following(source, target, "--metrics-port", 0, "--progress", 0.05) as running:
        assert running.stderr is not None
        lines = iter(running.stderr.readline, "")
        address = next(line for line in lines if line.startswith("metrics are served on ")).split()[-1]
        wait_for_end(target, 100)
        # The first ones may be of a time when records were still to come.
        told = (json.loads(line) for line in lines if '"progress of a partition"' in line)
        assert next(one["partition"] for one in told if one["lag"] == 0) == "t-0"
        with urlopen(f"http://{address}/metrics", timeout=SECONDS) as response:
            text = response.read().decode()
    for line in (
        'kafkafmt_mirror_batches_total{partition="0",topic="t"} 10.0',
        'kafkafmt_mirror_records_total{partition="0",topic="t"} 100.0',
        'kafkafmt_mirror_lag{partition="0",topic="t"} 0.0',
        "kafkafmt_mirror_stopped_partitions 0.0",
        'kafkafmt_memory_held_bytes{budget="mirror.producer"} 0.0',
    ):
        assert line in text


def test_from_latest_begins_at_the_end_and_goes_on_there(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 100))
    assert mirror(source, target, "--from", "latest").summary["batches"] == 0


def test_from_latest_when_an_earlier_run_began_an_empty_partition_then_has_all_records_since(
    tmp_path: Path,
) -> None:
    """No topic id says that the partition was begun."""
    source, target = tmp_path / "source", tmp_path / "target"
    for end in (0, 100, 200):
        with LogAppender(source / "t-0") as log:
            for one in batches(log.next_offset, end):
                log.append(one)
        assert mirror(source, target, "--from", "latest").status == 0
        assert log_bytes(target / "t-0") == log_bytes(source / "t-0")


def test_transactions_are_kept_whole_or_left_out_by_isolation(tmp_path: Path) -> None:
    source = tmp_path / "source"
    data = [
        transactional(0, 7, 3),
        transactional(3, 8, 2),
        marker(5, 7, commit=False),
        marker(6, 8, commit=True),
        batch(7, 2),
        transactional(9, 9, 2),
        batch(11, 2),
    ]
    put_log(source / "t-0", data)
    assert mirror(source, tmp_path / "all").status == 0
    assert log_bytes(tmp_path / "all" / "t-0") == b"".join(data)
    ended = mirror(source, tmp_path / "committed", "--isolation", "read_committed")
    assert [offset for offset, *_ in records(tmp_path / "committed")] == [3, 4, 5, 6, 7, 8]
    assert ended.summary["lag"] == {"t-0": 0}


@pytest.mark.parametrize("options", [(), ("--deep", "--codec", "gzip"), ("--to", NOW + 12)])
def test_transactions_when_read_committed_wrote_a_folder_then_all_readers_see_their_records(
    tmp_path: Path, options: tuple[Any, ...]
) -> None:
    """Readers with `read_committed`, as a mirror into a cluster, wait for the markers of transactions otherwise."""
    source, target = tmp_path / "source", tmp_path / "target"
    data = [
        batch(0, 2),
        transactional(2, 7, 2),
        transactional(4, 8, 2),
        marker(6, 8, commit=True),
        marker(7, 7, commit=False),
        transactional(8, 7, 2),  # its marker is behind the last stable offset, and behind --to
        batch(10, 2),
        transactional(12, 8),
        marker(13, 7, commit=True),
    ]
    put_log(source / "t-0", data)
    assert mirror(source, target, "--isolation", "read_committed", *options).status == 0
    log = LogDirectory(target).partition(("t", 0))
    for isolation in ("read_committed", "read_uncommitted"):
        found = [record.offset for record in log.records(isolation=isolation)]
        assert found == [0, 1, 4, 5, 8, 9, 10, 11]
    assert all(one.is_valid() for one in log.batches())
    assert not any(one.is_transactional for one in log.batches() if not one.is_control)


def test_transactions_when_read_uncommitted_left_them_open_then_markers_end_them_with_read_committed(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", [transactional(0, 7, 2), transactional(2, 8, 2)])
    assert mirror(source, target).status == 0
    put_log(source / "t-0", [marker(4, 7, commit=False), marker(5, 8, commit=True)])
    assert mirror(source, target, "--isolation", "read_committed").status == 0
    log = LogDirectory(target).partition(("t", 0))
    assert [record.offset for record in log.records(isolation="read_committed")] == [2, 3]


def test_damage_stops_its_partition_and_the_others_go_on(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    damaged = bytearray(b"".join(batches(0, 50)))
    damaged[len(batch(0)) + 80] ^= 1
    folder = source / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(damaged)
    put_log(source / "u-0", batches(0, 50))
    ended = mirror(source, target)
    assert ended.status == 1
    assert stopped(ended.summary) == {"t-0": 10}
    assert log_bytes(target / "t-0") == batch(0)
    assert log_bytes(target / "u-0") == log_bytes(source / "u-0")


@pytest.mark.parametrize("where", ["a record", "a length", "the last batch"])
def test_damage_is_passed_over_where_that_is_wanted_and_told(where: str, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    good = batches(0, 50)
    data = [bytearray(one) for one in good]
    bad = 4 if where == "the last batch" else 1
    data[bad][8 if where == "a length" else 80] ^= 0x7F
    folder = source / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(b"".join(data))
    os.utime(folder / f"{0:020d}.log", (0, 0))  # nobody is writing it
    ended = mirror(source, target, "--on-corrupt", "skip")
    assert ended.status == 0, "what was passed over as asked is no failure"
    assert log_bytes(target / "t-0") == b"".join(one for number, one in enumerate(good) if number != bad)
    (skipped,) = ended.summary["skipped"]
    assert skipped["first_offset"] == 10 * bad
    assert skipped["next_offset"] == (None if where == "the last batch" else 20)


def test_damage_at_the_end_of_a_segment_is_passed_over_to_the_next_one(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    folder = source / "t-0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}.log").write_bytes(batch(0) + batch(10)[:-5])
    (folder / f"{20:020d}.log").write_bytes(batch(20))
    ended = mirror(source, target, "--on-corrupt", "skip")
    assert log_bytes(target / "t-0") == batch(0) + batch(20)
    (skipped,) = ended.summary["skipped"]
    assert (skipped["first_offset"], skipped["next_offset"]) == (10, 20)


def test_source_that_is_behind_the_target_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 50))
    put_log(target / "t-0", batches(0, 100))
    ended = mirror(source, target)
    assert ended.status == 1
    assert (
        "the source ends at offset 50, and the mirror continues at 100"
        in ended.summary["stopped"][0]["message"]
    )


def test_second_mirror_into_a_folder_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 50))
    with LogAppender(target / "t-0"):
        ended = mirror(source, target)
    assert ended.status == 1
    assert "another writer has the log open" in ended.summary["stopped"][0]["message"]


def test_full_disk_ends_the_mirror_in_one_line_and_it_goes_on_later(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 20_000, 100), segment_bytes=1 << 20)
    limit = log_bytes(source / "t-0")
    ended = subprocess.run(
        command("mirror", source, target),
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (len(limit) // 2,) * 2),
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("kafkafmt: ")
    assert "Traceback" not in ended.stderr
    assert limit.startswith(log_bytes(target / "t-0"))
    assert mirror(source, target).status == 0
    assert log_bytes(target / "t-0") == limit


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--codec", "gzip"], "need --deep"),
        (["--deep"], "--deep into a folder needs --codec or --handler"),
        (["--deep", "--repartition"], "needs a cluster as target"),
        (["--batch-size", "64K"], "--batch-size needs --adaptive, or --deep into a cluster"),
        (["--deep", "--codec", "lz4", "--batch-size", "64K"], "--batch-size needs --adaptive"),
        (["--source-config", "x"], "expected KEY=VALUE"),
        (["--segment-bytes", "256m"], "needs a URI as DST: for a folder, --topic-config segment.bytes=BYTES"),
        (["--segment-age", "300"], "--segment-age needs a URI as DST"),
        (["--spool", "spool"], "--spool needs a URI as DST"),
        (["--spool-bytes", "1g"], "--spool-bytes needs a URI as DST"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    put_log(tmp_path / "source" / "t-0", [batch(0)])
    ended = mirror(tmp_path / "source", tmp_path / "target", *options)
    assert ended.status == 2
    assert message in ended.errors
    assert ended.errors.count("\n") == 1
    assert not (tmp_path / "target").exists()


def test_target_within_the_source_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    put_log(source / "t-0", [batch(0)])
    assert "expected folders apart" in mirror(source, source / "copy").errors
    assert "expected folders apart" in mirror(source, source).errors


def test_source_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    ended = mirror(tmp_path / "none", tmp_path / "target")
    assert (ended.status, ended.errors) == (2, f"kafkafmt: {tmp_path / 'none'}: no such folder\n")


@pytest.mark.parametrize(
    "folders", [[], ["data"], ["__consumer_offsets-0"]], ids=["empty", "too-high", "internal"]
)
def test_source_when_no_partition_is_in_it_then_is_refused_as_convert_does(
    tmp_path: Path, folders: list[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in folders:
        put_log(source / name / "t-0" if name == "data" else source / name, [batch(0)])
    ended = mirror(source, tmp_path / "target")
    meant = f"; did you mean {source / 'data'}?" if folders == ["data"] else ""
    expected = f"{source}: no segments here, neither in it nor in folders named <topic>-<partition>{meant}"
    if folders == ["__consumer_offsets-0"]:
        expected = f"{source}: no topic is here but those whose names begin with two underscores"
    else:
        assert run("convert", source, tmp_path / "v1", "--to-magic", 1).stderr == f"kafkafmt: {expected}\n"
    assert (ended.status, ended.errors) == (2, f"kafkafmt: {expected}\n")
    assert not (tmp_path / "target").exists()


def test_source_when_a_mirror_follows_it_then_may_be_empty_but_not_too_high(tmp_path: Path) -> None:
    source, target = tmp_path / "east" / "data", tmp_path / "target"
    source.mkdir(parents=True)
    with following(source, target, "--json") as running:
        put_log(source / "t-0", [batch(0)])
        wait_for_end(target, 10)
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=SECONDS)
    assert running.returncode == 0
    ended = mirror(source.parent, tmp_path / "other", "--follow")
    assert ended.status == 2
    assert ended.errors.endswith(f"; did you mean {source}?\n")


MOST_FILES, MANY = 96, 200


@pytest.mark.full
def test_mirror_when_partitions_are_more_than_files_may_be_open_then_copies_all(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(MANY):
        put_log(source / f"t-{number}", [batch(0)])
    ended = subprocess.run(
        command("mirror", source, target, "--json"),
        capture_output=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES)),
        text=True,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["batches"] == MANY
    for number in range(MANY):
        assert log_bytes(target / f"t-{number}") == batch(0)


def test_stop_when_standard_error_is_no_terminal_then_is_told_once(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    put_log(source / "t-0", batches(0, 50))
    put_log(target / "t-0", batches(0, 100))
    ended = run("mirror", source, target)
    assert ended.exit_code == 1
    assert ended.stderr.count("the source ends at offset 50") == 1
    assert "stopped: 1 partition;" in ended.stdout
