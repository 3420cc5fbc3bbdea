"""`kafkafmt replay`: by time and not, to a folder and to JSON lines, and what users get wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kafkafmt as kf
from cli.logs import command, is_one_line, json_lines, run, write_copies, write_log
from jobs.logs import Row, make_logs, merged
from kafkafmt.cli.replay_targets import ReplayClusterTarget
from kafkafmt.jobs.replay import ReplayError
from kafkafmt.log import LogDirectory, PartitionLog
from kafkafmt.types import TopicPartition


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def text_of(row: Row) -> tuple[Any, ...]:
    headers = [(key, value and value.decode()) for key, value in row.headers]
    return row.offset, row.timestamp, row.key and row.key.decode(), _text(row.value), headers


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def replayed_json(*arguments: object) -> list[tuple[TopicPartition, tuple[Any, ...]]]:
    result = run("replay", *arguments)
    assert result.exit_code == 0, result.stderr
    return [
        (
            TopicPartition(row["topic"], row["partition"]),
            (
                row["offset"],
                row["timestamp"],
                row["key"],
                row["value"],
                [(header["key"], header["value"]) for header in row["headers"]],
            ),
        )
        for row in json_lines(result.stdout)
    ]


@pytest.mark.parametrize("memory", ["10m", "256m"])
def test_json_when_by_time_then_is_all_partitions_merged(source: Path, memory: str) -> None:
    logs = {tp: log.committed for tp, log in make_logs(source, topics=("a", "b"), partitions=3).items()}
    found = replayed_json(source, "--by-time", "--memory", memory)
    assert found == [(tp, text_of(row)) for tp, row in merged(logs)]


def test_json_when_not_by_time_then_is_partition_after_partition(source: Path) -> None:
    logs = make_logs(source, topics=("a", "b"), partitions=2)
    expected = [(tp, text_of(row)) for tp in sorted(logs) for row in logs[tp].every]
    assert replayed_json(source, "--isolation", "read_uncommitted") == expected


def test_json_when_topics_are_named_then_has_those_alone(source: Path) -> None:
    make_logs(source, topics=("orders", "users", "__offsets"), partitions=1)
    assert {tp.topic for tp, _ in replayed_json(source)} == {"orders", "users"}
    assert {tp.topic for tp, _ in replayed_json(source, "--topics", "u*")} == {"users"}
    assert {tp.topic for tp, _ in replayed_json(source, "--topics", "__*")} == {"__offsets"}


def test_json_when_topics_are_several_then_has_all_that_match_one(source: Path) -> None:
    make_logs(source, topics=("orders", "users", "user-log", "clicks"), partitions=1)
    found = replayed_json(source, "--topics", "orders,user*")
    assert {tp.topic for tp, _ in found} == {"orders", "users", "user-log"}


def test_topics_when_one_of_several_matches_nothing_then_is_named(source: Path) -> None:
    make_logs(source, topics=("orders",), partitions=1)
    result = run("replay", source, "--topics", "orders,user*")
    assert (result.exit_code, result.stdout) == (2, "")
    assert is_one_line(result.stderr)
    assert "no topic matches 'user*'" in result.stderr


def first_at(folder: Path, timestamp: int) -> float:
    """The offset of the first record at or after a time; infinity without one."""
    records = (record for batch in PartitionLog(folder).batches() for record in batch)
    return next((record.offset for record in records if record.timestamp >= timestamp), float("inf"))


@pytest.mark.parametrize("order", [("--by-time",), ()], ids=["by time", "in order"])
@pytest.mark.parametrize("threads", [1, 2])
def test_json_when_it_has_a_range_of_time_then_begins_and_ends_at_the_first_records_of_each_partition(
    source: Path, order: tuple[str, ...], threads: int
) -> None:
    logs = {tp: log.committed for tp, log in make_logs(source, topics=("a", "b"), partitions=3).items()}
    times = sorted(row.timestamp for rows in logs.values() for row in rows)
    start, end = times[len(times) // 4], times[len(times) * 3 // 4]
    expected = {}
    for tp, rows in logs.items():
        first, last = (first_at(source / f"{tp.topic}-{tp.partition}", time) for time in (start, end))
        expected[tp] = [row for row in rows if first <= row.offset < last]
    options = ("--from", start, "--to", end, "--threads", threads, *order)
    found = replayed_json(source, *options)
    assert {tp: len(rows) for tp, rows in expected.items()} != {tp: len(rows) for tp, rows in logs.items()}
    in_order = [(tp, row) for tp in sorted(expected) for row in expected[tp]]
    assert found == [(tp, text_of(row)) for tp, row in (merged(expected) if order else in_order)]


def test_json_when_no_record_is_that_late_then_is_empty(source: Path) -> None:
    logs = make_logs(source, topics=("a",), partitions=1)
    latest = max(row.timestamp for log in logs.values() for row in log.every)
    assert replayed_json(source, "--from", latest + 86_400_000) == []
    assert replayed_json(source, "--from", "-0s") == []
    assert len(replayed_json(source, "--to", latest + 86_400_000)) == len(replayed_json(source))


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_folder_when_by_time_then_each_topic_is_one_log_in_the_order_of_time(
    source: Path, tmp_path: Path, codec: str | None
) -> None:
    logs = {tp: log.committed for tp, log in make_logs(source, topics=("a", "b")).items()}
    target = tmp_path / "merged"
    result = run("replay", source, target, "--by-time", "--json", *(("--codec", codec) if codec else ()))
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["records"] == sum(map(len, logs.values()))
    assert summary["peak_bytes"] <= summary["memory_bytes"]
    assert sorted(LogDirectory(target).folders()) == [("a", 0), ("b", 0)]
    assert run("verify", target).exit_code == 0
    for topic in ("a", "b"):
        expected = [row for tp, row in merged(logs) if tp.topic == topic]
        log = PartitionLog(target / f"{topic}-0")
        found = list(log.records())
        assert [record.offset for record in found] == list(range(len(expected)))
        assert [(r.timestamp, r.key, r.value, tuple(r.headers)) for r in found] == [
            (row.timestamp, row.key, row.value, row.headers) for row in expected
        ]
        assert {batch.codec for batch in log.batches()} == {kf.Codec[(codec or "none").upper()]}
        assert {batch.magic for batch in log.batches()} == {2}
        latest = max(row.timestamp for row in expected)
        at = log.find_timestamp(latest)
        assert at is not None
        assert expected[at.offset].timestamp == latest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "merged"]


def test_folder_when_it_cannot_be_finished_then_nothing_is_there(source: Path, tmp_path: Path) -> None:
    log = write_log(source / "orders-0", batches=20)
    (path, *_) = sorted(log.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = run("replay", source, tmp_path / "merged", "--by-time")
    assert result.exit_code == 1
    assert is_one_line(result.stderr, ["orders-0 at offset"])
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]
    result = run("replay", source, tmp_path / "merged", "--by-time", "--on-corrupt", "skip")
    assert result.exit_code == 0, "what was left out as asked is no failure"
    assert "left out: orders-0 from offset" in result.stderr
    assert 0 < len(list(PartitionLog(tmp_path / "merged/orders-0").records())) < 200


@pytest.mark.usefixtures("interrupts")
def test_folder_when_interrupted_then_nothing_is_there(source: Path, tmp_path: Path) -> None:
    log = write_copies(source / "orders-0", 300, records=1000, segment_bytes=10**8)
    for partition in range(1, 40):  # more than any machine replays before the signal comes
        shutil.copytree(log, source / f"orders-{partition}", copy_function=os.link)
    folder = tmp_path / "merged"
    arguments = command("replay", source, folder, "--by-time", "--codec", "zstd")
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as process:
        while not list(tmp_path.glob(".merged.*/orders-0")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.strip() == "kafkafmt: interrupted"
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]


def test_folder_when_it_cannot_be_written_then_names_it_and_nothing_is_there(
    source: Path, tmp_path: Path
) -> None:
    write_log(source / "orders-0", batches=300)
    folder = tmp_path / "merged"
    limited = ["bash", "-c", 'ulimit -f 50; exec "$@"', "-", *command("replay", source, folder, "--by-time")]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert is_one_line(done.stderr, ["merged", "orders-0", "File too large"]), done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ["nowhere", "no such folder"]),
        (["."], ["expected folders of partitions"]),
        (["logs", "--topics", "x*"], ["no topic matches 'x*'"]),
        (["logs", "logs"], ["already exists"]),
        (["logs", "--memory", "many"], ["expected a size of 1 byte to 64G", "found 'many'"]),
        (["logs", "--by-time", "--memory", "1m"], ["4 partitions", "at least 2M", "found 1M"]),
        (["logs", "--codec", "zstd"], ["--codec is for a folder or a cluster"]),
        (["logs", "out", "--repartition"], ["are for a cluster"]),
        (["logs", "nowhere/out"], ["nowhere"]),
        (["logs", "kafka://localhost:1/a,b"], ["expected at most one topic"]),
        (["logs", "kafka://localhost"], ["expected HOST:PORT"]),
    ],
)
def test_wrong_arguments_are_one_line(
    source: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    make_logs(source, batches=2)
    monkeypatch.chdir(source.parent)
    result = run("replay", *arguments)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, words), result.stderr
    assert [one.name for one in source.parent.iterdir()] == ["logs"]


STAGING = """
import sys
from pathlib import Path
from kafkafmt._util.staging import StagedFolder

staged = StagedFolder(Path(sys.argv[1]))
(staged.path / "a-0").mkdir()
print(staged.path.name, flush=True)
sys.stdin.read()
"""


def test_replay_to_a_folder_when_another_stages_for_it_then_removes_that_only_once_it_is_dead(
    source: Path, tmp_path: Path
) -> None:
    make_logs(source, batches=2)
    unlike = [tmp_path / name for name in (".merged.copy.tmp", ".merged.2.7.tmp", ".other.7.tmp")]
    for folder in unlike:
        folder.mkdir()
    target = tmp_path / "merged"
    with subprocess.Popen(
        [sys.executable, "-c", STAGING, target], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        other = tmp_path / process.stdout.readline().strip()
        assert run("replay", source, target).exit_code == 0
        assert (other / "a-0").is_dir()
        process.kill()
    target.rename(tmp_path / "first")
    assert (other / "a-0").is_dir()
    assert run("replay", source, target).exit_code == 0
    assert {*tmp_path.iterdir()} == {source, target, tmp_path / "first", *unlike}


def test_replay_to_a_folder_when_a_killed_one_left_its_part_then_begins_anew(
    source: Path, tmp_path: Path
) -> None:
    make_logs(source)
    left = tmp_path / f".merged.{os.getpid()}.tmp" / "a-0"
    left.mkdir(parents=True)
    (left / "00000000000000000000.log").write_bytes(b"half a batch")
    result = run("replay", source, tmp_path / "merged", "--by-time")
    assert result.exit_code == 0, result.stderr
    assert PartitionLog(tmp_path / "merged" / "orders-0").end_offset > 0
    assert not left.parent.exists()


def test_cluster_when_its_settings_are_not_utf_8_then_one_line_names_the_byte(
    source: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "target.properties"
    settings.write_bytes(b"client_id=\xff\n")
    result = run("replay", source, "kafka://127.0.0.1:1", "--target-config-file", settings)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["target.properties", "expected UTF-8, found 0xff at byte 10"])


def test_topic_when_it_was_created_after_the_start_then_the_target_refuses_it_in_one_line() -> None:
    target: Any = SimpleNamespace(_only_topic=None, _repartitions=False, _counts={"t": 1})
    assert ReplayClusterTarget._target_of(target, TopicPartition("t", 1), None) == TopicPartition("t", 0)
    with pytest.raises(ReplayError, match=r"^u-0: expected a topic that was there at the start"):
        ReplayClusterTarget._target_of(target, TopicPartition("u", 0), None)
