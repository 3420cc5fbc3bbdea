"""Help: `--help` fits a screen, `--help-all` has everything, and every command is under a heading."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

import kafkafmt as kf
from cli.logs import all_commands, run
from kafkafmt.cli.help import HelpCommand

DOCS = Path(__file__).parents[2] / "docs"
SCREEN_LINES, SCREEN_COLUMNS = 40, 80
COMMANDS = [*((name,) for name in all_commands()), ("mirror", "offsets")]


@pytest.fixture(autouse=True)
def _screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=None: (SCREEN_COLUMNS, SCREEN_LINES))


def option_names(text: str) -> set[str]:
    """The options that a help lists."""
    listed = re.findall(r"^  (-.+?)(?:  |$)", text, re.MULTILINE)
    return {name for line in listed for name in re.findall(r"--[a-z][a-z-]+", line)}


def command_of(path: tuple[str, ...]) -> HelpCommand:
    found = all_commands()[path[0]]
    if path[1:]:
        context = found.make_context(path[0], [*path[1:], "--group", "g", "/a", "/b"], resilient_parsing=True)
        found = context.command
    assert isinstance(found, HelpCommand)
    return found


@pytest.mark.parametrize("path", [(), *COMMANDS], ids=" ".join)
def test_help_when_the_terminal_has_80_columns_then_fits_one_screen(path: tuple[str, ...]) -> None:
    lines = run(*path, "--help").stdout.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS


def test_command_when_run_then_no_other_one_is_imported() -> None:
    names = [f"kafkafmt.cli.{name.replace('-', '_')}" for (name, *_) in COMMANDS]
    program = (
        "import sys; from kafkafmt.cli import main\n"
        "try: main(['verify', '--help'])\n"
        f"finally: print(*sorted(set(sys.modules) & {{*{names}, 'kafkafmt.schemas.group_coordinator'}}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "kafkafmt.cli.verify"


def test_run_as_a_module_then_is_the_command() -> None:
    line = [sys.executable, "-m", "kafkafmt"]
    shown = subprocess.run([*line, "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"kafkafmt, version {kf.__version__}\n"
    refused = subprocess.run([*line, "verify"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert refused.stderr.endswith("(see kafkafmt verify --help)\n")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_complete_help_then_has_every_option_and_the_whole_text(path: tuple[str, ...]) -> None:
    command, shown = command_of(path), run(*path, "--help-all").stdout
    options = [one for one in command.params if isinstance(one, click.Option)]
    expected = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    assert option_names(shown) == expected | {"--help", "--help-all"}
    text = (command.help or "").replace("\b", "")
    assert "".join(text.split()) in "".join(shown.split())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_then_names_the_complete_help_and_a_page_that_mentions_the_command(
    path: tuple[str, ...],
) -> None:
    shown = run(*path, "--help").stdout
    link = re.search(r"All options: +(.+) --help-all\nDocumentation: docs/(\S+\.md)\n$", shown)
    assert link is not None
    name = " ".join(("kafkafmt", *path))
    assert link[1].endswith(" ".join(path))
    assert name in (DOCS / link[2]).read_text()


def test_help_of_the_program_then_has_each_command_under_a_heading_and_no_text_is_cut() -> None:
    shown = run("--help").stdout
    headings = re.findall(
        r"^(\w[\w ]*):\n((?:  .+\n?)+)", shown.partition("Show this message")[2], re.MULTILINE
    )
    listed = {heading: re.findall(r"^  (\S+)", rows, re.MULTILINE) for heading, rows in headings}
    assert listed == {
        "Look at logs": ["inspect", "verify", "groups", "transactions", "cluster"],
        "Change them": ["convert", "erase", "repair", "table"],
        "Serve them": ["serve", "gateway"],
        "Move records": ["mirror", "backup", "restore", "replay", "export"],
        "Plan": ["memory", "spark-archive"],
    }
    assert sorted(name for names in listed.values() for name in names) == sorted(all_commands())
    assert shown.count("...") == 1  # of the usage: [ARGS]...


def test_option_when_its_argument_is_missing_then_the_error_names_the_help_of_the_command(
    tmp_path: Path,
) -> None:
    result = run("inspect", tmp_path, "--parquet")
    assert result.stderr.endswith("requires an argument. (see main inspect --help)\n")
