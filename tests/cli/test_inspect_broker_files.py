"""`kafkafmt inspect` of the files beside segments."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.logs import is_one_line, json_lines, run
from kafkafmt.log import broker_file_rows
from kafkafmt.log.broker_files.kinds import kind_of
from log.test_broker_files import FILES, small_samples

DIRECTORY = FILES / "4.3"
ORDERS = DIRECTORY / "orders-0"


@pytest.mark.parametrize("path", small_samples(), ids=lambda path: path.relative_to(FILES).as_posix())
def test_file_when_inspected_then_rows_are_the_same_in_every_output(path: Path, tmp_path: Path) -> None:
    rows = list(broker_file_rows(path))
    found = json_lines(run("inspect", path, "--json").stdout)
    assert found == [{"path": str(path), **row} for row in rows]
    target = tmp_path / "rows.parquet"
    assert run("inspect", path, "--parquet", target).exit_code == 0
    assert pq.read_table(target).to_pylist() == found
    table = run("inspect", path)
    assert table.exit_code == 0
    lines = table.stdout.splitlines()
    if rows:
        assert lines[0] == str(path)
        assert len(lines) == 2 + len(rows)
    else:
        assert table.stderr.startswith(f"{path}: no ")


def test_files_when_they_match_a_pattern_then_all_are_shown() -> None:
    rows = json_lines(run("inspect", f"{FILES}/*/*-checkpoint", "--json").stdout)
    assert len({row["path"] for row in rows}) == 8
    result = run("inspect", f"{ORDERS}/*.snapshot", ORDERS / "leader-epoch-checkpoint")
    assert result.exit_code == 0
    assert result.stdout.count("producer id") == 7
    assert result.stdout.count("start offset") == 1


def test_file_when_malformed_then_the_others_are_shown_and_the_status_is_1(tmp_path: Path) -> None:
    bad = tmp_path / "quorum-state"
    bad.write_text("{")
    result = run("inspect", bad, DIRECTORY / "meta.properties")
    assert result.exit_code == 1
    assert f"damage: {bad}: position 1: expected a JSON object, found the end" in result.stderr
    assert "cluster id" in result.stdout


def test_file_when_renamed_then_the_error_lists_the_known_names(tmp_path: Path) -> None:
    copy = tmp_path / "copy.bin"
    shutil.copy(DIRECTORY / "meta.properties", copy)
    result = run("inspect", copy)
    assert is_one_line(result.stderr, (f"{copy}: no log", "*.timeindex", "meta.properties", "quorum-state"))
    assert result.exit_code == 2


@pytest.mark.parametrize(
    "options", [["--records"], ["--limit", "1"], ["--verify"], ["--summary"], ["--from-segment-start"]]
)
def test_options_of_batches_when_given_with_a_file_beside_segments_then_are_refused(
    options: list[str],
) -> None:
    result = run("inspect", ORDERS / "leader-epoch-checkpoint", *options)
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ("has no record batches",))


def test_paths_when_of_segments_and_of_files_beside_them_then_are_refused() -> None:
    result = run("inspect", ORDERS, ORDERS / "leader-epoch-checkpoint")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ("is beside segments", "inspect them separately"))


def test_parquet_when_files_are_of_several_kinds_then_is_refused(tmp_path: Path) -> None:
    files = ORDERS / "leader-epoch-checkpoint", DIRECTORY / "meta.properties"
    result = run("inspect", *files, "--parquet", tmp_path / "x.parquet")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ("files of one kind",))


@pytest.mark.parametrize("check", ["--index-sanity-check", "--verify-index-only"])
def test_indexes_when_checked_and_right_then_pass(check: str) -> None:
    result = run("inspect", f"{ORDERS}/*.index", f"{ORDERS}/*.timeindex", check)
    assert (result.exit_code, result.stdout.count("passed")) == (0, 14)
    assert "14 files: 0 findings" in result.stderr


def test_index_when_verified_and_wrong_then_findings_are_told(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ORDERS, tmp_path / "orders-0"))
    index = folder / "00000000000000000062.index"
    data = bytearray(index.read_bytes())
    data[3] += 1
    index.write_bytes(data)
    result = run("inspect", index, "--verify-index-only")
    assert result.exit_code == 1
    expected = "entry 0: expected a batch with last offset 85 at position 920, its last offset is 84"
    assert f"finding: {index}: {expected}" in result.stderr
    (row,) = json_lines(run("inspect", index, "--verify-index-only", "--json").stdout)
    assert (row["result"], row["findings"]) == ("failed", [expected])


@pytest.mark.parametrize("path", [ORDERS, ORDERS / "leader-epoch-checkpoint"])
def test_check_of_indexes_when_the_path_is_none_then_is_refused(path: Path) -> None:
    result = run("inspect", path, "--verify-index-only")
    assert result.exit_code == 2
    assert is_one_line(result.stderr, ("--verify-index-only is for",))


def test_checks_of_indexes_when_both_are_given_then_are_refused() -> None:
    checks = "--index-sanity-check", "--verify-index-only"
    for options in (checks, checks[::-1]):
        result = run("inspect", f"{ORDERS}/*.index", *options)
        assert result.exit_code == 2
        assert is_one_line(result.stderr, ("choose one",))


def test_metadata_snapshots_when_inspected_then_are_batches() -> None:
    folder = DIRECTORY / "dynamic-quorum"
    assert kind_of("bootstrap.checkpoint") is None
    rows = json_lines(run("inspect", f"{folder}/*.checkpoint", "--json").stdout)
    assert {Path(row["path"]).name for row in rows} == {path.name for path in folder.glob("*.checkpoint")}
    assert all(row["is_valid"] for row in rows)
