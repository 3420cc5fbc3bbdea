"""`kafkafmt table`: its file, its state, a kill in the middle, and what users get wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cli.logs import FIRST_TIMESTAMP, command, is_one_line, run, write_log
from jobs.logs import LogMaker, latest, make_logs
from kafkafmt.cli.table import table
from kafkafmt.jobs.table import TableState
from kafkafmt.types import TopicPartition

pytest.importorskip("rocksdict")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "logs"


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    """What a table's file holds; times in milliseconds."""
    return [
        (
            TopicPartition(row["topic"], row["partition"]),
            row["key"],
            row["value"],
            round((row["timestamp"] - _EPOCH).total_seconds() * 1000),
            row["offset"],
            row["timestampType"],
        )
        for row in pq.read_table(path).to_pylist()
    ]


def expected(logs: dict[TopicPartition, LogMaker]) -> list[tuple[Any, ...]]:
    found = latest({tp: log.committed for tp, log in logs.items()})
    return [
        (tp, key, row.value, row.timestamp, row.offset, row.timestamp_type)
        for (tp, key), row in sorted(found.items())
    ]


@pytest.mark.parametrize("memory", ["8m", "256m"])
def test_table_when_logs_are_of_every_kind_then_has_the_latest_of_each_key(
    source: Path, tmp_path: Path, memory: str
) -> None:
    logs = make_logs(source, topics=("a", "b"))
    out = tmp_path / "t.parquet"
    result = run("table", source, out, "--memory", memory, "--json")
    assert result.exit_code == 0, result.stderr
    assert rows_of(out) == expected(logs)
    summary = json.loads(result.stdout)
    assert summary["rows"] == len(expected(logs))
    assert summary["records"] == sum(len(log.committed) for log in logs.values())
    assert summary["peak_bytes"] <= summary["memory_bytes"]
    nulls = sum(row.key is None for log in logs.values() for row in log.committed)
    assert f"left out: {nulls} records without a key" in result.stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "t.parquet"]


def test_table_when_its_state_is_kept_then_the_next_one_reads_what_is_new(
    source: Path, tmp_path: Path
) -> None:
    logs = make_logs(source)
    state = ("--state", tmp_path / "state", "--json")
    assert run("table", source, tmp_path / "1.parquet", *state).exit_code == 0
    log = logs[TopicPartition("orders", 2)]
    log.plain(2, 30)
    log.write()
    result = run("table", source, tmp_path / "2.parquet", *state)
    assert json.loads(result.stdout)["records"] == 30
    assert rows_of(tmp_path / "2.parquet") == expected(logs)
    other = run("table", source, tmp_path / "3.parquet", *state, "--topics", "orders")
    assert other.exit_code == 2
    assert is_one_line(other.stderr, ["topics None, expected orders"])


# A command that is killed with 15 commits behind it, and more records read since.
KILLED_BEFORE_A_COMMIT = """
import itertools, os, signal
from kafkafmt.cli import main
from kafkafmt.jobs.table import Table

commit, commits = Table.commit, itertools.count()

def counted(table):
    if next(commits) == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    commit(table)

Table.commit = counted
main()
"""


def test_table_when_it_has_a_range_of_time_then_has_the_latest_values_within_and_its_state_keeps_that_range(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "logs" / "a-0")  # a key for each of 120 records, a millisecond apart
    times = ("--from", FIRST_TIMESTAMP + 31, "--to", FIRST_TIMESTAMP + 45)
    state = ("--state", tmp_path / "state")
    for number in range(2):
        assert run("table", log.parent, tmp_path / f"out-{number}", *times, *state).exit_code == 0
        offsets = pq.read_table(tmp_path / f"out-{number}")["offset"].to_pylist()
        assert sorted(offsets) == list(range(31, 45))
    other = run("table", log.parent, tmp_path / "other", "--from", FIRST_TIMESTAMP + 31, *state)
    assert (other.exit_code, other.stdout) == (2, "")
    assert is_one_line(other.stderr)
    assert f"is the state of a table with to {FIRST_TIMESTAMP + 45}, expected None" in other.stderr


@pytest.mark.full
def test_table_when_killed_then_the_next_run_goes_on_and_ends_with_the_same(
    source: Path, tmp_path: Path
) -> None:
    for number in range(3):
        write_log(source / f"orders-{number}", batches=200, records=300, segment_bytes=10**8)
    whole, out = tmp_path / "whole.parquet", tmp_path / "t.parquet"
    assert run("table", source, whole).exit_code == 0
    arguments = ("table", str(source), str(out), "--commit-interval", "0", "--verbose")
    for _ in range(2):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED_BEFORE_A_COMMIT, *arguments],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert "committed: " in killed.stderr
        assert not out.exists()
    result = run("table", source, out, "--json")
    assert result.exit_code == 0, result.stderr
    assert "continues from this state" in result.stderr
    assert json.loads(result.stdout)["records"] < 3 * 200 * 300
    assert rows_of(out) == rows_of(whole)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "t.parquet", "whole.parquet"]


def test_table_when_a_log_is_damaged_then_stops_there_or_leaves_that_out(
    source: Path, tmp_path: Path
) -> None:
    log = write_log(source / "orders-0", batches=20)
    (path, *_) = sorted(log.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = run("table", source, tmp_path / "t.parquet")
    assert result.exit_code == 1
    assert is_one_line(result.stderr, ["orders-0 at offset"])
    result = run("table", source, tmp_path / "t.parquet", "--on-corrupt", "skip")
    assert result.exit_code == 0, "what was left out as asked is no failure"
    assert "left out: orders-0 from offset" in result.stderr
    assert 0 < len(rows_of(tmp_path / "t.parquet")) < 200


def test_table_when_the_disk_is_full_then_says_so_and_the_next_run_goes_on(
    source: Path, tmp_path: Path
) -> None:
    write_log(source / "orders-0", batches=300, records=100, segment_bytes=10**8)
    out = tmp_path / "t.parquet"
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "-", *command("table", source, out)]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert is_one_line(done.stderr, ["t.parquet", "File too large"]), done.stderr
    assert not out.exists()
    assert run("table", source, out).exit_code == 0
    assert len(rows_of(out)) == 300 * 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "out"], ["nowhere", "no such folder"]),
        (["logs", "logs"], ["already exists"]),
        (["logs", "."], [".: already exists: a folder", "expected the name of a new file"]),
        (["logs", "/"], ["/: already exists: a folder"]),
        (["logs", ""], ["OUT", "expected a path, found ''"]),
        (["logs", "out", "--topics", "x*"], ["no topic matches 'x*'"]),
        (["logs", "out", "--memory", "1.5x"], ["expected a size of 1 byte to 64G", "found '1.5x'"]),
        (["logs", "out", "--memory", "1m"], ["at least", "found 1M"]),
        (["logs", "out", "--state", "logs"], ["expected the state of a table"]),
        (["logs", "nowhere/out"], ["nowhere"]),
        (["logs", "out", "--master", "local"], ["--master is for --engine spark"]),
        (["logs", "out", "--engine", "spark", "--state", "s"], ["--state is for --engine local"]),
    ],
)
def test_wrong_arguments_are_one_line(
    source: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    make_logs(source, batches=2)
    monkeypatch.chdir(source.parent)
    result = run("table", *arguments)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, words), result.stderr
    assert [one.name for one in source.parent.iterdir()] == ["logs"]


def test_table_when_extras_are_missing_then_says_all_of_them_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "clicks-0").mkdir()
    (tmp_path / "clicks-0" / "00000000000000000000.log").touch()
    for name in ("pyarrow", "rocksdict"):
        monkeypatch.setitem(sys.modules, name, None)
    result = CliRunner().invoke(table, [str(tmp_path), str(tmp_path / "out.parquet")])
    assert "rocksdict and pyarrow: pip install 'kafkafmt[store,arrow]'" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clicks-0"]


class _KilledError(BaseException):
    """Ends a run where a kill would."""


@pytest.mark.parametrize("step", ["before the state goes", "while the state goes", "before the rename"])
def test_table_when_killed_at_its_end_then_the_same_command_succeeds(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    logs, out = make_logs(source), tmp_path / "t.parquet"

    def kill(*_: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        if step == "before the state goes":
            patch.setattr(TableState, "remove", kill)
        elif step == "while the state goes":
            patch.setattr(shutil, "rmtree", kill)
        else:
            rename = Path.rename
            patch.setattr(Path, "rename", lambda path, to: kill() if to == out else rename(path, to))
        with pytest.raises(_KilledError):
            run("table", source, out)
    result = run("table", source, out)
    assert result.exit_code == 0, result.stderr
    assert rows_of(out) == expected(logs)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "t.parquet"]
    again = run("table", source, out)
    assert again.exit_code == 2
    assert "already exists" in again.stderr


@pytest.mark.parametrize("other", ["source", "topics", "file"])
def test_table_when_killed_while_its_state_goes_and_the_next_command_is_another_then_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    make_logs(source, topics=("orders", "payments"), partitions=1, batches=2)
    out = tmp_path / "t.parquet"

    def kill(*_: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", kill)
        with pytest.raises(_KilledError):
            run("table", source, out, "--topics", "orders")
    if other == "source":
        shutil.copytree(source, tmp_path / "other")
    elif other == "file":
        out.write_bytes(b"of a user")
    before = out.read_bytes()
    result = run(
        "table",
        tmp_path / "other" if other == "source" else source,
        out,
        "--topics",
        "payments" if other == "topics" else "orders",
    )
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ["t.parquet: already exists: --force replaces it"]), result.stderr
    assert out.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} - {"other"} == {"logs", "t.parquet"}


def test_table_when_a_state_is_kept_and_the_file_is_another_then_it_is_not_replaced(
    source: Path, tmp_path: Path
) -> None:
    make_logs(source)
    out, state = tmp_path / "t.parquet", tmp_path / "state"
    assert run("table", source, out, "--state", state).exit_code == 0
    assert run("table", source, out, "--state", state).exit_code == 2
    out.write_bytes(b"of a user")
    assert run("table", source, out, "--state", state).exit_code == 2
    assert out.read_bytes() == b"of a user"


def test_table_when_its_file_cannot_be_written_then_nothing_is_read_and_no_state_is_left(
    tmp_path: Path,
) -> None:
    write_log(tmp_path / "logs" / "orders-0")
    fifo = tmp_path / "table"
    os.mkfifo(fifo)
    for target, words in (
        (fifo, "expected a regular file, found a FIFO"),
        (Path("/proc/table.parquet"), "No such file or directory"),
    ):
        result = run("table", tmp_path / "logs", target, "--force", "--verbose")
        assert (result.exit_code, result.stderr) == (2, f"kafkafmt: {target}: {words}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "table"]
