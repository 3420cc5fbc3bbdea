"""`--topics`, `--from` and `--to` of `inspect` and `verify`, and that all commands declare them alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.logs import FIRST_TIMESTAMP, all_commands, is_one_line, json_lines, run, segments, write_log
from kafkafmt.cli.record_options import Topics
from kafkafmt.cli.values import Time


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Partitions of 120 records in batches of ten, a millisecond apart from FIRST_TIMESTAMP on."""
    for name in ("orders-0", "orders-1", "page-views-0", "__own-0"):
        write_log(tmp_path / "logs" / name)
    return tmp_path / "logs"


def test_commands_when_they_have_topics_or_times_then_these_have_one_type_and_one_name() -> None:
    for command in all_commands().values():
        for option in command.params:
            if isinstance(option.type, Topics):
                assert option.opts == ["--topics"], command.name
            if isinstance(option.type, Time):
                assert option.opts[0] in ("--from", "--to", "--at"), command.name
            if option.opts[0] == "--topics":
                assert isinstance(option.type, Topics), command.name


@pytest.mark.parametrize(
    "command", [("inspect", "--records"), ("inspect",), ("inspect", "--summary"), ("verify",)]
)
def test_topics_when_they_are_names_and_globs_then_only_these_are_read(
    logs: Path, command: tuple[str, ...]
) -> None:
    rows = json_lines(run(*command, logs, "--json", "--topics", "page-*,__own").stdout)
    assert {row["topic"] for row in rows} == {"page-views", "__own"}


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_topics_when_one_matches_nothing_then_one_line_names_it(logs: Path, command: str) -> None:
    result = run(command, logs, "--topics", "orders,none-*")
    assert (result.exit_code, result.stdout) == (2, "")
    assert is_one_line(result.stderr)
    assert "no topic matches 'none-*'" in result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", FIRST_TIMESTAMP + 45), range(45, 120)),
        (("--to", FIRST_TIMESTAMP + 45), range(45)),
        (("--from", FIRST_TIMESTAMP + 31, "--to", FIRST_TIMESTAMP + 45), range(31, 45)),
        (("--from", FIRST_TIMESTAMP + 31, "--to", "-1d", "--offsets", "20:40"), range(31, 40)),
        (("--from", "-1d"), range(0)),
        (("--to", "2001-01-31"), range(0)),
        (("--from", "1960-01-31"), range(120)),
        (("--to", "1960-01-31"), range(0)),
    ],
)
def test_records_when_they_have_a_range_of_time_then_are_those_within_of_each_partition(
    logs: Path, options: tuple[object, ...], expected: range
) -> None:
    rows = json_lines(run("inspect", logs, "--topics", "orders", "--records", "--json", *options).stdout)
    found = {number: [row["offset"] for row in rows if row["partition"] == number] for number in (0, 1)}
    assert found == {0: list(expected), 1: list(expected)}


def test_batches_when_they_have_a_range_of_time_then_are_those_with_a_record_within(logs: Path) -> None:
    times = ("--from", FIRST_TIMESTAMP + 31, "--to", FIRST_TIMESTAMP + 45)
    rows = json_lines(run("inspect", logs / "orders-0", "--json", *times).stdout)
    assert [row["base_offset"] for row in rows] == [30, 40]


@pytest.mark.parametrize(("option", "reason"), [("--summary", "reads whole"), ("--verify", "checks whole")])
def test_range_of_time_when_whole_files_are_read_then_is_refused(
    logs: Path, option: str, reason: str
) -> None:
    result = run("inspect", logs, option, "--from", "-1d")
    assert result.exit_code == 2
    assert f"{option} {reason} files" in result.stderr


def test_range_of_time_when_a_file_is_of_no_log_then_is_refused(logs: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.bin").write_bytes(segments(logs)[0].read_bytes())
    result = run("inspect", tmp_path / "copy.bin", "--from", "-1d")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--from and --to are for segments of logs" in result.stderr


def test_page_when_it_lists_commands_then_says_which_options_each_has() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    row = r"^\| `(?P<command>[a-z-]+)` \| (?P<topics>\w+) \| (?P<times>\w+) \| (?P<formats>\w+) \|"
    rows = {found[1]: [found[2], found[3], found[4]] for found in re.finditer(row, text, re.MULTILINE)}
    for command in all_commands().values():
        names = {name for option in command.params for name in option.opts}
        sets = (
            {"--topics"},
            {"--from", "--to"},
            {"--key-format", "--value-format", "--schemas", "--framing"},
        )
        assert rows[command.name or ""] == ["yes" if one <= names else "no" for one in sets], command.name
