"""`--from` and `--to` of a damaged log: the search for a time meets the damage."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.logs import is_one_line, json_lines, run
from log.samples import DAY, batch, put_segment
from mirror.folders import records

SKIP = ("--on-corrupt", "skip")
MAGIC_POSITION = 16
# The search for both bounds passes the damage, which is not between them.
TIMES = ("--from", DAY + 25, "--to", DAY + 37)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A partition of 40 records, a millisecond apart. The second one of its batches of ten is damaged."""
    damaged = bytearray(batch(10, 10))
    damaged[MAGIC_POSITION] = 99
    parts = [batch(0, 10), bytes(damaged), batch(20, 10), batch(30, 10)]
    os.utime(put_segment(tmp_path / "logs" / "t-0", 0, parts), (0, 0))  # nothing is writing it
    return tmp_path / "logs"


def test_replay_when_damage_is_skipped_then_has_the_records_of_the_time(logs: Path) -> None:
    result = run("replay", logs, "-", *TIMES, *SKIP)
    assert result.exit_code == 0
    assert [row["offset"] for row in json_lines(result.stdout)] == list(range(25, 37))


def test_inspect_when_a_log_is_damaged_then_has_the_records_of_the_time_and_reports_the_damage(
    logs: Path,
) -> None:
    result = run("inspect", logs, "--records", "--json", *TIMES)
    assert [row["offset"] for row in json_lines(result.stdout)] == list(range(25, 37))
    assert result.exit_code == 1
    assert "magic" in result.stderr


def test_table_when_damage_is_skipped_then_has_the_records_of_the_time(logs: Path, tmp_path: Path) -> None:
    result = run("table", logs, tmp_path / "table", *TIMES, *SKIP, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["records"] == 12


def test_mirror_when_damage_is_skipped_then_has_the_records_of_the_time(logs: Path, tmp_path: Path) -> None:
    result = run("mirror", logs, tmp_path / "copy", *TIMES, *SKIP, "--json")
    assert result.exit_code == 0
    assert [row[0] for row in records(tmp_path / "copy")] == list(range(25, 37))


def test_export_when_damage_is_skipped_then_has_the_records_of_the_time(logs: Path, tmp_path: Path) -> None:
    result = run("export", logs, tmp_path / "lake", *TIMES, *SKIP)
    assert result.exit_code == 0
    assert pq.read_table(tmp_path / "lake" / "t")["offset"].to_pylist() == list(range(25, 37))


def test_mirror_when_damage_is_not_skipped_then_stops_its_partition_alone(logs: Path, tmp_path: Path) -> None:
    put_segment(logs / "t-1", 0, [batch(0, 10), batch(10, 10), batch(20, 10)])
    result = run("mirror", logs, tmp_path / "copy", *TIMES, "--json")
    assert result.exit_code == 1
    (stopped,) = json.loads(result.stdout)["stopped"]
    assert (stopped["partition"], "magic" in stopped["message"]) == (0, True)
    assert [row[0] for row in records(tmp_path / "copy", ("t", 1))] == list(range(25, 30))


@pytest.mark.parametrize("command", ["replay", "table"])
def test_command_when_damage_is_not_skipped_then_one_line_names_it(
    logs: Path, tmp_path: Path, command: str
) -> None:
    result = run(command, logs, "-" if command == "replay" else tmp_path / "target", *TIMES)
    assert result.exit_code in (1, 2)
    assert is_one_line(result.stderr)
    assert "magic" in result.stderr
