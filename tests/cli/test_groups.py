"""`kafkafmt groups` and `kafkafmt transactions`: tables, JSON, Parquet, selections, damage and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.logs import flip, is_one_line, run
from kafkafmt.log import consumer_offsets
from log.coordinators import FOLDER, OFFSETS, STATE, copied, offset_commit, transactional, write_log
from log.samples import DAY, name

LOGS = FOLDER / "4.x"


def rows(*arguments: object) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_groups_when_shown_then_each_offset_is_a_line() -> None:
    done = run("groups", LOGS)
    assert done.exit_code == 0
    heading, *lines = done.stdout.splitlines()
    assert "committed offset" in heading
    assert "metadata" not in heading
    assert len(lines) == len(list(consumer_offsets(LOGS).offset_rows()))


def test_groups_when_selected_then_others_are_left_out() -> None:
    assert {row["group_id"] for row in rows("groups", LOGS, "--group", "c*", "--group", "simple")} == {
        "classic",
        "consumer",
        "simple",
    }
    assert {row["topic"] for row in rows("groups", LOGS, "--topics", "ord*")} == {"orders"}
    assert run("groups", LOGS, "--topics", "none").stderr == "no offsets\n"


def test_groups_when_json_then_have_lag_and_metadata() -> None:
    first = rows("groups", LOGS, "--group", "classic")[0]
    assert (first["committed_offset"], first["log_end_offset"], first["lag"]) == (4, 10, 6)
    assert first["metadata"] == "metadata of orders-0"


def test_members_when_shown_then_have_subscriptions_and_assignments() -> None:
    found = rows("groups", LOGS, "--members", "--group", "consumer")
    assert sorted(name for row in found for name in row["assignment"]) == ["orders-0", "orders-1", "orders-2"]
    assert [row["subscribed_topics"] for row in found] == [["orders"], ["orders"]]


def test_groups_when_shown_at_a_time_then_are_those_of_then(tmp_path: Path) -> None:
    write_log(tmp_path / OFFSETS, [[offset_commit("a", 1)], [offset_commit("a", 2)]])
    assert DAY == 1_700_000_000_000
    for moment, offset in (
        ("2023-11-14T22:13:20Z", 1),
        ("2023-11-14T23:13:20.001+01:00", 2),
        ("2023-11-15", 2),
    ):
        (row,) = rows("groups", tmp_path, "--at", moment)
        assert (row["committed_offset"], row["lag"]) == (offset, None)
    assert is_one_line(run("groups", tmp_path, "--at", "yesterday").stderr)


@pytest.mark.parametrize("moment", ["1969-12-31", "0001-01-01T00:00:00+10:00"])
def test_groups_when_shown_at_a_time_before_1970_then_there_are_none(moment: str) -> None:
    done = run("groups", LOGS, "--at", moment)
    assert (done.exit_code, done.stderr) == (0, "no offsets\n")


def test_transactions_when_a_folder_has_no_log_then_says_so(tmp_path: Path) -> None:
    done = run("transactions", tmp_path)
    assert done.exit_code == 2
    assert is_one_line(done.stderr, (str(tmp_path), "no log of a partition"))


def test_groups_when_written_as_parquet_then_are_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    done = run("groups", LOGS, "--parquet", tmp_path / "groups.parquet")
    assert (done.exit_code, done.stdout) == (0, "")
    assert parquet.read_table(tmp_path / "groups.parquet").to_pylist() == rows("groups", LOGS)


def test_groups_when_a_batch_is_damaged_then_it_is_told_and_the_status_is_1(tmp_path: Path) -> None:
    folder = copied("3.9", tmp_path)
    flip(folder / OFFSETS / name(0), 100)
    done = run("groups", folder)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"damage: {OFFSETS} at offset 0, skipped: {folder / OFFSETS / name(0)}")
    assert done.stderr.count("\n") == 1
    assert "simple" in done.stdout


def test_groups_when_records_are_unknown_then_they_are_told(tmp_path: Path) -> None:
    write_log(tmp_path / OFFSETS, [[(b"\x01%c" % number, b"\0\0") for number in range(7)]])
    done = run("groups", tmp_path)
    assert done.exit_code == 0
    assert done.stderr.splitlines()[-2:] == ["not decoded: 7 records in all", "no offsets"]


def test_replicas_when_in_two_directories_then_one_is_read_and_told(tmp_path: Path) -> None:
    folder = copied("4.x", tmp_path)
    done = run("groups", LOGS, folder, "--json")
    assert done.stderr.startswith(
        f"{OFFSETS}: read from {LOGS / OFFSETS}, the longest log; not read: {folder}"
    )
    assert done.stdout == run("groups", LOGS, "--json").stdout


@pytest.mark.parametrize("command", ["groups", "transactions"])
def test_command_when_used_wrongly_then_says_so_in_one_line(command: str, tmp_path: Path) -> None:
    other = {"groups": ("--members", "--topics", "x"), "transactions": ("--all", "--hanging")}[command]
    for arguments in ((), (tmp_path / "none",), (LOGS, *other), (LOGS, "--force")):
        done = run(command, *arguments)
        assert done.exit_code == 2
        assert is_one_line(done.stderr)
    assert run("groups", tmp_path).stderr == f"kafkafmt: {tmp_path}: no partition of __consumer_offsets\n"


def test_transactions_when_shown_then_are_the_open_ones() -> None:
    found = rows("transactions", LOGS)
    assert [(row["transactional_id"], row["topic"], row["is_hanging"]) for row in found] == [
        ("open", "__consumer_offsets", False),
        ("open", "orders", False),
    ]
    assert run("transactions", LOGS).stdout.startswith("at 20")
    assert run("transactions", LOGS, "--hanging").stderr == "no transactions\n"


def test_transactions_when_all_are_shown_then_have_every_transactional_id() -> None:
    found = rows("transactions", LOGS, "--all")
    assert [row["transactional_id"] for row in found] == ["aborts", "commits", "empty", "open", "open"]


def test_transactions_when_judged_at_a_later_time_then_hang() -> None:
    found = rows("transactions", LOGS, "--hanging", "--at", "2100-01-01T00:00:00Z")
    assert {row["hanging_reason"] for row in found} == {"open for longer than its timeout of 600000 ms"}


def test_transaction_when_no_coordinator_knows_it_then_hangs(tmp_path: Path) -> None:
    folder = copied("4.x", tmp_path)
    with (folder / "orders-0" / name(0)).open("ab") as file:
        file.write(transactional(10, 4711, [(b"k", b"v")]))
    (row,) = rows("transactions", folder, "--hanging")
    assert (row["producer_id"], row["first_offset"], row["transactional_id"]) == (4711, 10, None)


def test_transactions_when_a_batch_is_damaged_then_it_is_told_and_the_status_is_1(tmp_path: Path) -> None:
    folder = copied("3.9", tmp_path)
    flip(folder / STATE / name(0), 100)
    done = run("transactions", folder)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"damage: {STATE} at offset 0, skipped: {folder / STATE / name(0)}")
    assert done.stderr.count("\n") == 1
