"""`--follow` of a log directory: what is appended comes, until a signal."""

from __future__ import annotations

import json
import signal
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from child_processes import started
from cli.logs import FIRST_TIMESTAMP, command, run
from kafkafmt import RecordBatchBuilder
from kafkafmt.log import LogAppender


def append(folder: Path, first: int, count: int) -> None:
    """Append records whose keys, values and timestamps say their number."""
    with LogAppender(folder) as appender:
        builder = RecordBatchBuilder(base_offset=appender.next_offset)
        for number in range(first, first + count):
            builder.append(FIRST_TIMESTAMP + number, b"%d" % number, b"%d" % number)
        appender.append(builder.build())


def following(*arguments: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def values(running: subprocess.Popen[str], count: int) -> list[int]:
    assert running.stdout is not None
    return [int(json.loads(running.stdout.readline())["value"]) for _ in range(count)]


def test_replay_when_it_follows_a_folder_then_prints_what_is_appended_until_a_signal(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    append(logs / "a-0", 0, 3)
    append(logs / "a-1", 10, 1)
    options = ("--by-time", "--follow", "--max-idle", "0.1", "--from", FIRST_TIMESTAMP + 1)
    with following("replay", logs, *options, "--value-format", "json") as running:
        assert values(running, 3) == [1, 2, 10]
        append(logs / "a-1", 11, 2)  # the other partition is idle, and is not waited for
        assert values(running, 2) == [11, 12]
        append(logs / "a-0", 13, 1)
        assert values(running, 1) == [13]
        running.send_signal(signal.SIGTERM)
        rest, errors = running.communicate()
    assert (running.returncode, rest) == (0, "")
    assert "replayed 6 records of 2 partitions" in errors


def test_replay_when_the_folder_of_a_partition_is_deleted_then_the_others_continue(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    append(logs / "a-0", 0, 1)
    append(logs / "a-1", 10, 1)
    with following("replay", logs, "--by-time", "--follow", "--max-idle", "0.1") as running:
        assert values(running, 2) == [0, 10]
        for path in (logs / "a-0").iterdir():
            path.unlink()
        (logs / "a-0").rmdir()
        append(logs / "a-1", 11, 1)
        assert values(running, 1) == [11]
        running.send_signal(signal.SIGINT)
        running.communicate()
    assert running.returncode == 0


def test_table_when_it_follows_a_folder_then_has_what_was_appended(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    logs, out = tmp_path / "logs", tmp_path / "out.parquet"
    append(logs / "a-0", 0, 3)
    options = ("--follow", "--commit-interval", "0.1", "--verbose")
    with following("table", logs, out, *options) as running:
        assert running.stderr is not None
        while "3 records" not in running.stderr.readline():
            pass
        append(logs / "a-0", 3, 2)
        while "5 records" not in running.stderr.readline():
            pass
        running.send_signal(signal.SIGTERM)
        running.communicate()
    assert running.returncode == 0
    assert pq.read_table(out)["key"].to_pylist() == [b"%d" % number for number in range(5)]


def test_follow_when_partitions_are_read_one_after_the_other_then_is_refused(tmp_path: Path) -> None:
    append(tmp_path / "logs" / "a-0", 0, 1)
    result = run("replay", tmp_path / "logs", "--follow")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--follow needs --by-time" in result.stderr
