"""What terminals would obey in names that others chose is printed as escapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.logs import run
from kafkafmt.cli.output import print_table

COMMAND = "\x1b]0;owned\x07\x1b[2J"


def test_table_when_a_name_commands_the_terminal_then_shows_escapes_in_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(["group", "records#"], [[COMMAND, "1"], ["caf\u00e9", "20"]], title=f"of {COMMAND}")
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == r"of \x1b]0;owned\x07\x1b[2J"
    assert [line.split() for line in lines] == [
        ["group", "records"],
        [r"\x1b]0;owned\x07\x1b[2J", "1"],
        ["caf\u00e9", "20"],
    ]
    assert len({len(line) for line in lines}) == 1  # the columns are wide enough for the escapes


def test_error_when_a_path_commands_the_terminal_then_shows_escapes(tmp_path: Path) -> None:
    ended = run("inspect", tmp_path / COMMAND)
    assert ended.exit_code == 2
    assert "\x1b" not in ended.stderr
    assert r"\x1b]0;owned\x07" in ended.stderr
